//! Event channels: a queue, and a descriptor that counts what is in it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use ferroce_control::CmEvent;
use rustix::event::{EventfdFlags, eventfd};

use super::devices;
use super::id::{Id, orphan};
use super::lock;
use super::multicast::Group;
use crate::errno::null;
use crate::ffi::*;
use crate::log;
use crate::object::{Object, from_c, into_c, take};

/// A channel as the program sees it.
#[repr(C)]
pub(crate) struct ChannelObject {
    c: rdma_event_channel,
    pub(crate) channel: Arc<Channel>,
}

// SAFETY: `repr(C)`, and the C structure comes first.
unsafe impl Object for ChannelObject {
    type C = rdma_event_channel;
}

/// What ids know of their channel; it outlives the program's object if the
/// program destroys that first.
#[derive(Debug)]
pub(crate) struct Channel {
    fd: OwnedFd,
    queue: Mutex<VecDeque<Queued>>,
}

/// An event that waits for the program.
#[derive(Debug)]
pub(crate) struct Queued {
    /// Whose it is; for a request, the listener.
    pub(crate) id: Arc<Id>,
    pub(crate) what: Happening,
}

/// What has happened.
#[derive(Debug)]
pub(crate) enum Happening {
    /// What ferroced says.
    Cm(Box<CmEvent>),
    /// An event that says no more than its status.
    Plain(rdma_cm_event_type, i32),
    /// A group was joined.
    Joined(Arc<Group>),
    /// The program's own.
    User(i32, u64),
}

impl Channel {
    fn new() -> io::Result<Channel> {
        Ok(Channel {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?,
            queue: Mutex::default(),
        })
    }

    pub(crate) fn put(&self, queued: Queued) {
        let mut queue = lock(&self.queue);
        queue.push_back(queued);
        // Fails only if 2^64 wait.
        let _counted = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// The oldest event; waits for one unless the descriptor is non-blocking. The
    /// event counts as delivered.
    pub(crate) fn take(&self) -> io::Result<Queued> {
        loop {
            rustix::io::read(&self.fd, &mut [0; 8])?;
            let mut queue = lock(&self.queue);
            // Empty if the event was taken back after its count was read.
            if let Some(queued) = queue.pop_front() {
                queued.id.events.deliver();
                return Ok(queued);
            }
        }
    }

    /// Takes back all events of an id.
    pub(crate) fn purge(&self, id: &Arc<Id>) -> Vec<Queued> {
        self.take_back(|queued| Arc::ptr_eq(&queued.id, id))
    }

    /// Takes back that a group was joined.
    pub(crate) fn forget(&self, group: &Arc<Group>) {
        self.take_back(
            |queued| matches!(&queued.what, Happening::Joined(other) if Arc::ptr_eq(other, group)),
        );
    }

    fn take_back(&self, which: impl Fn(&Queued) -> bool) -> Vec<Queued> {
        let mut queue = lock(&self.queue);
        let all = core::mem::take(&mut *queue);
        let (purged, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(which);
        *queue = rest.into();
        for _ in &purged {
            self.uncount();
        }
        purged
    }

    /// Takes one from the count without waiting; a reader may have been faster.
    fn uncount(&self) {
        let mut count = 0u64;
        let piece = libc::iovec {
            iov_base: (&raw mut count).cast(),
            iov_len: 8,
        };
        // SAFETY: `piece` describes eight bytes of ours.
        unsafe {
            libc::preadv2(
                self.fd.as_raw_fd(),
                &raw const piece,
                1,
                -1,
                libc::RWF_NOWAIT,
            );
        }
    }
}

/// The channel a program means.
///
/// # Safety
/// NULL, or a live channel of ours.
pub(crate) unsafe fn channel_of<'a>(c: *mut rdma_event_channel) -> Option<&'a Arc<Channel>> {
    // SAFETY: by contract.
    unsafe { from_c::<ChannelObject>(c) }.map(|object| &object.channel)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    log::start();
    if let Err(errno) = devices::any() {
        return null(errno);
    }
    match Channel::new() {
        Err(error) => null(error.raw_os_error().unwrap_or(libc::EMFILE)),
        Ok(channel) => into_c(Box::new(ChannelObject {
            c: rdma_event_channel {
                fd: channel.fd.as_raw_fd(),
            },
            channel: Arc::new(channel),
        })),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if !channel.is_null() {
        // SAFETY: the program gives it back.
        let object = unsafe { take::<ChannelObject>(channel) };
        orphan(&object.channel);
    }
}
