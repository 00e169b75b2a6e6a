//! Addresses, and the way to a peer.

use core::ffi::c_int;
use std::net::SocketAddr;

use ferroce_control::ANSWER_TIMEOUT;

use super::core::Phase;
use super::{Stream, Waited};
use crate::rdmacm::line::Line;
use crate::rsocket::sys;

impl Stream {
    pub(crate) fn bind(&self, addr: &SocketAddr) -> Result<(), c_int> {
        self.check_family(addr)?;
        let mut core = self.lock();
        if core.phase != Phase::New || core.bound {
            return Err(libc::EINVAL);
        }
        self.id.bind(addr)?;
        core.bound = true;
        Ok(())
    }

    pub(crate) fn connect(&self, addr: &SocketAddr) -> Result<(), c_int> {
        self.check_family(addr)?;
        {
            let mut core = self.lock();
            match core.phase {
                Phase::New => {}
                Phase::Open => return Err(libc::EISCONN),
                Phase::Listening => return Err(libc::EINVAL),
                Phase::Closed => return Err(core.error.take().unwrap_or(libc::EISCONN)),
                _ => {
                    core.step(&self.id, true);
                    return match core.phase {
                        Phase::Open => Ok(()),
                        Phase::Closed => Err(core.error.take().unwrap_or(libc::ECONNREFUSED)),
                        _ => Err(libc::EALREADY),
                    };
                }
            }
            self.id.resolve_addr(addr)?;
            core.phase = Phase::Address;
        }
        let mut patience = sys::now() + ANSWER_TIMEOUT;
        let result = self.wait(self.nonblocking(), |core| -> Waited<()> {
            match core.phase {
                Phase::Open => Some(Ok(())),
                Phase::Closed => Some(Err(core.error.take().unwrap_or(libc::ECONNREFUSED))),
                // The peer's answer comes through ferroced, which may be stopped.
                _ if sys::now() >= patience => {
                    patience = sys::now() + ANSWER_TIMEOUT;
                    Line::get().and_then(Line::probe).err().map(Err)
                }
                _ => None,
            }
        });
        match result {
            Err(libc::EAGAIN) => Err(libc::EINPROGRESS),
            result => result,
        }
    }

    fn check_family(&self, addr: &SocketAddr) -> Result<(), c_int> {
        match (addr, self.family) {
            (SocketAddr::V4(_), libc::AF_INET) | (SocketAddr::V6(_), libc::AF_INET6) => Ok(()),
            _ => Err(libc::EAFNOSUPPORT),
        }
    }
}
