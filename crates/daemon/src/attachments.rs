//! Attachments: assigns slots to programs and takes them back.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ferroce_control::protocol::{MAX_SHARDS, SlotGrant};
use ferroce_control::{AttachmentNumber, Reply, SlotKind};

use crate::client::{AttachmentId, ClientId, RequestId};
use crate::group::{Group, GroupError};
use crate::owner::Owner;
use crate::poller::{Token, now};
use crate::process::ProcessId;
use crate::refusal::{Refusal, listed};
use crate::server::{ClosedBy, Server};
use crate::slots::{FOR_PROGRAMS, OwnerId};
use crate::stream_slots;

/// Time that programs have to resume after a restart of ferroced, before others get slots.
pub(crate) const RESUME_TIMEOUT: Duration = Duration::from_secs(3);

/// A request to attach that cannot be answered yet.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) request: RequestId,
    pub(crate) until: Instant,
    attachment: AttachmentNumber,
    link: String,
    shards: u8,
}

/// Reason why a program cannot attach.
enum AttachError {
    /// The program can attach later.
    NotYet(String),
    /// The request is refused.
    Refused(Refusal),
}

impl From<Refusal> for AttachError {
    fn from(refusal: Refusal) -> AttachError {
        AttachError::Refused(refusal)
    }
}

impl From<GroupError> for AttachError {
    fn from(error: GroupError) -> AttachError {
        match error {
            GroupError::Held(why) => AttachError::NotYet(why),
            GroupError::Refused(refusal) => AttachError::Refused(refusal),
        }
    }
}

impl Server {
    /// Attaches a program now or, after a restart, when other programs have resumed.
    pub(crate) fn attach_or_wait(
        &mut self,
        request: RequestId,
        attachment: AttachmentNumber,
        link: String,
        shards: u8,
    ) {
        let of_client = |pending: &&Pending| pending.request.client == request.client;
        let waiting = self.pending.iter().filter(of_client);
        if waiting.clone().any(|p| p.attachment == attachment) {
            return self.reply(request, number_in_use(attachment).into());
        }
        // Each takes a slot: more cannot succeed.
        if waiting.count() >= FOR_PROGRAMS {
            let reason = format!("{FOR_PROGRAMS} Attaches of this connection are not answered yet");
            return self.reply(request, Refusal::new(libc::EBUSY, reason).into());
        }
        let until = now() + RESUME_TIMEOUT;
        self.pending.push(Pending {
            request,
            until,
            attachment,
            link,
            shards,
        });
        self.serve_pending();
    }

    /// Retries the requests that could not be answered before.
    pub(crate) fn serve_pending(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            match self.attach(&pending) {
                Ok((reply, fds)) => self.reply_with(pending.request, &reply, fds),
                Err(AttachError::Refused(refusal)) => self.reply(pending.request, refusal.into()),
                Err(AttachError::NotYet(_)) if now() < pending.until => self.pending.push(pending),
                Err(AttachError::NotYet(why)) => {
                    let refusal = self.absent_owners(&why);
                    self.reply(pending.request, refusal.into());
                }
            }
        }
    }

    fn attach(&mut self, pending: &Pending) -> Result<(Reply, Vec<OwnedFd>), AttachError> {
        let link = self.links.find(&pending.link)?.info.clone();
        let count = check_shards(pending.shards)?;
        let client = self.clients.get(&pending.request.client);
        let client =
            client.ok_or_else(|| Refusal::new(libc::ECONNRESET, "the connection is closed"))?;
        if client.attachments.contains_key(&pending.attachment) {
            return Err(number_in_use(pending.attachment).into());
        }
        let peer = client.peer;
        let (process, pidfd) = ProcessId::of(peer, client);
        let program = client.program.clone().unwrap_or_default();
        if self.hold_slots_until.is_some_and(|until| now() < until) {
            return Err(AttachError::NotYet(
                "programs from before the restart may still resume".into(),
            ));
        }
        let owner = self.new_id();
        let kind = SlotKind::of(&link);
        let count = match self.available_slots(kind) < FOR_PROGRAMS / 2 + count {
            // Several slots make a program faster. None would make another one fail.
            true => 1,
            false => count,
        };
        let (slots, pages) = match kind {
            SlotKind::Udp => (self.take_slots(count, owner)?, Vec::new()),
            SlotKind::Streams => self.take_stream_slots(count, owner)?,
        };
        tracing::debug!(
            pid = peer.pid,
            program,
            ?slots,
            link = link.name,
            "program attached"
        );
        self.insert_owner(
            owner,
            Owner {
                process,
                program,
                link: link.index,
                kind,
                slots,
                pages,
                pidfd,
                attachment: Some(AttachmentId {
                    client: pending.request.client,
                    number: pending.attachment,
                }),
                journal: None,
                dead: false,
            },
        );
        match self.grant(owner) {
            Ok((grants, fds)) => {
                // Before the program has its slots: no packet of it is missing.
                self.introduce_captures(owner);
                self.give_journal(owner);
                let reply = Reply::Attached {
                    attachment: pending.attachment,
                    link,
                    slots: grants,
                };
                Ok((reply, fds))
            }
            Err(refusal) => {
                self.release(owner);
                Err(refusal.into())
            }
        }
    }

    /// Takes free slots. Creates them if there are not enough.
    fn take_slots(&mut self, count: usize, owner: OwnerId) -> Result<Vec<u8>, AttachError> {
        if self.group.is_none() {
            self.begin_with(Group::create()?);
        }
        self.check_available(SlotKind::Udp, count)?;
        let group = self.group.as_mut().expect("there is one now");
        for _ in 0..group.slots.missing(count) {
            match group.grow() {
                Ok(()) => {}
                // ferroced created the group: another process has joined it.
                Err(GroupError::Held(why)) => {
                    return Err(Refusal::new(libc::EADDRINUSE, why).into());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(group.slots.take(count, owner))
    }

    fn available_slots(&self, kind: SlotKind) -> usize {
        let group = self.group.as_ref();
        match kind {
            SlotKind::Udp => group.map_or(FOR_PROGRAMS, |group| group.slots.available()),
            SlotKind::Streams => self.stream_slots.available(),
        }
    }

    /// Checks that `count` slots can be taken.
    pub(crate) fn check_available(&mut self, kind: SlotKind, count: usize) -> Result<(), Refusal> {
        if self.available_slots(kind) < count {
            self.release_unobservable(kind);
        }
        let available = self.available_slots(kind);
        if available < count {
            let users = listed(holders(self.owners.values().filter(|o| o.kind == kind)));
            let reason = format!(
                "{count} slots are requested and {available} of {FOR_PROGRAMS} are free; \
                 the others are in use by process {users}; end one of them, or use a network \
                 namespace of your own"
            );
            return Err(Refusal::new(libc::ENOSPC, reason));
        }
        Ok(())
    }

    /// Takes slots back from processes of other PID namespaces that have not resumed after a
    /// restart. ferroced cannot know whether they live, and other programs need slots.
    fn release_unobservable(&mut self, kind: SlotKind) {
        let owners = self.owners.iter();
        let owners = owners.filter(|(_, o)| o.kind == kind && o.is_unobservable());
        let owners: Vec<OwnerId> = owners.map(|(id, _)| *id).collect();
        for owner in owners {
            self.release(owner);
        }
    }

    fn grant(&self, owner: OwnerId) -> Result<(Vec<SlotGrant>, Vec<OwnedFd>), Refusal> {
        let failed = |error| Refusal::system("cannot prepare the slots", &error);
        let owner = self.owners.get(&owner).expect("it was just inserted");
        if owner.kind == SlotKind::Streams {
            return stream_slots::grant(owner).map_err(failed);
        }
        let slots = &owner.slots;
        let group = self.group.as_ref().expect("the slots are from it");
        for slot in slots {
            group.open(*slot).map_err(failed)?;
        }
        let fds = group.descriptors(slots).map_err(failed)?;
        let grants = slots.iter().map(|slot| SlotGrant {
            slot: *slot,
            v6: group.has_v6(*slot),
        });
        Ok((grants.collect(), fds))
    }

    /// Uses a new group, because no program has kept the group of an earlier ferroced.
    pub(crate) fn begin_with(&mut self, group: Group) {
        let owners = std::mem::take(&mut self.owners).into_iter();
        let (lost, others): (BTreeMap<_, _>, _) =
            owners.partition(|(_, owner)| owner.kind == SlotKind::Udp);
        self.owners = others;
        for owner in lost.into_values() {
            tracing::info!(
                pid = owner.process.pid,
                "the program has not kept its slots"
            );
            owner.pidfd.iter().for_each(|fd| self.poller.remove(fd));
        }
        self.group = Some(group);
        self.attend_qp1();
    }

    pub(crate) fn insert_owner(&mut self, id: OwnerId, owner: Owner) {
        self.watch_owner(id, owner);
        // The state must be on disk before the program uses the slots.
        self.save();
    }

    pub(crate) fn watch_owner(&mut self, id: OwnerId, owner: Owner) {
        if let Some(pidfd) = &owner.pidfd
            && let Err(error) = self.poller.add(pidfd, Token::Process(id))
        {
            tracing::warn!(%error, "cannot watch a process for its end");
        }
        if let Some(attachment) = owner.attachment
            && let Some(client) = self.clients.get_mut(&attachment.client)
        {
            client.attachments.insert(attachment.number, id);
        }
        self.owners.insert(id, owner);
    }

    /// Takes the slots of an attachment back, because its program has closed the device.
    pub(crate) fn detach(
        &mut self,
        client: ClientId,
        attachment: AttachmentNumber,
    ) -> Result<Reply, Refusal> {
        let attached = self.clients.get(&client);
        let attached = attached.and_then(|client| client.attachments.get(&attachment));
        if let Some(owner) = attached.copied() {
            self.release(owner);
            return Ok(Reply::Done);
        }
        let waits = |p: &Pending| p.request.client == client && p.attachment == attachment;
        match self.pending.iter().position(waits) {
            Some(place) => {
                let pending = self.pending.remove(place);
                let reason = "the program does not need the slots any more";
                self.reply(
                    pending.request,
                    Refusal::new(libc::ECANCELED, reason).into(),
                );
                Ok(Reply::Done)
            }
            None => {
                let reason = format!("this connection has no attachment {attachment}");
                Err(Refusal::new(libc::EINVAL, reason))
            }
        }
    }

    /// Handles the end of an owner's connection.
    pub(crate) fn on_disconnect(&mut self, id: OwnerId, closed_by: ClosedBy) {
        let Some(owner) = self.owners.get_mut(&id) else {
            return;
        };
        owner.attachment = None;
        // Without a connection only a pidfd tells when the process ends.
        if closed_by == ClosedBy::Program || owner.pidfd.is_none() {
            self.release(id);
        }
    }

    /// Handles the end of an owner's process.
    pub(crate) fn on_process_end(&mut self, id: OwnerId) {
        let attachment = self.owners.get(&id).and_then(|owner| owner.attachment);
        self.end_owner(id);
        // A child of the process may hold the connection.
        if let Some(attachment) = attachment {
            self.close(attachment.client, ClosedBy::Ferroced);
        }
    }

    /// Takes slots back from a program that had them before a restart, and has closed the
    /// device while no ferroced ran.
    pub(crate) fn release_absent(
        &mut self,
        client: ClientId,
        kind: SlotKind,
        slots: &[u8],
    ) -> Result<Reply, Refusal> {
        let Some(client) = self.clients.get(&client) else {
            return Err(Refusal::new(libc::ECONNRESET, "the connection is closed"));
        };
        let (process, _pidfd) = ProcessId::of(client.peer, client);
        let owner = self.absent_owner(process, kind, slots);
        match owner {
            Some(owner) => {
                self.end_owner(owner);
                Ok(Reply::Done)
            }
            None => {
                let reason = format!("slots {slots:?} are not waiting for this program");
                Err(Refusal::new(libc::EINVAL, reason))
            }
        }
    }

    /// Returns the owner of these slots that has not resumed after a restart.
    pub(crate) fn absent_owner(
        &self,
        process: ProcessId,
        kind: SlotKind,
        slots: &[u8],
    ) -> Option<OwnerId> {
        let mut owners = self.owners.iter();
        let owner = owners.find(|(_, owner)| {
            let has_slots = owner.kind == kind && owner.slots == slots;
            owner.process.is_same(process) && has_slots && owner.attachment.is_none()
        });
        owner.map(|(id, _)| *id)
    }

    /// Takes the slots of an owner back, or notes that they are free while the group is not
    /// known: they are released when another program brings it back.
    fn end_owner(&mut self, id: OwnerId) {
        let has_sockets = |owner: &Owner| owner.kind == SlotKind::Udp;
        if self.group.is_some() || !self.owners.get(&id).is_some_and(has_sockets) {
            return self.release(id);
        }
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.dead = true;
            if let Some(pidfd) = owner.pidfd.take() {
                self.poller.remove(pidfd);
            }
        }
    }

    /// Takes the slots of an owner back: drains their sockets and keeps their counters.
    pub(crate) fn release(&mut self, id: OwnerId) {
        let Some(mut owner) = self.owners.remove(&id) else {
            return;
        };
        self.ended_journals.keep(&mut owner);
        owner.pidfd.iter().for_each(|fd| self.poller.remove(fd));
        if let Some(attachment) = owner.attachment
            && let Some(client) = self.clients.get_mut(&attachment.client)
        {
            client.attachments.remove(&attachment.number);
        }
        tracing::debug!(pid = owner.process.pid, slots = ?owner.slots, "slots released");
        if owner.kind == SlotKind::Streams {
            self.stream_offers.forget(&owner.slots);
            self.release_stream_slots(&owner);
            return self.save();
        }
        for slot in &owner.slots {
            self.introductions.forget(*slot);
        }
        if let Some(group) = &mut self.group {
            for slot in owner.slots {
                if !group.slots.exists(slot) {
                    continue;
                }
                let counted = group.close(slot);
                if let Some(link) = self.links.by_index_mut(owner.link) {
                    link.totals.add(&counted);
                }
                group.slots.release(slot);
            }
        }
        self.save();
    }
}

/// Returns each process with the number of its slots, those with the most slots first.
fn holders<'a>(owners: impl Iterator<Item = &'a Owner>) -> Vec<String> {
    let mut slots = BTreeMap::new();
    for owner in owners {
        *slots.entry(owner.described()).or_insert(0) += owner.slots.len();
    }
    let mut slots: Vec<(String, usize)> = slots.into_iter().collect();
    slots.sort_by_key(|(_, count)| core::cmp::Reverse(*count));
    let words = |(process, count)| match count {
        1 => format!("{process}: 1 slot"),
        _ => format!("{process}: {count} slots"),
    };
    slots.into_iter().map(words).collect()
}

fn number_in_use(attachment: AttachmentNumber) -> Refusal {
    let reason = format!("this connection has an attachment {attachment} already");
    Refusal::new(libc::EINVAL, reason)
}

fn check_shards(shards: u8) -> Result<usize, Refusal> {
    if (1..=MAX_SHARDS).contains(&shards) {
        return Ok(shards.into());
    }
    let reason = format!("{shards} shards are requested; a program can have 1 to {MAX_SHARDS}");
    Err(Refusal::new(libc::EINVAL, reason))
}
