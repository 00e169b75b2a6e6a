//! The end of a stream.

use core::ffi::c_int;

use super::Stream;
use super::core::Phase;
use crate::rsocket::wire::Control;

impl Stream {
    pub(crate) fn shutdown(&self, how: c_int) -> Result<(), c_int> {
        let control = {
            let mut core = self.lock();
            match core.phase {
                Phase::Open => {}
                Phase::Closed if core.was_open => return Ok(()),
                // Whoever waits for connections waits no longer.
                Phase::Listening => {
                    core.close(None);
                    return Ok(());
                }
                _ => return Err(libc::ENOTCONN),
            }
            match how {
                libc::SHUT_RDWR => {
                    core.readable = false;
                    core.writable = false;
                }
                libc::SHUT_WR => core.writable = false,
                libc::SHUT_RD => core.readable = false,
                _ => return Err(libc::EINVAL),
            }
            core.shut_by_us |= !core.writable;
            core.waiters.wake_all();
            match (core.readable, core.writable) {
                // The peer need not know that nobody reads what it sends.
                (_, true) => return Ok(()),
                (true, false) => Control::Shutdown,
                (false, false) => Control::Disconnect,
            }
        };
        self.say(control)?;
        self.drain()
    }

    /// Sends a control message, as soon as there is room for it.
    fn say(&self, control: Control) -> Result<(), c_int> {
        self.patiently(|| {
            self.wait(false, |core| {
                let connection = match (core.phase, &mut core.connection) {
                    (Phase::Open, Some(connection)) => connection,
                    _ => return Some(Ok(())),
                };
                match connection.control(control) {
                    Ok(true) => Some(Ok(())),
                    Ok(false) => None,
                    Err(errno) => Some(Err(errno)),
                }
            })
        })
    }

    /// Waits until everything has arrived, or the peer is gone.
    fn drain(&self) -> Result<(), c_int> {
        self.patiently(|| {
            self.wait(false, |core| match (core.phase, &core.connection) {
                (Phase::Open, Some(connection)) if !connection.idle() => None,
                _ => Some(Ok(())),
            })
        })
    }

    /// A socket that closes does not leave its data behind because of a signal.
    fn patiently(&self, mut wait: impl FnMut() -> Result<(), c_int>) -> Result<(), c_int> {
        loop {
            match wait() {
                Err(libc::EINTR) => {}
                result => return result,
            }
        }
    }

    /// Ends it for everybody who still uses it. What it is made of goes with the last one.
    pub(crate) fn close(&self) {
        let abort = self.lock().options.linger == Some(0);
        if !abort {
            let _as_good_as_closed = self.shutdown(libc::SHUT_RDWR);
        }
        let mut core = self.lock();
        core.requests.clear();
        core.close(None);
    }

    /// Says to the peer that we are here, if nothing else does.
    pub(super) fn keep_alive(&self) {
        let mut core = self.lock();
        if let (Phase::Open, Some(connection)) = (core.phase, &mut core.connection) {
            if let Err(errno) = connection.control(Control::Keepalive) {
                core.close(Some(errno));
            } else {
                core.step(&self.id, false);
            }
        }
    }
}
