//! Completion channels.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicI32, Ordering};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use ferroce_device::CompletionChannel;

use crate::context::context;
use crate::cq::CqObject;
use crate::errno::{errno_of_device, minus_one, null, refuse};
use crate::ffi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::object::{Object, free, from_c, into_c, object};
use crate::provoke::provoke;

/// `ibv_comp_channel`
#[repr(C)]
pub(crate) struct ChannelObject {
    c: UnsafeCell<ibv_comp_channel>,
    pub(crate) channel: Arc<CompletionChannel>,
}

// SAFETY: `repr(C)`, and the first field is a cell of the C structure.
unsafe impl Object for ChannelObject {
    type C = ibv_comp_channel;
}

impl ChannelObject {
    /// Returns the context of the channel.
    pub(crate) fn context(&self) -> *mut ibv_context {
        // SAFETY: the field does not change after creation.
        unsafe { (*self.c.get()).context }
    }

    /// Returns the number of completion queues that use the channel, a field that the program
    /// may read.
    pub(crate) fn users(&self) -> &AtomicI32 {
        // SAFETY: the field is aligned, and written only as an atomic.
        unsafe { AtomicI32::from_ptr(&raw mut (*self.c.get()).refcnt) }
    }
}

/// `ibv_create_comp_channel`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    provoke!("ibv_create_comp_channel" => null);
    let owner = context!(context, "ibv_create_comp_channel: the context is NULL" => null);
    into_c_channel(context, owner.device.create_channel())
}

/// Creates a completion channel for a queue of an id. Most programs never use it.
///
/// # Safety
/// As for `ibv_create_comp_channel`.
pub(crate) unsafe fn create_channel_of_id(context: *mut ibv_context) -> *mut ibv_comp_channel {
    provoke!("ibv_create_comp_channel" => null);
    let owner = context!(context, "rdma_create_qp: the context is NULL" => null);
    into_c_channel(context, owner.device.create_lazy_channel())
}

/// Returns the C object of a new channel; sets `errno` if there is none.
fn into_c_channel(
    context: *mut ibv_context,
    channel: Result<Arc<CompletionChannel>, ferroce_device::Error>,
) -> *mut ibv_comp_channel {
    match channel {
        Err(error) => null(errno_of_device(&error)),
        Ok(channel) => into_c(Box::new(ChannelObject {
            c: UnsafeCell::new(ibv_comp_channel {
                context,
                fd: channel.fd().as_raw_fd(),
                refcnt: 0,
            }),
            channel,
        })),
    }
}

/// `ibv_destroy_comp_channel`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let object =
        object!(channel as ChannelObject, "ibv_destroy_comp_channel: the channel is NULL" => errno);
    if object.users().load(Ordering::Acquire) > 0 {
        return refuse(
            libc::EBUSY,
            "ibv_destroy_comp_channel: completion queues still use the channel",
        );
    }
    free!(channel as ChannelObject);
    0
}

/// `ibv_get_cq_event`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    provoke!("ibv_get_cq_event" => minus_one);
    let object =
        object!(channel as ChannelObject, "ibv_get_cq_event: the channel is NULL" => minus_one);
    if cq.is_null() || cq_context.is_null() {
        return minus_one(refuse(
            libc::EINVAL,
            "ibv_get_cq_event: an argument is NULL",
        ));
    }
    let taken = object.channel.take_with(|cookie| {
        let c = ptr::with_exposed_provenance_mut::<ibv_cq>(cookie as usize);
        // SAFETY: a completion queue removes its records from the channel before it is freed,
        // and cannot do so while `take_with` runs this closure.
        if let Some(queue) = unsafe { from_c::<CqObject>(c) } {
            queue.events.deliver();
        }
        c
    });
    match taken {
        // EAGAIN and EINTR are not refusals: the program handles them.
        Err(error) => minus_one(error.raw_os_error().unwrap_or(libc::EIO)),
        Ok(c) => {
            // SAFETY: the queue is live until its event is acknowledged, and the program's
            // pointers were checked not to be NULL.
            unsafe {
                *cq = c;
                *cq_context = (*c).cq_context;
            }
            0
        }
    }
}

/// `ibv_ack_cq_events`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    // SAFETY: the program's completion queue is live, or NULL.
    if let Some(object) = unsafe { from_c::<CqObject>(cq) } {
        object.acknowledge(nevents);
    }
}
