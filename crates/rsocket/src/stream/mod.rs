//! Stream sockets.
//!
//! One lock protects the state. It is held for short times only, never while a thread
//! waits, copies bytes or calls ferroced. Two more locks let senders, and receivers, take turns: one thread
//! may send while another receives.

mod accept;
mod close;
mod connect;
mod io;
mod iomap;
mod keepalive;
mod options;
mod state;
mod transfer;

use core::sync::atomic::{AtomicBool, Ordering};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::net::AddressFamily;

use crate::cm::Id;
use crate::settings::Settings;
use crate::wait::Waker;
use crate::{Errno, Result, sys};

use self::options::Options;
use self::state::{Phase, State};

/// A stream socket: a reliable connection, or a listener for connections.
///
/// `&Stream` and `Stream` are [`Read`](std::io::Read) and [`Write`](std::io::Write), as
/// [`TcpStream`](std::net::TcpStream) is. Dropping the socket closes it, which waits until the
/// peer has acknowledged all data, unless the linger time is 0.
///
/// ```no_run
/// use std::io::{Read, Write};
/// use ferroce_rsocket::{AddressFamily, Stream};
///
/// let listener = Stream::new(AddressFamily::INET)?;
/// listener.bind(&"192.0.2.1:7471".parse()?)?;
/// listener.listen(16)?;
/// let mut stream = listener.accept()?;
/// let mut question = [0; 4];
/// stream.read_exact(&mut question)?;
/// stream.write_all(b"42\n")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Stream {
    state: Mutex<State>,
    sending: Mutex<()>,
    receiving: Mutex<()>,
    nonblocking: AtomicBool,
    family: AddressFamily,
    id: Id,
}

/// The result of a condition that a thread waits for; `None` while it does not hold.
type Waited<T> = Option<Result<T>>;

impl Stream {
    /// Creates a socket for addresses of a family.
    ///
    /// # Errors
    ///
    /// ENODEV if there is no link; the errors of the connection manager.
    pub fn new(family: AddressFamily) -> Result<Stream> {
        let options = Options::new(Settings::get());
        Ok(Stream::with(Id::stream()?, family, State::new(options)))
    }

    fn with(id: Id, family: AddressFamily, state: State) -> Stream {
        Stream {
            state: Mutex::new(state),
            sending: Mutex::new(()),
            receiving: Mutex::new(()),
            nonblocking: AtomicBool::new(false),
            family,
            id,
        }
    }

    /// True if calls fail with EAGAIN instead of waiting.
    pub fn nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Selects whether calls wait.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Returns the local address; the wildcard address before the socket has one.
    pub fn local_addr(&self) -> SocketAddr {
        // Events that the lock holder processes set the address.
        let _state = self.lock();
        let wildcard: IpAddr = match self.family {
            AddressFamily::INET6 => [0; 16].into(),
            _ => [0; 4].into(),
        };
        let wildcard = SocketAddr::new(wildcard, 0);
        self.id.local_addr().unwrap_or(wildcard)
    }

    /// Returns the address of the peer, if the socket is or was connected.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        let state = self.lock();
        (state.was_open || state.phase == Phase::Accepting)
            .then(|| self.id.peer_addr())
            .flatten()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the poll events that are `wanted` and present, and HUP and ERR if present.
    pub fn poll(&self, wanted: PollFlags) -> PollFlags {
        let mut state = self.lock();
        let ready = state.ready(wanted);
        if !ready.is_empty() && !state.is_opening() {
            return ready;
        }
        state.step(&self.id, true);
        state.ready(wanted)
    }

    /// Registers a thread that is about to sleep, unless a wanted event is present.
    pub(crate) fn prepare(&self, wanted: PollFlags, waker: &Arc<Waker>) -> Prepared {
        let mut state = self.lock();
        state.arm();
        state.step(&self.id, true);
        if !state.ready(wanted).is_empty() {
            return Prepared::Ready;
        }
        state.waiters.add(waker);
        Prepared::Sleep([self.as_raw_fd(), state.completions()])
    }

    /// Undoes `prepare` after the thread has slept, and takes events.
    pub(crate) fn woken(&self, waker: &Arc<Waker>) {
        let mut state = self.lock();
        state.waiters.remove(waker);
        state.take_completion_events();
        state.step(&self.id, true);
    }

    /// Waits until `ready` returns a result. Non-blocking calls check it without waiting.
    fn wait<T>(&self, nonblocking: bool, ready: impl FnMut(&mut State) -> Waited<T>) -> Result<T> {
        self.wait_until(nonblocking, None, ready)
    }

    /// Waits as [`Stream::wait`] does. At the deadline `ready` is called once more at least.
    fn wait_until<T>(
        &self,
        nonblocking: bool,
        deadline: Option<Duration>,
        mut ready: impl FnMut(&mut State) -> Waited<T>,
    ) -> Result<T> {
        let mut state = self.lock();
        if let Some(result) = ready(&mut state) {
            return result;
        }
        state.step(&self.id, false);
        if let Some(result) = ready(&mut state) {
            return result;
        }
        if nonblocking {
            state.step(&self.id, true);
            return ready(&mut state).unwrap_or(Err(Errno::AGAIN));
        }
        let spin = Duration::from_micros(Settings::get().polling_time.into());
        let until = sys::now() + spin;
        while sys::now() < until {
            state.step(&self.id, false);
            if let Some(result) = ready(&mut state) {
                return result;
            }
            drop(state);
            core::hint::spin_loop();
            state = self.lock();
        }
        let waker = Waker::mine()?;
        loop {
            state.arm();
            state.step(&self.id, true);
            if let Some(result) = ready(&mut state) {
                return result;
            }
            state.waiters.add(&waker);
            let completions = state.completions();
            drop(state);
            let mut fds = [self.as_raw_fd(), completions, waker.fd()]
                .map(|fd| sys::pollfd(fd, PollFlags::IN));
            let interval = Duration::from_millis(Settings::get().wake_up_interval.into());
            let left = deadline.map(|deadline| deadline.saturating_sub(sys::now()));
            let slept = sys::poll(&mut fds, Some(left.map_or(interval, |t| t.min(interval))));
            if fds[2].revents != 0 {
                waker.clear();
            }
            state = self.lock();
            state.waiters.remove(&waker);
            state.take_completion_events();
            state.step(&self.id, true);
            if let Some(result) = ready(&mut state) {
                return result;
            }
            slept?;
        }
    }
}

impl AsFd for Stream {
    /// The socket's name for programs. It is readable while events of the connection
    /// manager wait, so it says nothing about data: use [`crate::poll()`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.fd()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // If the socket is closed already, this does nothing.
        self.close();
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.id.fd().as_raw_fd()
    }
}

/// The result of preparing to sleep on a socket.
#[derive(Debug)]
pub(crate) enum Prepared {
    /// A wanted event is present.
    Ready,
    /// Descriptors to sleep on; -1 stands for none. `woken` must be called afterwards.
    Sleep([RawFd; 2]),
}
