//! Shutdown and close.

use std::net::Shutdown;

use super::Stream;
use super::state::Phase;
use crate::wire::Control;
use crate::{Errno, Result};

impl Stream {
    /// Ends one direction, or both. Waits until the data that was sent is acknowledged.
    ///
    /// # Errors
    ///
    /// ENOTCONN if the socket is not connected.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        let control = {
            let mut state = self.lock();
            match state.phase {
                Phase::Open => {}
                Phase::Closed if state.was_open => return Ok(()),
                // Threads in `accept` return.
                Phase::Listening => {
                    state.close(None);
                    return Ok(());
                }
                _ => return Err(Errno::NOTCONN),
            }
            match how {
                Shutdown::Both => {
                    state.readable = false;
                    state.writable = false;
                }
                Shutdown::Write => state.writable = false,
                Shutdown::Read => state.readable = false,
            }
            state.shut_by_us |= !state.writable;
            state.waiters.wake_all();
            match (state.readable, state.writable) {
                // The protocol has no message for a closed receiving side.
                (_, true) => return Ok(()),
                (true, false) => Control::Shutdown,
                (false, false) => Control::Disconnect,
            }
        };
        self.send_control(control)?;
        self.drain()
    }

    /// Sends a control message as soon as there is a slot for it.
    fn send_control(&self, control: Control) -> Result<()> {
        restarted(|| {
            self.wait(false, |state| {
                let connection = match (state.phase, &mut state.connection) {
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

    /// Waits until everything is acknowledged, or the connection ends.
    fn drain(&self) -> Result<()> {
        restarted(|| {
            self.wait(false, |state| match (state.phase, &state.connection) {
                (Phase::Open, Some(connection)) if !connection.idle() => None,
                _ => Some(Ok(())),
            })
        })
    }

    /// Closes the socket for all threads that use it. With a linger time of 0, data that is
    /// not acknowledged is lost. Iomaps are unmapped when this returns: the program may free
    /// their memory. The queue pair and the descriptor go with the last reference.
    pub fn close(&self) {
        let abort = self.lock().options.linger == Some(0);
        if !abort {
            let _not_connected = self.shutdown(Shutdown::Both);
        }
        let mut state = self.lock();
        let requests = core::mem::take(&mut state.requests);
        state.close(None);
        state.iomaps.close();
        drop(state);
        // Dropping a request rejects it through ferroced: not while the socket is locked.
        drop(requests);
    }

    /// Sends a keepalive. A peer that does not acknowledge it is dead.
    pub(super) fn keep_alive(&self) {
        let mut state = self.lock();
        if let (Phase::Open, Some(connection)) = (state.phase, &mut state.connection) {
            if let Err(errno) = connection.control(Control::Keepalive) {
                state.close(Some(errno));
            } else {
                state.step(&self.id, false);
            }
        }
    }
}

/// Repeats a wait that a signal interrupts: closing must not lose data because of a signal.
fn restarted(mut wait: impl FnMut() -> Result<()>) -> Result<()> {
    loop {
        match wait() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
