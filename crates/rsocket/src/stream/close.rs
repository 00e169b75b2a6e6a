//! Shutdown and close.

use std::net::Shutdown;
use std::time::Duration;

use super::Stream;
use super::state::Phase;
use crate::wire::Control;
use crate::{Errno, Result, sys};

/// Time in which the peer of a closing socket must take a byte, as the engine of iWARP requires
/// after a disconnect.
const PATIENCE: Duration = Duration::from_secs(10);
/// Empty WRITEs that hasten the acknowledgement of the last bytes. Linux delays it by 40 ms
/// after a single short segment, and sends it when the program reads the second one.
const HINTS: u32 = 3;
/// Pauses between two looks at the bytes that TCP has not delivered.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LAST_PAUSE: Duration = Duration::from_millis(5);

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
        self.drain()?;
        self.deliver();
        Ok(())
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

    /// Waits on iWARP until TCP has delivered all bytes, or the peer takes none for
    /// [`PATIENCE`]. There a work request completes when TCP accepts it. A TCP socket that is
    /// closed, at the end of the process at the latest, answers the peer's next credits with a
    /// reset, and drops the bytes that it has not delivered.
    fn deliver(&self) {
        let mut least = usize::MAX;
        let mut until = Duration::MAX;
        let mut pause = FIRST_PAUSE;
        let mut hints = HINTS;
        loop {
            let mut state = self.lock();
            let Some(connection) = &mut state.connection else {
                return;
            };
            let left = connection.queue.undelivered();
            if left == 0 {
                return;
            }
            if hints > 0 {
                hints -= 1;
                // The connection may have ended meanwhile.
                let _sent = connection.control(Control::Keepalive);
            }
            drop(state);
            let now = sys::now();
            if left < least {
                (least, until) = (left, now + PATIENCE);
            }
            if now >= until {
                tracing::info!("the peer of an rsocket does not take its last {left} bytes");
                return;
            }
            // The kernel reports no event when the last byte is acknowledged.
            let _interrupted = sys::poll(&mut [], Some(pause));
            pause = (2 * pause).min(LAST_PAUSE);
        }
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
