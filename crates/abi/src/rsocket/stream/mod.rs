//! Stream sockets.
//!
//! One lock keeps the state; it is held for moments, never while waiting or while bytes are
//! copied. Two more make senders, and receivers, take turns: one thread may send
//! while another receives.

mod accept;
mod close;
mod connect;
mod core;
mod iomap;
mod keepalive;
mod options;
mod transfer;

use ::core::ffi::c_int;
use ::core::sync::atomic::{AtomicBool, Ordering};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::PollFlags;

use crate::ffi::RDMA_PS_TCP;

use super::id::Id;
use super::settings::Settings;
use super::sys;
use super::wait::Waker;

use self::core::{Core, Phase};
pub(crate) use self::options::Options;

/// A stream socket.
#[derive(Debug)]
pub(crate) struct Stream {
    core: Mutex<Core>,
    sending: Mutex<()>,
    receiving: Mutex<()>,
    nonblocking: AtomicBool,
    family: c_int,
    /// Goes last: the queue pair in the core belongs to it.
    id: Id,
}

/// What a thread waits for: it says so when it is there.
type Waited<T> = Option<Result<T, c_int>>;

impl Stream {
    pub(crate) fn new(family: c_int) -> Result<Stream, c_int> {
        let options = Options::new(Settings::get());
        Ok(Stream::with(
            Id::new(RDMA_PS_TCP)?,
            family,
            Core::new(options),
        ))
    }

    fn with(id: Id, family: c_int, core: Core) -> Stream {
        Stream {
            core: Mutex::new(core),
            sending: Mutex::new(()),
            receiving: Mutex::new(()),
            nonblocking: AtomicBool::new(false),
            family,
            id,
        }
    }

    /// The number that programs know it by.
    pub(crate) fn fd(&self) -> c_int {
        self.id.fd()
    }

    pub(crate) fn nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    pub(crate) fn local(&self) -> Option<SocketAddr> {
        let _stable = self.lock();
        self.id.local()
    }

    /// The address of a socket that has none yet.
    pub(crate) fn any(&self) -> SocketAddr {
        let ip: IpAddr = match self.family {
            libc::AF_INET6 => [0; 16].into(),
            _ => [0; 4].into(),
        };
        SocketAddr::new(ip, 0)
    }

    /// Who has connected to us.
    pub(crate) fn caller(&self) -> Option<SocketAddr> {
        self.id.peer()
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        let core = self.lock();
        (core.was_open || core.phase == Phase::Accepting)
            .then(|| self.id.peer())
            .flatten()
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which of the wanted events are there, and those that always count.
    pub(crate) fn poll(&self, wanted: PollFlags) -> PollFlags {
        let mut core = self.lock();
        let ready = core.ready(wanted);
        if !ready.is_empty() && !core.is_opening() {
            return ready;
        }
        core.step(&self.id, true);
        core.ready(wanted)
    }

    /// Before a thread sleeps: which descriptors to sleep on, or what has come up.
    pub(crate) fn prepare(&self, wanted: PollFlags, waker: &std::sync::Arc<Waker>) -> Prepared {
        let mut core = self.lock();
        core.arm();
        core.step(&self.id, true);
        if !core.ready(wanted).is_empty() {
            return Prepared::Ready;
        }
        core.waiters.add(waker);
        Prepared::Sleep([self.id.fd(), core.completions()])
    }

    /// After it slept.
    pub(crate) fn woken(&self, waker: &std::sync::Arc<Waker>) {
        let mut core = self.lock();
        core.waiters.remove(waker);
        core.take_completion_events();
        core.step(&self.id, true);
    }

    /// Waits until `ready` says that something is there; looks at least once.
    fn wait<T>(
        &self,
        nonblocking: bool,
        mut ready: impl FnMut(&mut Core) -> Waited<T>,
    ) -> Result<T, c_int> {
        let mut core = self.lock();
        if let Some(result) = ready(&mut core) {
            return result;
        }
        core.step(&self.id, false);
        if let Some(result) = ready(&mut core) {
            return result;
        }
        if nonblocking {
            core.step(&self.id, true);
            return ready(&mut core).unwrap_or(Err(libc::EAGAIN));
        }
        let spin = Duration::from_micros(Settings::get().polling_time.into());
        let until = sys::now() + spin;
        while sys::now() < until {
            core.step(&self.id, false);
            if let Some(result) = ready(&mut core) {
                return result;
            }
            drop(core);
            ::core::hint::spin_loop();
            core = self.lock();
        }
        let waker = Waker::mine()?;
        loop {
            core.arm();
            core.step(&self.id, true);
            if let Some(result) = ready(&mut core) {
                return result;
            }
            core.waiters.add(&waker);
            let completions = core.completions();
            drop(core);
            let mut fds =
                [self.id.fd(), completions, waker.fd()].map(|fd| sys::pollfd(fd, PollFlags::IN));
            let interval = Settings::get().wake_up_interval;
            let slept = sys::poll(&mut fds, Some(Duration::from_millis(interval.into())));
            if fds[2].revents != 0 {
                waker.clear();
            }
            core = self.lock();
            core.waiters.remove(&waker);
            core.take_completion_events();
            core.step(&self.id, true);
            if let Some(result) = ready(&mut core) {
                return result;
            }
            slept?;
        }
    }
}

/// What to do instead of sleeping, or where to sleep.
#[derive(Debug)]
pub(crate) enum Prepared {
    Ready,
    /// Descriptors; -1 stands for none. `woken` must be called afterwards.
    Sleep([c_int; 2]),
}
