//! The descriptor on which threads of a slot sleep until a packet arrives in memory.
//!
//! A writer makes a system call only if a thread at the other end sleeps, or is about to. A
//! thread that wants to sleep sets a flag in each ring, looks at all rings once more, and then
//! sleeps on the descriptor of the doorbell: an epoll with the sockets of all channels. A
//! writer that finds the flag clears it, and sends a byte.
//!
//! Several threads may sleep at the same time, and one byte wakes all of them, or only one. So
//! a thread that wakes up takes all bytes, and if others still sleep it sets the flags again
//! and wakes them if a packet waits.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

use super::channels::Endpoint;
use super::end::End;

/// Wakeups that one system call reports. The next sleep ends at once if there are more.
const EVENTS: usize = 16;

/// The ends of all channels of a slot, and a descriptor to sleep on.
#[derive(Debug)]
pub struct Doorbell {
    epoll: OwnedFd,
    state: Mutex<State>,
    /// Number of ends.
    count: AtomicUsize,
    /// Wakes threads of this process: the first end is part of the epoll.
    own: [OwnedFd; 2],
}

#[derive(Debug, Default)]
struct State {
    ends: Vec<Arc<End>>,
    /// Number of threads between [`Doorbell::begin_sleep`] and [`Doorbell::end_sleep`].
    sleepers: usize,
}

impl Doorbell {
    /// Returns a doorbell without ends.
    ///
    /// # Errors
    /// If the process has too many open files.
    pub fn new() -> io::Result<Doorbell> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (first, second) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        epoll::add(&epoll, &first, data_of(first.as_fd()), EventFlags::IN)?;
        Ok(Doorbell {
            epoll,
            state: Mutex::default(),
            count: AtomicUsize::new(0),
            own: [first, second],
        })
    }

    /// Adds an end. Threads that sleep now wake up for its packets, too.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn add(&self, end: &Arc<End>) -> io::Result<()> {
        let mut state = self.lock();
        epoll::add(&self.epoll, &**end, data_of(end.as_fd()), EventFlags::IN)?;
        state.ends.push(Arc::clone(end));
        self.count.store(state.ends.len(), Ordering::Relaxed);
        self.arm_for_sleepers(&state);
        Ok(())
    }

    /// Removes ends that are closed.
    pub(super) fn remove_closed(&self) {
        let mut state = self.lock();
        state.ends.retain(|end| {
            if end.is_closed() {
                let _gone = epoll::delete(&self.epoll, &**end);
            }
            !end.is_closed()
        });
        self.count.store(state.ends.len(), Ordering::Relaxed);
    }

    /// Returns true if the slot has channels.
    #[inline]
    pub fn has_ends(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Returns true if a channel is closed that [`HostWire`](super::HostWire) has not forgotten.
    pub fn has_closed(&self) -> bool {
        self.has_ends() && self.lock().ends.iter().any(|end| end.is_closed())
    }

    /// Returns true if a packet waits in a ring. It costs no system call.
    #[inline]
    pub fn has_packet(&self) -> bool {
        self.has_ends() && self.lock().ends.iter().any(|end| end.has_packet())
    }

    /// Returns the end that leads to a slot: the newest that is not closed.
    pub fn end_to(&self, peer: u8) -> Option<Arc<End>> {
        let state = self.lock();
        let mut ends = state.ends.iter().rev();
        let found = ends.find(|end| end.peer() == peer && !end.is_closed());
        found.cloned()
    }

    /// Closes all ends.
    pub fn close_all(&self) {
        self.lock().ends.iter().for_each(|end| end.close());
    }

    /// Prepares to sleep on the descriptor. Returns false if a packet waits: the thread must not
    /// sleep. [`Doorbell::end_sleep`] must follow in both cases.
    #[must_use]
    pub fn begin_sleep(&self) -> bool {
        let mut state = self.lock();
        state.sleepers += 1;
        state.ends.iter().for_each(|end| end.arm());
        !state.ends.iter().any(|end| end.has_packet())
    }

    /// Ends a sleep. Returns true if a channel is closed: `remove_closed` and the
    /// halves of the wire forget it.
    pub fn end_sleep(&self) -> bool {
        let mut state = self.lock();
        state.sleepers -= 1;
        if state.ends.is_empty() {
            return false;
        }
        let woken = state.ends.iter().filter(|end| end.is_woken());
        let closed = match woken.map(|end| end.take_wakeups()).reduce(|a, b| a | b) {
            Some(closed) => closed,
            // A wakeup of this process, the end of a channel, or no wakeup at all.
            None => self.take_wakeups(&state),
        };
        match state.sleepers {
            0 => state.ends.iter().for_each(|end| end.disarm()),
            _ => self.arm_for_sleepers(&state),
        }
        closed
    }

    /// Takes the wakeups of all ends. Returns true if an end is closed.
    fn take_wakeups(&self, state: &State) -> bool {
        let mut events = Vec::with_capacity(EVENTS);
        let room = spare_capacity(&mut events);
        let _none = epoll::wait(&self.epoll, room, Some(&Timespec::default()));
        let mut closed = false;
        for Event { data, .. } in events {
            let mut ends = state.ends.iter();
            match ends.find(|end| data == data_of(end.as_fd())) {
                Some(end) => closed |= end.take_wakeups(),
                None => {
                    let mut bytes = [0; 64];
                    let _empty = recv(&self.own[0], &mut bytes, RecvFlags::DONTWAIT);
                }
            }
        }
        closed
    }

    /// Sets the flags for threads that sleep, and wakes them if a packet waits already.
    fn arm_for_sleepers(&self, state: &State) {
        if state.sleepers == 0 {
            return;
        }
        state.ends.iter().for_each(|end| end.arm());
        if state.ends.iter().any(|end| end.has_packet()) {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            // It fails only if earlier wakeups wait.
            let _full = send(&self.own[1], &[0], flags);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the number of a descriptor, which no other open descriptor has.
fn data_of(fd: BorrowedFd<'_>) -> EventData {
    EventData::new_u64(fd.as_raw_fd() as u64)
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
