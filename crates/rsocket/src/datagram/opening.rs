//! Opening the queue pairs of local addresses.
//!
//! A queue pair needs a device and a port, for which ferroced is asked. So it is opened
//! without the lock of the socket: by the thread that sends, or by a thread of its own if the
//! program does not want to wait or a peer is the cause. A peer names the address that it has
//! sent to. The number of attempts on behalf of peers is limited, and a failed one is not
//! repeated for some time: peers must not keep this process and ferroced busy.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferroce_device::start_thread;

use super::local::Local;
use super::state::State;
use super::{Datagram, lock, udp};
use crate::queue::Sizes;
use crate::{Errno, Result, sys};

/// Time before an address that could not be opened is tried again for a peer.
const RETRY: Duration = Duration::from_secs(10);
/// Maximum number of addresses that are being opened or have failed. Datagrams to other
/// addresses still arrive, over UDP.
const MAX_ATTEMPTS: usize = 16;

/// An attempt to open the queue pair of a local address.
#[derive(Debug)]
pub(super) enum Attempt {
    Opening {
        /// True if the program wants to send from the address.
        for_sender: bool,
    },
    Failed {
        errno: Errno,
        /// True until a sender has got the error.
        for_sender: bool,
        /// Time of the next attempt for a peer.
        until: Duration,
    },
}

impl Attempt {
    /// True if a sender waits for the end of the attempt.
    pub(super) fn delays_sender(&self) -> bool {
        matches!(self, Attempt::Opening { for_sender: true })
    }

    fn is_over(&self, now: Duration) -> bool {
        match self {
            Attempt::Opening { .. } => false,
            Attempt::Failed { until, .. } => now >= *until,
        }
    }
}

impl Datagram {
    /// Opens the queue pair of a local address for a sender. A non-blocking call fails with
    /// EAGAIN until a thread has opened it.
    pub(super) fn open_for_sender(&self, ip: IpAddr, nonblocking: bool) -> Result<()> {
        loop {
            let sizes = {
                let mut state = self.lock();
                if state.local(ip).is_some() {
                    return Ok(());
                }
                match state.attempts.get_mut(&ip) {
                    Some(Attempt::Opening { for_sender }) => {
                        *for_sender = true;
                        None
                    }
                    Some(Attempt::Failed {
                        errno,
                        for_sender: for_sender @ true,
                        ..
                    }) => {
                        *for_sender = false;
                        return Err(*errno);
                    }
                    Some(Attempt::Failed { .. }) | None => {
                        let opening = Attempt::Opening { for_sender: true };
                        state.attempts.insert(ip, opening);
                        Some(state.sizes)
                    }
                }
            };
            match (sizes, nonblocking) {
                (Some(sizes), false) => finish(&self.state, ip, Local::new(ip, sizes)),
                (Some(sizes), true) => {
                    if let Err(errno) = self.open_in_thread(ip, sizes) {
                        finish(&self.state, ip, Err(errno));
                    }
                    return Err(Errno::AGAIN);
                }
                (None, true) => return Err(Errno::AGAIN),
                (None, false) => self.wait(false, |state| {
                    let opening = state.attempts.get(&ip);
                    (!opening.is_some_and(Attempt::delays_sender)).then_some(Ok(()))
                })?,
            }
        }
    }

    /// Opens the queue pair of the address that a peer has sent to, in a thread.
    pub(super) fn open_for_peer(&self, state: &mut State, ip: IpAddr) {
        let now = sys::now();
        state.attempts.retain(|_, attempt| !attempt.is_over(now));
        let is_full = state.attempts.len() >= MAX_ATTEMPTS;
        if is_full || state.attempts.contains_key(&ip) || !udp::may_be_local(ip) {
            return;
        }
        let for_sender = false;
        let attempt = match self.open_in_thread(ip, state.sizes) {
            Ok(()) => Attempt::Opening { for_sender },
            Err(errno) => Attempt::Failed {
                errno,
                for_sender,
                until: now + RETRY,
            },
        };
        state.attempts.insert(ip, attempt);
    }

    fn open_in_thread(&self, ip: IpAddr, sizes: Sizes) -> Result<()> {
        // The thread does not keep a closed socket open.
        let state = Arc::downgrade(&self.state);
        let work = move || {
            let opened = Local::new(ip, sizes);
            if let Some(state) = state.upgrade() {
                finish(&state, ip, opened);
            }
        };
        // The caller must not wait for ferroced.
        let started = start_thread("ferroce-open".into(), work);
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        started.map(drop).map_err(errno)
    }
}

/// Ends an attempt.
fn finish(state: &Mutex<State>, ip: IpAddr, opened: Result<Local>) {
    let mut state = lock(state);
    let attempt = state.attempts.remove(&ip);
    let added = opened.and_then(|local| state.add(local));
    if let Err(errno) = added {
        tracing::debug!("no queue pair for datagrams of {ip}: {errno}");
        let failed = Attempt::Failed {
            errno,
            for_sender: attempt.is_some_and(|attempt| attempt.delays_sender()),
            until: sys::now() + RETRY,
        };
        state.attempts.insert(ip, failed);
    }
    state.waiters.wake_all();
}
