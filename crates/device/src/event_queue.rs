//! The event queue of a device: asynchronous events and the last failure.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

use ferroce_control::{Handlers, handlers};
use ferroce_roce::{Failure, QpEvent};
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::channel::Channel;
use crate::directory::DeviceNumber;

/// An asynchronous event of a device, in the order of `ibv_event_type`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AsyncEvent {
    /// A completion was lost because its completion queue was full.
    CqError {
        /// The completion queue's id.
        cq: u32,
    },
    /// An event of a queue pair.
    Qp {
        /// Number of the queue pair.
        qpn: u32,
        /// Kind of the event.
        kind: QpEvent,
    },
    /// A shared receive queue has fewer receives than its limit.
    SrqLimitReached {
        /// Number of the shared receive queue.
        srq: u32,
    },
    /// The port became active.
    PortActive,
    /// The port went down.
    PortError,
    /// The GID table has changed.
    GidChange,
    /// The link was removed.
    DeviceFatal,
}

/// The events of one device.
#[derive(Debug)]
pub(crate) struct EventQueue {
    /// Number of the device.
    number: DeviceNumber,
    events: Mutex<VecDeque<AsyncEvent>>,
    /// One record for each event in the queue.
    channel: Channel,
    /// The descriptor of the program: readable if the channel is, or a message about the link
    /// has arrived.
    program: OwnedFd,
    last_failure: Mutex<Option<Failure>>,
}

impl EventQueue {
    /// Creates an empty queue. `link` is readable when a message about the link has arrived.
    pub(crate) fn new(number: DeviceNumber, link: BorrowedFd<'_>) -> io::Result<EventQueue> {
        let channel = Channel::new()?;
        // Threads wait for `program`.
        rustix::fs::fcntl_setfl(channel.fd(), OFlags::NONBLOCK)?;
        let program = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in [channel.fd(), link] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&program, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(EventQueue {
            number,
            events: Mutex::default(),
            channel,
            program,
            last_failure: Mutex::default(),
        })
    }

    /// Returns the number of the device.
    pub(crate) fn number(&self) -> DeviceNumber {
        self.number
    }

    /// Returns the descriptor that is readable while an event waits.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Takes the oldest event; waits for one unless the descriptor is non-blocking. `receive`
    /// handles messages about the link.
    pub(crate) fn take(&self, receive: impl Fn()) -> io::Result<AsyncEvent> {
        loop {
            receive();
            match self.channel.take() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
                Ok(_) => match lock(&self.events).pop_front() {
                    Some(event) => return Ok(event),
                    None => continue,
                },
            }
            if rustix::fs::fcntl_getfl(&self.program)?.contains(OFlags::NONBLOCK) {
                return Err(Errno::AGAIN.into());
            }
            let mut fds = [PollFd::new(&self.program, PollFlags::IN)];
            match poll(&mut fds, None) {
                Err(Errno::INTR) if handlers() == Handlers::Restart => {}
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
        }
    }

    pub(crate) fn last_failure(&self) -> Option<Failure> {
        lock(&self.last_failure).clone()
    }

    pub(crate) fn set_failure(&self, failure: Failure) {
        *lock(&self.last_failure) = Some(failure);
    }

    /// Adds an asynchronous event.
    pub(crate) fn post(&self, event: AsyncEvent) {
        lock(&self.events).push_back(event);
        self.channel.put(1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no code panics while it holds a list")
}
