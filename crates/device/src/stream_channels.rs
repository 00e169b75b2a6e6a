//! The wire of an iWARP connection: shared memory, if its other end is on this host.
//!
//! A responder offers ferroced a channel before it sends the Reply, so the initiator, which has
//! the Reply, finds the offer. ferroced introduces the two programs, and the responder announces
//! itself on the channel. The initiator then sends through memory; in all other cases, and if
//! ferroced or the responder does not answer in time, it sends over TCP. No frame differs, so
//! that a peer without ferroced sees nothing of this. [`Wire`] has the rest.

use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use ferroce_control::Error;
use ferroce_control::client::{OpenLink, StreamIntroduction};
use ferroce_iwarp::mpa::Role;
use ferroce_net::has_address;
use ferroce_net::local::{End, Side};
use rustix::net::{SocketAddrAny, getpeername, getsockname};

use crate::local::{Channel, PATIENCE};
use crate::shard::Shard;
use crate::shared_link::SharedLink;
use crate::streams::{Addresses, MemoryStream, StreamSetup, Wire};

/// The longest wait for a responder after one that did not answer in time. Usually it takes 0.1 ms.
const LITTLE_PATIENCE: Duration = Duration::from_millis(10);

/// An answer of ferroced, to the function that gets it.
type Take<T> = Box<dyn FnOnce(Result<T, Error>) + Send>;

/// A place for an answer that a thread waits for.
type Answered<T> = (Mutex<Option<Result<T, Error>>>, Condvar);

impl SharedLink {
    /// Returns the wire of a connection that has been set up.
    pub(crate) fn wire_for(&self, shard: &Shard, setup: &StreamSetup) -> Wire {
        self.local_wire_for(shard, setup).unwrap_or(Wire::Tcp)
    }

    /// Returns shared memory, or the offer of it; none if the connection uses TCP.
    fn local_wire_for(&self, shard: &Shard, setup: &StreamSetup) -> Option<Wire> {
        let link = self.link();
        // A peer that has sent something has chosen TCP.
        if !self.local.is_allowed() || !link.local || !setup.received.is_empty() {
            return None;
        }
        let addresses = addresses(&setup.socket)?;
        let takes_channels =
            shard.with_core(|core, _, _| core.iwarp().is_ok_and(|core| core.takes_channels()));
        if !takes_channels || !has_address(addresses.1.ip(), link.ifindex) {
            return None;
        }
        let slot = shard.slot();
        match setup.params.role {
            Role::Responder => self
                .answer(|open, take| open.offer_stream(slot, addresses, take))
                .map(|()| Wire::Offered(addresses)),
            Role::Initiator => self
                .answer(|open, take| open.introduce_stream(slot, addresses, take))
                .and_then(|introduction| self.await_responder(slot, introduction))
                .map(|stream| Wire::Memory(Box::new(stream))),
        }
    }

    /// Asks ferroced, and waits for the answer. Returns none if ferroced refuses, or does not
    /// answer in time.
    fn answer<T: Send + 'static>(&self, ask: impl FnOnce(&OpenLink, Take<T>) -> bool) -> Option<T> {
        if self.local.is_silent.load(Ordering::Relaxed) {
            return None;
        }
        let answered: Arc<Answered<T>> = Arc::default();
        let (answers, is_silent) = (Arc::clone(&answered), Arc::clone(&self.local.is_silent));
        let take: Take<T> = Box::new(move |answer| {
            let mut place = answers.0.lock().unwrap_or_else(PoisonError::into_inner);
            *place = Some(answer);
            // A thread that has waited in vain stores the opposite under the same lock.
            is_silent.store(false, Ordering::Relaxed);
            answers.1.notify_all();
        });
        if self.with_slots(|open| ask(open, take)) != Some(true) {
            return None;
        }
        let place = answered.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = answered
            .1
            .wait_timeout_while(place, PATIENCE, |answer| answer.is_none());
        let (mut place, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match place.take() {
            Some(Ok(answer)) => Some(answer),
            Some(Err(error)) => {
                tracing::debug!("a connection within the host uses TCP: {error}");
                None
            }
            None => {
                tracing::warn!("ferroced does not answer: connections use TCP instead of memory");
                self.local.is_silent.store(true, Ordering::Relaxed);
                None
            }
        }
    }
}

impl SharedLink {
    /// Waits until the responder has announced itself on a channel. After a wait in vain, as for a program that is
    /// stopped, further waits are short: one thread sets up all connections of the process.
    fn await_responder(&self, slot: u8, introduction: StreamIntroduction) -> Option<MemoryStream> {
        let StreamIntroduction { memory, socket, .. } = introduction;
        let channel = match End::new(slot, memory, socket, Side::First) {
            Ok(end) => Channel::new(end),
            Err(error) => {
                tracing::warn!("a connection within the host uses TCP: {error}");
                return None;
            }
        };
        let patience = match self.local.is_late.load(Ordering::Relaxed) {
            true => LITTLE_PATIENCE,
            false => PATIENCE,
        };
        let is_there = channel.end.await_announcement(patience);
        self.local.is_late.store(!is_there, Ordering::Relaxed);
        is_there.then(|| MemoryStream::new(channel))
    }
}

impl Shard {
    /// Takes a channel for a connection that this program has offered.
    pub(crate) fn stream_introduced(&self, introduction: StreamIntroduction) {
        let StreamIntroduction {
            addresses,
            memory,
            socket,
            ..
        } = introduction;
        match End::new(self.slot(), memory, socket, Side::Second) {
            Ok(end) => self.introduce_stream(addresses, Channel::new(end)),
            Err(error) => tracing::warn!("a connection within the host uses TCP: {error}"),
        }
    }
}

/// Returns the addresses of a connection, in a form that both ends have.
fn addresses(socket: &OwnedFd) -> Option<Addresses> {
    let local = plain(getsockname(socket).ok()?)?;
    let peer = plain(getpeername(socket).ok()??)?;
    Some((local, peer))
}

/// Returns an address without a flow label; one of IPv4 as such.
fn plain(address: SocketAddrAny) -> Option<SocketAddr> {
    let mut address = SocketAddr::try_from(address).ok()?;
    match &mut address {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_none() => v6.set_flowinfo(0),
        other => *other = SocketAddr::new(other.ip().to_canonical(), other.port()),
    }
    Some(address)
}
