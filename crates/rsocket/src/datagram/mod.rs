//! Datagram sockets.
//!
//! A datagram socket has a UDP socket, and a queue pair for each local address in use. The
//! first datagrams to a peer go over UDP, with the number of our queue pair. The peer
//! answers with its own number, and later datagrams go from queue pair to queue pair. Each
//! call serves the UDP socket too. A thread is started only to open a queue pair for a call
//! that must not wait for ferroced.

mod local;
mod opening;
mod options;
mod state;
mod transfer;
mod udp;

use core::sync::atomic::{AtomicBool, Ordering};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::net::AddressFamily;

use crate::queue::Sizes;
use crate::settings::Settings;
use crate::stream::Prepared;
use crate::wait::Waker;
use crate::{Errno, Result, sys};

use self::state::State;

/// A datagram socket.
#[derive(Debug)]
pub struct Datagram {
    state: Arc<Mutex<State>>,
    nonblocking: AtomicBool,
    udp: OwnedFd,
}

impl Datagram {
    /// Creates a socket for addresses of a family.
    ///
    /// # Errors
    ///
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new(family: AddressFamily) -> Result<Datagram> {
        let settings = Settings::get();
        let sizes = Sizes {
            send: settings.send_queue.into(),
            receive: settings.receive_queue.into(),
            inline: 0,
        };
        Ok(Datagram {
            state: Arc::new(Mutex::new(State::new(sizes, udp::epoll()?))),
            nonblocking: AtomicBool::new(false),
            udp: udp::socket(family)?,
        })
    }

    /// True if calls fail with EAGAIN instead of waiting.
    pub fn nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Selects whether calls wait.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Binds the socket to a local address.
    ///
    /// # Errors
    ///
    /// Those of the kernel.
    pub fn bind(&self, addr: &SocketAddr) -> Result<()> {
        rustix::net::bind(&self.udp, addr)
    }

    /// Sets the peer: datagrams go to it, and those of others are dropped.
    ///
    /// # Errors
    ///
    /// Those of the kernel.
    pub fn connect(&self, addr: &SocketAddr) -> Result<()> {
        rustix::net::connect(&self.udp, addr)?;
        self.lock().connected = Some(*addr);
        Ok(())
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        udp::local_addr(&self.udp)
    }

    /// Returns the peer that was set with `connect`.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.lock().connected
    }

    /// Makes waiting calls of other threads fail with EBADF.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.waiters.wake_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns the poll events that are `wanted` and present.
    pub fn poll(&self, wanted: PollFlags) -> PollFlags {
        let mut state = self.lock();
        self.step(&mut state);
        state.ready() & wanted
    }

    /// Registers a thread that is about to sleep, unless a wanted event is present.
    pub(crate) fn prepare(&self, wanted: PollFlags, waker: &Arc<Waker>) -> Prepared {
        let mut state = self.lock();
        state.arm();
        self.step(&mut state);
        if state.ready().intersects(wanted) {
            return Prepared::Ready;
        }
        state.waiters.add(waker);
        Prepared::Sleep([self.as_raw_fd(), state.completions.as_raw_fd()])
    }

    /// Undoes `prepare` after the thread has slept, and takes completions.
    pub(crate) fn woken(&self, waker: &Arc<Waker>) {
        let mut state = self.lock();
        state.waiters.remove(waker);
        state.take_events();
        self.step(&mut state);
    }

    /// Waits until `ready` returns a result. Non-blocking calls check it without waiting.
    fn wait<T>(
        &self,
        nonblocking: bool,
        mut ready: impl FnMut(&mut State) -> Option<Result<T>>,
    ) -> Result<T> {
        let mut state = self.lock();
        let spin = Duration::from_micros(Settings::get().polling_time.into());
        let until = sys::now() + spin;
        loop {
            if state.closed {
                return Err(Errno::BADF);
            }
            state.progress();
            if let Some(result) = ready(&mut state) {
                return result;
            }
            if nonblocking || sys::now() >= until {
                break;
            }
            drop(state);
            core::hint::spin_loop();
            state = self.lock();
        }
        if nonblocking {
            self.step(&mut state);
            return ready(&mut state).unwrap_or(Err(Errno::AGAIN));
        }
        let waker = Waker::mine()?;
        loop {
            state.arm();
            self.step(&mut state);
            if let Some(result) = ready(&mut state) {
                return result;
            }
            if state.closed {
                return Err(Errno::BADF);
            }
            state.waiters.add(&waker);
            let completions = state.completions.as_raw_fd();
            drop(state);
            let mut fds = [self.as_raw_fd(), completions, waker.fd()]
                .map(|fd| sys::pollfd(fd, PollFlags::IN));
            let interval = Settings::get().wake_up_interval;
            let slept = sys::poll(&mut fds, Some(Duration::from_millis(interval.into())));
            waker.clear();
            self.woken(&waker);
            state = self.lock();
            if let Some(result) = ready(&mut state) {
                return result;
            }
            slept?;
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AsFd for Datagram {
    /// The socket's name for programs: the UDP socket. Use [`crate::poll()`] to wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.udp.as_fd()
    }
}

impl AsRawFd for Datagram {
    fn as_raw_fd(&self) -> RawFd {
        self.udp.as_raw_fd()
    }
}
