//! Event channels: a queue, and a descriptor that counts what is in it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};

use ferroce_control::CmEvent;
use ferroce_device::Counter;

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
    count: Counter,
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
            count: Counter::new()?,
            queue: Mutex::default(),
        })
    }

    pub(crate) fn put(&self, queued: Queued) {
        let mut queue = lock(&self.queue);
        queue.push_back(queued);
        self.count.add();
    }

    /// The oldest event; waits for one unless the descriptor is non-blocking. The
    /// event counts as delivered.
    pub(crate) fn take(&self) -> io::Result<Queued> {
        loop {
            self.count.take()?;
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
            self.count.take_back();
        }
        purged
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
                fd: channel.count.as_fd().as_raw_fd(),
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
