//! Binding and connecting.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::net::AddressFamily;

use super::Stream;
use super::state::Phase;
use crate::{Errno, Result, cm, sys};

/// Time without an answer of the peer after which `connect` checks whether ferroced answers.
const SILENCE: Duration = Duration::from_secs(2);

/// The result of waiting for a connection.
enum Progress {
    Connected,
    /// The connection manager has been silent for [`SILENCE`].
    Silence,
}

impl Stream {
    /// Binds the socket to a local address.
    ///
    /// # Errors
    ///
    /// EINVAL if it is bound already; EADDRINUSE, EADDRNOTAVAIL; EALREADY while another
    /// thread binds it; EBADF if another thread closes it meanwhile.
    pub fn bind(&self, addr: &SocketAddr) -> Result<()> {
        self.check_family(addr)?;
        {
            let mut state = self.lock();
            if state.calls_ferroced {
                return Err(Errno::ALREADY);
            }
            if state.phase != Phase::New || state.bound {
                return Err(Errno::INVAL);
            }
            state.calls_ferroced = true;
        }
        let bound = self.id.bind(*addr);
        let mut state = self.lock();
        state.calls_ferroced = false;
        state.bound = bound.is_ok();
        match state.phase {
            Phase::Closed => Err(Errno::BADF),
            _ => bound,
        }
    }

    /// Connects to a listener. A non-blocking socket fails with EINPROGRESS and is writable
    /// when the connection is established or has failed.
    ///
    /// # Errors
    ///
    /// ECONNREFUSED, EHOSTUNREACH, ETIMEDOUT; EISCONN, EALREADY.
    pub fn connect(&self, addr: &SocketAddr) -> Result<()> {
        self.check_family(addr)?;
        {
            let mut state = self.lock();
            match state.phase {
                Phase::New if state.calls_ferroced => return Err(Errno::ALREADY),
                Phase::New => {}
                Phase::Open => return Err(Errno::ISCONN),
                Phase::Listening => return Err(Errno::INVAL),
                Phase::Closed => return Err(state.error.take().unwrap_or(Errno::ISCONN)),
                _ => {
                    state.step(&self.id, true);
                    return match state.phase {
                        Phase::Open => Ok(()),
                        Phase::Closed => Err(state.error.take().unwrap_or(Errno::CONNREFUSED)),
                        _ => Err(Errno::ALREADY),
                    };
                }
            }
            state.phase = Phase::Address;
            state.calls_ferroced = true;
        }
        let resolving = self.id.resolve_addr(*addr);
        {
            let mut state = self.lock();
            state.calls_ferroced = false;
            if resolving.is_err() && state.phase == Phase::Address {
                state.phase = Phase::New;
                state.waiters.wake_all();
            }
        }
        resolving?;
        loop {
            match self.await_connection() {
                Ok(Progress::Connected) => return Ok(()),
                // The peer's answer comes through ferroced, which may be stopped. The probe
                // blocks, so it runs without the lock: other threads may use the socket.
                Ok(Progress::Silence) => cm::probe()?,
                Err(Errno::AGAIN) => return Err(Errno::INPROGRESS),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn await_connection(&self) -> Result<Progress> {
        let deadline = sys::now() + SILENCE;
        self.wait_until(self.nonblocking(), Some(deadline), |state| {
            match state.phase {
                Phase::Open => Some(Ok(Progress::Connected)),
                Phase::Closed => Some(Err(state.error.take().unwrap_or(Errno::CONNREFUSED))),
                _ if sys::now() >= deadline => Some(Ok(Progress::Silence)),
                _ => None,
            }
        })
    }

    fn check_family(&self, addr: &SocketAddr) -> Result<()> {
        let family = match addr {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        match family == self.family {
            true => Ok(()),
            false => Err(Errno::AFNOSUPPORT),
        }
    }
}
