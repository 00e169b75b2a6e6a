//! Introductions: channels through shared memory between two programs of one user.
//!
//! ferroced creates the memory and a pair of sockets, sends one end to each program, and keeps
//! neither. It remembers which slots it has introduced to each other, so that a pair has one
//! channel. After a restart it has forgotten that: programs ask only for channels that they
//! do not have.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use ferroce_control::{AttachmentNumber, Reply, SlotKind};
use ferroce_net::local::create_channel;

use crate::client::ClientId;
use crate::owner::Owner;
use crate::refusal::Refusal;
use crate::server::Server;
use crate::user_namespace;

/// The pairs of slots that have a channel, the lower slot first.
#[derive(Debug, Default)]
pub(crate) struct Introductions(BTreeSet<(u8, u8)>);

impl Introductions {
    /// Notes a channel between two slots. Returns false if they have one.
    fn add(&mut self, one: u8, other: u8) -> bool {
        self.0.insert((one.min(other), one.max(other)))
    }

    /// Forgets the channel between two slots, which could not be created.
    fn forget_pair(&mut self, one: u8, other: u8) {
        self.0.remove(&(one.min(other), one.max(other)));
    }

    /// Forgets the channels of a slot, whose owner has ended.
    pub(crate) fn forget(&mut self, slot: u8) {
        self.0.retain(|(low, high)| *low != slot && *high != slot);
    }
}

impl Server {
    /// Creates a channel between a slot of a client and a slot of another program, and sends the
    /// other program its end. Returns the reply with the end of the client.
    pub(crate) fn introduce(
        &mut self,
        client: ClientId,
        attachment: AttachmentNumber,
        slot: u8,
        peer: u8,
    ) -> Result<(Reply, Vec<OwnedFd>), Refusal> {
        let refuse = |errno, reason: String| Err(Refusal::new(errno, reason));
        let kind = SlotKind::Udp;
        let owner = self.own_slot(client, attachment, kind, slot)?;
        let other = self.owner_of(kind, peer).filter(|_| peer != slot);
        let Some((other, theirs)) = other.and_then(|other| Some((other, other.attachment?))) else {
            return refuse(
                libc::ENXIO,
                format!("no program is attached with slot {peer}"),
            );
        };
        let users = (self.user_of(client), self.user_of(theirs.client));
        if users.0.is_none() || users.0 != users.1 {
            let reason = format!("slot {peer} belongs to a program of another user");
            return refuse(libc::EACCES, reason);
        }
        self.check_local(owner)?;
        self.check_local(other)?;
        if !self.introductions.add(slot, peer) {
            let reason = format!("slots {slot} and {peer} have a channel already");
            return refuse(libc::EALREADY, reason);
        }
        let [ours, their_end] = new_channel().inspect_err(|_| {
            self.introductions.forget_pair(slot, peer);
        })?;
        tracing::debug!(slot, peer, "slots introduced");
        let event = Reply::Introduced {
            attachment: theirs.number,
            slot: peer,
            peer: slot,
            asked: false,
        };
        self.send_event(theirs.client, &event, their_end);
        let reply = Reply::Introduced {
            attachment,
            slot,
            peer,
            asked: true,
        };
        Ok((reply, ours))
    }

    /// Returns the owner of a slot that belongs to an attachment of a client.
    pub(crate) fn own_slot(
        &self,
        client: ClientId,
        attachment: AttachmentNumber,
        kind: SlotKind,
        slot: u8,
    ) -> Result<&Owner, Refusal> {
        let is_its_own = |owner: &&Owner| {
            let attached = owner.attachment;
            attached.is_some_and(|own| own.client == client && own.number == attachment)
        };
        let owner = self.owner_of(kind, slot).filter(is_its_own);
        owner.ok_or_else(|| {
            let reason = format!("slot {slot} does not belong to attachment {attachment}");
            Refusal::new(libc::EINVAL, reason)
        })
    }

    /// Returns the owner of a slot.
    pub(crate) fn owner_of(&self, kind: SlotKind, slot: u8) -> Option<&Owner> {
        let mut owners = self.owners.values();
        owners.find(|owner| !owner.dead && owner.kind == kind && owner.slots.contains(&slot))
    }

    /// Returns the UID of a client; none if it does not stand for one user.
    pub(crate) fn user_of(&self, client: ClientId) -> Option<u32> {
        let uid = self.clients.get(&client)?.peer.uid;
        Some(uid).filter(|uid| user_namespace::names_one_user(*uid))
    }

    /// Fails if the link of a program has the option `local off`.
    pub(crate) fn check_local(&self, owner: &Owner) -> Result<(), Refusal> {
        let mut links = self.links.iter();
        let link = links.find(|link| link.info.index == owner.link);
        match link.is_some_and(|link| link.config.local) {
            true => Ok(()),
            false => Err(Refusal::new(
                libc::EOPNOTSUPP,
                "a link has the option `local off`",
            )),
        }
    }
}

/// Creates a channel. Returns the descriptors for each of the two programs.
pub(crate) fn new_channel() -> Result<[Vec<OwnedFd>; 2], Refusal> {
    let channel = create_channel().and_then(|(memory, [first, second])| {
        let copy = memory.try_clone()?;
        Ok([vec![memory, first], vec![copy, second]])
    });
    channel.map_err(|error| Refusal::system("cannot create a channel in shared memory", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pair_has_one_channel_until_an_owner_ends() {
        let mut introductions = Introductions::default();
        assert!(introductions.add(3, 5));
        assert!(!introductions.add(5, 3), "from the other side");
        assert!(introductions.add(3, 4));
        introductions.forget(5);
        assert!(introductions.add(5, 3));
        assert!(!introductions.add(4, 3));
        introductions.forget_pair(4, 3);
        assert!(introductions.add(3, 4));
    }
}
