//! The descriptors on which threads of a slot sleep until a packet arrives in memory.
//!
//! A writer makes a system call only if a thread at the other end sleeps, or is about to. A
//! thread that wants to sleep sets a flag in each ring, looks at all rings once more, and then
//! sleeps on the slot's [`Bell`]. A writer that finds the flag clears it, and rings the bell. No wakeup is
//! lost: either the thread sees the packet, or the writer sees the flag (`ring.rs`), and the bell stays
//! readable until a thread takes the wakeup, which looks at all rings afterwards.
//!
//! Threads sleep on an epoll with the sockets of all channels, too: it reports the end of the other
//! process. A new end gets the bell of the other end through its socket, and wakes that by the socket before.
//!
//! Several threads may sleep at the same time, and one byte wakes all of them, or only one. So
//! a thread that wakes up takes all bytes, and if others still sleep it sets the flags again
//! and wakes them if a packet waits.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::bell::Bell;
use super::channels::Endpoint;
use super::end::End;

/// Wakeups that one system call reports. The next sleep ends at once if there are more.
const EVENTS: usize = 16;
/// Sleeps that end by the bell, of which one looks at the sockets, too.
const BELL_SLEEPS: u32 = 64;

/// The ends of all channels of a slot, and descriptors to sleep on.
#[derive(Debug)]
pub struct Doorbell {
    /// Contains the sockets of all ends.
    epoll: OwnedFd,
    /// Wakes threads of this process.
    bell: Bell,
    state: Mutex<State>,
    /// Number of ends.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    ends: Vec<Arc<End>>,
    /// Number of threads between [`Doorbell::begin_sleep`] and [`Doorbell::end_sleep`].
    sleepers: usize,
    /// True if another slot may have the bell.
    is_bell_shared: bool,
    /// Sleeps in a row that ended by the bell.
    bell_sleeps: u32,
}

impl Doorbell {
    /// Returns a doorbell without ends.
    ///
    /// # Errors
    /// If the process has too many open files.
    pub fn new() -> io::Result<Doorbell> {
        Ok(Doorbell {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            bell: Bell::new()?,
            state: Mutex::default(),
            count: AtomicUsize::new(0),
        })
    }

    /// Returns the descriptors to sleep on.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.bell.as_fd(), self.epoll.as_fd()]
    }

    /// Adds an end, and tells the other end that this one is ready. Threads that sleep now wake up for
    /// its packets, too.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn add(&self, end: &Arc<End>) -> io::Result<()> {
        let mut state = self.lock();
        epoll::add(&self.epoll, &**end, data_of(end.as_fd()), EventFlags::IN)?;
        state.ends.push(Arc::clone(end));
        self.count.store(state.ends.len(), Ordering::Relaxed);
        state.is_bell_shared = true;
        end.announce_bell(&self.bell);
        self.arm_for_sleepers(&state);
        Ok(())
    }

    /// Takes the bell of the other end from the socket of an end, if it has arrived. A program that never
    /// sleeps would not look there.
    pub fn take_bell(&self, end: &End) {
        if end.has_bell() {
            return;
        }
        let state = self.lock();
        end.take_wakeups();
        // The wakeup may have been for a thread that sleeps.
        self.arm_for_sleepers(&state);
    }

    /// Removes ends that are closed.
    pub fn remove_closed(&self) {
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

    /// Returns true if a ring that this process writes to has memory behind its front, which its writer returns to the kernel
    /// when it is not used any more.
    pub fn has_extended_ring(&self) -> bool {
        let is_extended = |end: &Arc<End>| end.is_extended() && !end.is_closed();
        self.has_ends() && self.lock().ends.iter().any(is_extended)
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
        // Another slot can ring the bell even after its end was removed.
        if !state.is_bell_shared {
            return false;
        }
        let closed = self.take_wakeups(&mut state);
        match state.sleepers {
            0 => state.ends.iter().for_each(|end| end.disarm()),
            _ => self.arm_for_sleepers(&state),
        }
        closed
    }

    /// Takes all wakeups. Returns true if an end is closed.
    fn take_wakeups(&self, state: &mut State) -> bool {
        let is_woken = state.ends.iter().any(|end| end.is_woken());
        if is_woken && state.bell_sleeps < BELL_SLEEPS && self.bell.take() {
            state.bell_sleeps += 1;
            return false;
        }
        state.bell_sleeps = 0;
        // A wakeup of this process, a byte in a socket, the end of a channel, or no wakeup at all.
        let mut fds = self
            .descriptors()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let _none = poll(&mut fds, Some(&Timespec::default()));
        let [bell, sockets] = fds.map(|fd| !fd.revents().is_empty());
        if bell {
            self.bell.take();
        }
        sockets && self.take_from_sockets(state)
    }

    /// Takes the wakeups that have arrived at sockets. Returns true if an end is closed.
    fn take_from_sockets(&self, state: &State) -> bool {
        let mut events = Vec::with_capacity(EVENTS);
        let room = spare_capacity(&mut events);
        let _none = epoll::wait(&self.epoll, room, Some(&Timespec::default()));
        let mut closed = false;
        for Event { data, .. } in events {
            let mut ends = state.ends.iter();
            if let Some(end) = ends.find(|end| data == data_of(end.as_fd())) {
                closed |= end.take_wakeups();
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
            self.bell.ring();
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
