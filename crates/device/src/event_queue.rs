//! The event queue of a device: asynchronous events and the last failure.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

use ferroce_control::{Handlers, handlers};
use ferroce_roce::{Failure, QpEvent};
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

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
    /// An eventfd that counts the events in the queue. A pipe would take two descriptors, and a
    /// process usually has 1024.
    count: OwnedFd,
    /// The descriptor of the program: readable if an event waits, or a message about the link
    /// has arrived. Programs do not poll `count`, which would report `POLLOUT` all the time.
    program: OwnedFd,
    last_failure: Mutex<Option<Failure>>,
}

impl EventQueue {
    /// Creates an empty queue. `link` is readable when a message about the link has arrived.
    ///
    /// # Errors
    /// `EMFILE` if the process has no free descriptors, or 500 queues of this link.
    pub(crate) fn new(number: DeviceNumber, link: BorrowedFd<'_>) -> io::Result<EventQueue> {
        // Threads wait for `program`.
        let flags = EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let count = eventfd(0, flags)?;
        let program = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in [count.as_fd(), link] {
            let data = epoll::EventData::new_u64(0);
            let added = epoll::add(&program, fd, data, epoll::EventFlags::IN);
            added.map_err(|error| match error {
                // `link` is an epoll, too. The kernel refuses a file that is reached through
                // more than 500 pairs of an epoll in an epoll.
                Errno::INVAL => Errno::MFILE,
                other => other,
            })?;
        }
        Ok(EventQueue {
            number,
            events: Mutex::default(),
            count,
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
            match rustix::io::read(&self.count, &mut [0; 8]) {
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
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
        // Fails only if 2^64 - 2 events wait.
        let _counted = rustix::io::write(&self.count, &1u64.to_ne_bytes());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no code panics while it holds a list")
}
