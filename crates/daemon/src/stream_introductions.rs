//! Introductions for TCP connections: channels through shared memory between the two programs of a
//! connection on this host.
//!
//! The program that accepts a connection offers a channel, before it accepts. The program that
//! connected asks for it afterwards, and both get their ends. Neither knows the other's slot, so
//! the addresses of the connection name the offer. A program can offer any addresses, but only
//! programs of the same user are introduced, and the program that offered checks that the
//! connection is its own.
//!
//! An offer that no program asks for, because the other end is not Ferroce, stays until newer
//! ones of its slot take its place.

use core::net::SocketAddr;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use ferroce_control::{AttachmentNumber, Reply, SlotKind};

use crate::client::{Client, ClientId};
use crate::introductions::new_channel;
use crate::refusal::Refusal;
use crate::server::Server;

/// Most offers of a slot. One that is dropped costs the connection its shared memory.
const MOST_OFFERS: usize = 128;

/// The addresses of a connection: that of the program, and that of the other end.
type Addresses = (SocketAddr, SocketAddr);

/// Connections for which programs take a channel, oldest first.
#[derive(Debug, Default)]
pub(crate) struct StreamOffers(VecDeque<StreamOffer>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StreamOffer {
    slot: u8,
    addresses: Addresses,
}

impl StreamOffers {
    /// Adds an offer of a slot. The oldest one of the slot ends if there are too many.
    fn add(&mut self, offer: StreamOffer) {
        self.0.retain(|old| *old != offer);
        if self.0.iter().filter(|o| o.slot == offer.slot).count() >= MOST_OFFERS
            && let Some(oldest) = self.0.iter().position(|o| o.slot == offer.slot)
        {
            self.0.remove(oldest);
        }
        self.0.push_back(offer);
    }

    /// Returns the newest offer of a connection whose slot fits.
    fn find(&self, addresses: Addresses, fits: impl Fn(u8) -> bool) -> Option<StreamOffer> {
        let mut newest_first = self.0.iter().rev();
        newest_first
            .find(|offer| offer.addresses == addresses && fits(offer.slot))
            .copied()
    }

    /// Ends an offer.
    fn remove(&mut self, offer: StreamOffer) {
        self.0.retain(|other| *other != offer);
    }

    /// Forgets the offers of slots whose owner has ended.
    pub(crate) fn forget(&mut self, slots: &[u8]) {
        self.0.retain(|offer| !slots.contains(&offer.slot));
    }
}

impl Server {
    /// Takes the offer of a channel for a connection of a client.
    pub(crate) fn offer_stream(
        &mut self,
        client: ClientId,
        attachment: AttachmentNumber,
        slot: u8,
        addresses: Addresses,
    ) -> Result<Reply, Refusal> {
        let owner = self.own_slot(client, attachment, SlotKind::Streams, slot)?;
        self.check_local(owner)?;
        self.stream_offers.add(StreamOffer { slot, addresses });
        Ok(Reply::Done)
    }

    /// Creates a channel for a connection of a client whose other end has offered one, and sends
    /// the other program its end. Returns the reply with the end of the client.
    pub(crate) fn introduce_stream(
        &mut self,
        client: ClientId,
        attachment: AttachmentNumber,
        slot: u8,
        (local, peer): Addresses,
    ) -> Result<(Reply, Vec<OwnedFd>), Refusal> {
        let kind = SlotKind::Streams;
        let owner = self.own_slot(client, attachment, kind, slot)?;
        self.check_local(owner)?;
        let user = self.user_of(client);
        let is_of_user = |slot| {
            let owner = self.owner_of(kind, slot);
            let attached = owner.and_then(|owner| owner.attachment);
            user.is_some() && attached.is_some_and(|theirs| self.user_of(theirs.client) == user)
        };
        let none = || {
            let reason = format!("no program of this user has offered memory for {peer}");
            Refusal::new(libc::ENXIO, reason)
        };
        let offer = self.stream_offers.find((peer, local), is_of_user);
        let offer = offer.ok_or_else(none)?;
        let other = self.owner_of(kind, offer.slot).ok_or_else(none)?;
        let theirs = other.attachment.ok_or_else(none)?;
        self.check_local(other)?;
        if self
            .clients
            .get(&theirs.client)
            .is_none_or(Client::is_behind)
        {
            let reason = "the other program does not read messages, which carry descriptors";
            return Err(Refusal::new(libc::ENXIO, reason));
        }
        self.stream_offers.remove(offer);
        let [ours, their_end] = new_channel()?;
        tracing::debug!(%local, %peer, "ends of a connection introduced");
        let event = Reply::StreamIntroduced {
            attachment: theirs.number,
            slot: offer.slot,
            local: peer,
            peer: local,
        };
        self.send_event(theirs.client, &event, their_end);
        let reply = Reply::StreamIntroduced {
            attachment,
            slot,
            local,
            peer,
        };
        Ok((reply, ours))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(port: u16) -> Addresses {
        let here = |port| SocketAddr::from(([127, 0, 0, 1], port));
        (here(port), here(1))
    }

    fn offer(slot: u8, port: u16) -> StreamOffer {
        StreamOffer {
            slot,
            addresses: addresses(port),
        }
    }

    #[test]
    fn offer_is_taken_once() {
        let mut offers = StreamOffers::default();
        offers.add(offer(3, 7));
        offers.add(offer(3, 7));
        assert_eq!(offers.find(addresses(8), |_| true), None);
        assert_eq!(offers.find(addresses(7), |_| false), None, "another user's");
        let found = offers.find(addresses(7), |_| true);
        assert_eq!(found, Some(offer(3, 7)));
        offers.remove(offer(3, 7));
        assert_eq!(offers.find(addresses(7), |_| true), None);
    }

    #[test]
    fn offers_of_a_slot_are_limited_and_end_with_it() {
        let mut offers = StreamOffers::default();
        offers.add(offer(4, 1));
        for port in 0..=MOST_OFFERS as u16 {
            offers.add(offer(3, port));
        }
        let of_slot_3 = |port| offers.find(addresses(port), |slot| slot == 3);
        assert_eq!(of_slot_3(0), None, "the oldest");
        assert_eq!(of_slot_3(1), Some(offer(3, 1)));
        offers.forget(&[3]);
        assert_eq!(offers.0, [offer(4, 1)]);
    }
}
