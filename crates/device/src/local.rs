//! Channels to programs of this host: which queue pairs use shared memory.
//!
//! A queue pair that moves to RTR, with a peer on this host, asks for a channel to the slot of
//! its peer. ferroced introduces the two programs to each other, unless they have a channel
//! already. The queue pair then sends through memory until its next move to RTR: packets of
//! two wires could overtake each other. If there is no channel in time, or ferroced refuses
//! one, the queue pair uses UDP. [`datagram_routes`](crate::datagram_routes) does the same for
//! the destinations of UD queue pairs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use ferroce_control::client::Introduction;
use ferroce_net::local::{End, Readiness, Side};

use crate::datagram_routes::SoughtRoutes;
use crate::error::Error;
use crate::fork::NotForChildren;
use crate::shard::Shard;
use crate::shared_link::SharedLink;

/// Environment variable that chooses the wire between programs of one host.
const VARIABLE: &str = "FERROCE_WIRE";
/// Longest time that a move to RTR waits for ferroced, and for the other program to map the
/// memory. Both take well below a millisecond, unless the host is busy.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// The wires that a device may use between programs of one host.
#[derive(Debug)]
pub(crate) struct LocalWire {
    /// False if `FERROCE_WIRE` is `udp` or `tcp`.
    is_allowed: bool,
    /// True if ferroced has not answered in time: it is stopped, and no further queue pair waits.
    pub(crate) is_silent: Arc<AtomicBool>,
    /// True if the last responder of an iWARP connection has not answered in time.
    pub(crate) is_late: AtomicBool,
    /// Destinations of datagrams to which a route is sought.
    pub(crate) sought: SoughtRoutes,
}

/// A channel of a shard.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) end: Arc<End>,
    /// A copy of the socket in a forked child would hide the end of this process.
    _not_for_children: NotForChildren,
}

/// An answer of ferroced that a thread waits for.
type Answered = (Mutex<bool>, Condvar);

impl LocalWire {
    /// Reads the choice of the user.
    ///
    /// # Errors
    /// If the environment names a wire that does not exist.
    pub(crate) fn new() -> Result<LocalWire, Error> {
        let chosen = std::env::var(VARIABLE).unwrap_or_default();
        Ok(LocalWire {
            is_allowed: is_allowed(&chosen)?,
            is_silent: Arc::default(),
            is_late: AtomicBool::new(false),
            sought: SoughtRoutes::default(),
        })
    }

    pub(crate) fn is_allowed(&self) -> bool {
        self.is_allowed
    }
}

fn is_allowed(chosen: &str) -> Result<bool, Error> {
    match chosen {
        "" | "local" => Ok(true),
        "udp" | "tcp" => Ok(false),
        other => {
            let what = format!(
                "{VARIABLE} is `{other}`; use `udp` or `tcp` for the network between programs of this \
                 host (UDP on links of type rxe, TCP on type siw), or `local` for shared memory on \
                 links with `local on`, the default"
            );
            Err(Error::system("wire")(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                what,
            )))
        }
    }
}

impl Channel {
    pub(crate) fn new(end: End) -> Channel {
        let mut not_for_children = NotForChildren::default();
        end.descriptors().for_each(|fd| not_for_children.add(fd));
        Channel {
            end: Arc::new(end),
            _not_for_children: not_for_children,
        }
    }
}

impl SharedLink {
    /// Returns true if a shard has a channel to a slot of this host, or gets one now.
    pub(crate) fn reaches_in_memory(&self, shard: &Arc<Shard>, peer: u8) -> bool {
        // Slot 0 is that of ferroced.
        if !self.local.is_allowed || peer == 0 || !self.link().local || shard.is_stopped() {
            return false;
        }
        if self.end_to(shard, peer).is_none() {
            self.connect_in_memory(shard, peer);
        }
        let Some(end) = self.end_to(shard, peer) else {
            return false;
        };
        let is_ready = end.await_ready(PATIENCE) == Readiness::Ready;
        shard.doorbell().take_bell(&end);
        is_ready
    }

    /// Returns the end of a channel whose other end is open.
    fn end_to(&self, shard: &Shard, peer: u8) -> Option<Arc<End>> {
        let end = shard.doorbell().end_to(peer)?;
        if end.readiness() == Readiness::Closed {
            // Another program may have the slot by now.
            end.close();
            shard.forget_closed();
            return None;
        }
        Some(end)
    }

    /// Creates a channel to a slot of this device, or asks ferroced for one to another program.
    fn connect_in_memory(&self, shard: &Arc<Shard>, peer: u8) {
        let mut own = self.shards.iter();
        let connected = match own.find(|own| own.slot() == peer) {
            Some(own) if Arc::ptr_eq(own, shard) => {
                End::to_itself(peer).and_then(|end| shard.connect(Channel::new(end)))
            }
            Some(own) => End::pair([shard.slot(), peer]).and_then(|[first, second]| {
                own.connect(Channel::new(second))?;
                shard.connect(Channel::new(first))
            }),
            None => {
                self.ask_for_channel(shard, peer);
                Ok(())
            }
        };
        if let Err(error) = connected {
            tracing::warn!("no channel to slot {peer} in shared memory, UDP is used: {error}");
        }
    }

    /// Asks ferroced for a channel to another program, and waits for the answer.
    fn ask_for_channel(&self, shard: &Arc<Shard>, peer: u8) {
        if self.local.is_silent.load(Ordering::Relaxed) {
            return;
        }
        let answered: Arc<Answered> = Arc::default();
        let (taker, answers) = (Arc::downgrade(shard), Arc::clone(&answered));
        let is_silent = Arc::clone(&self.local.is_silent);
        let asked = self.with_attachment(|attachment| {
            attachment.introduce(shard.slot(), peer, move |introduction| {
                match (introduction, taker.upgrade()) {
                    (Ok(introduction), Some(shard)) => shard.introduced(introduction),
                    (Err(error), _) => tracing::debug!("slot {peer} is reached by UDP: {error}"),
                    (Ok(_), None) => {}
                }
                let mut done = answers.0.lock().unwrap_or_else(PoisonError::into_inner);
                *done = true;
                // A thread that has waited in vain stores the opposite under the same lock.
                is_silent.store(false, Ordering::Relaxed);
                answers.1.notify_all();
            })
        });
        if asked != Some(true) {
            return;
        }
        let done = answered.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = answered.1.wait_timeout_while(done, PATIENCE, |done| !*done);
        let (done, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if !*done {
            tracing::warn!("ferroced does not answer: queue pairs use UDP instead of memory");
            self.local.is_silent.store(true, Ordering::Relaxed);
        }
    }
}

impl Shard {
    /// Takes a channel from ferroced.
    pub(crate) fn introduced(&self, introduction: Introduction) {
        let Introduction {
            peer,
            asked,
            memory,
            socket,
            ..
        } = introduction;
        let side = match asked {
            true => Side::First,
            false => Side::Second,
        };
        let connected =
            End::new(peer, memory, socket, side).and_then(|end| self.connect(Channel::new(end)));
        if let Err(error) = connected {
            tracing::warn!("no channel to slot {peer} in shared memory, UDP is used: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_is_chosen_by_name_and_a_wrong_name_is_refused() {
        assert!(is_allowed("").unwrap());
        assert!(is_allowed("local").unwrap());
        assert!(!is_allowed("udp").unwrap());
        assert!(!is_allowed("tcp").unwrap());
        let error = is_allowed("UDP").unwrap_err().to_string();
        assert!(
            error.contains("FERROCE_WIRE is `UDP`") && error.contains("use `udp`"),
            "{error}"
        );
    }
}
