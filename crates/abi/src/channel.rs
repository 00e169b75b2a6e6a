//! Completion channels.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicI32, Ordering};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use ferroce_device::Channel;

use crate::context::context_of;
use crate::cq::CqObject;
use crate::errno::{errno_of_device, minus_one, null, refuse};
use crate::ffi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::object::{Object, from_c, into_c, take};

/// `ibv_comp_channel`
#[repr(C)]
pub(crate) struct ChannelObject {
    c: UnsafeCell<ibv_comp_channel>,
    pub(crate) channel: Arc<Channel>,
}

// SAFETY: `repr(C)`, and the C structure, in a cell, comes first.
unsafe impl Object for ChannelObject {
    type C = ibv_comp_channel;
}

impl ChannelObject {
    /// The context it was made in.
    pub(crate) fn context(&self) -> *mut ibv_context {
        // SAFETY: this field never changes.
        unsafe { (*self.c.get()).context }
    }

    /// How many completion queues use it; the program may look.
    pub(crate) fn users(&self) -> &AtomicI32 {
        // SAFETY: the field is only changed through this atomic.
        unsafe { AtomicI32::from_ptr(&raw mut (*self.c.get()).refcnt) }
    }
}

/// `ibv_create_comp_channel`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    if context.is_null() {
        return null(refuse(
            libc::EINVAL,
            "ibv_create_comp_channel: the context is NULL",
        ));
    }
    // SAFETY: the caller's context.
    let device = unsafe { &context_of(context).device };
    match device.create_channel() {
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
    // SAFETY: the caller's channel.
    let Some(object) = (unsafe { from_c::<ChannelObject>(channel) }) else {
        return refuse(
            libc::EINVAL,
            "ibv_destroy_comp_channel: the channel is NULL",
        );
    };
    if object.users().load(Ordering::Acquire) > 0 {
        return refuse(
            libc::EBUSY,
            "ibv_destroy_comp_channel: completion queues still use the channel",
        );
    }
    // SAFETY: no completion queue uses it, and the caller is done with it.
    drop(unsafe { take::<ChannelObject>(channel) });
    0
}

/// `ibv_get_cq_event`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's channel.
    let Some(object) = (unsafe { from_c::<ChannelObject>(channel) }) else {
        return minus_one(refuse(
            libc::EINVAL,
            "ibv_get_cq_event: the channel is NULL",
        ));
    };
    if cq.is_null() || cq_context.is_null() {
        return minus_one(refuse(
            libc::EINVAL,
            "ibv_get_cq_event: an argument is NULL",
        ));
    }
    let taken = object.channel.take_with(|cookie| {
        let c = ptr::with_exposed_provenance_mut::<ibv_cq>(cookie as usize);
        // SAFETY: a queue takes its records back before it goes, and cannot do
        // so while we look.
        if let Some(queue) = unsafe { from_c::<CqObject>(c) } {
            queue.events.deliver();
        }
        c
    });
    match taken {
        // EAGAIN and EINTR are the program's to know.
        Err(error) => minus_one(error.raw_os_error().unwrap_or(libc::EIO)),
        Ok(c) => {
            // SAFETY: the queue stays until its event has been acknowledged; the
            // caller's pointers can be written to.
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
    // SAFETY: the caller's completion queue.
    if let Some(object) = unsafe { from_c::<CqObject>(cq) } {
        object.acknowledge(nevents);
    }
}
