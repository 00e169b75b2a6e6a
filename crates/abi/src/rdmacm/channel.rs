//! Event channels: a queue of events with a descriptor that is readable while one waits.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use ferroce_control::CmEvent;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::time::Timespec;

use super::devices;
use super::id::{Id, orphan};
use super::multicast::Group;
use crate::errno::{null, refuse};
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

/// The channel as ids know it; it outlives the program's object if the program destroys
/// that first.
#[derive(Debug)]
pub(crate) struct Channel(ferroce_device::Channel<Queued>);

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
        Ok(Channel(ferroce_device::Channel::new()?))
    }

    pub(crate) fn put(&self, queued: Queued) {
        self.0.put(queued);
    }

    /// The oldest event; waits for one unless the descriptor is non-blocking. The
    /// event counts as delivered.
    pub(crate) fn take(&self) -> io::Result<Queued> {
        self.0.take_with(|queued| {
            queued.id.events.deliver();
            queued
        })
    }

    /// Waits for an event, up to a time. True as well if the program does not want to wait,
    /// and if a signal has come.
    pub(crate) fn is_ready(&self, timeout: Duration) -> bool {
        let fd = self.0.fd();
        let flags = rustix::fs::fcntl_getfl(fd);
        if flags.is_ok_and(|flags| flags.contains(OFlags::NONBLOCK)) {
            return true;
        }
        let timeout = Timespec::try_from(timeout).ok();
        let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref());
        !matches!(ready, Ok(0))
    }

    /// Takes back all events of an id.
    pub(crate) fn purge(&self, id: &Arc<Id>) -> Vec<Queued> {
        self.0.take_back(|queued| Arc::ptr_eq(&queued.id, id))
    }

    /// Takes back that a group was joined.
    pub(crate) fn forget(&self, group: &Arc<Group>) {
        self.0.take_back(
            |queued| matches!(&queued.what, Happening::Joined(other) if Arc::ptr_eq(other, group)),
        );
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
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(libc::EMFILE);
            null(refuse(
                errno,
                format_args!("rdma_create_event_channel: {error}"),
            ))
        }
        Ok(channel) => into_c(Box::new(ChannelObject {
            c: rdma_event_channel {
                fd: channel.0.fd().as_raw_fd(),
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
