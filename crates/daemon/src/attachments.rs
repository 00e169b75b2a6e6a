//! Slots: giving them out and getting them back.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ferroce_control::Reply;
use ferroce_control::protocol::{MAX_SHARDS, SlotGrant};

use crate::client::RequestId;
use crate::group::{Group, GroupError};
use crate::owner::Owner;
use crate::poller::{Token, now};
use crate::process::ProcessId;
use crate::refusal::{Refusal, listed};
use crate::server::{Farewell, Server};
use crate::slots::{FOR_PROGRAMS, OwnerId};

/// How long an attachment waits for programs from before a restart.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// An attachment that cannot be answered yet.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) request: RequestId,
    pub(crate) until: Instant,
    link: String,
    shards: u8,
}

/// Why an attachment did not work.
enum Hindrance {
    /// It may yet.
    NotYet(String),
    /// It will not.
    No(Refusal),
}

impl From<Refusal> for Hindrance {
    fn from(refusal: Refusal) -> Hindrance {
        Hindrance::No(refusal)
    }
}

impl From<GroupError> for Hindrance {
    fn from(error: GroupError) -> Hindrance {
        match error {
            GroupError::Held(why) => Hindrance::NotYet(why),
            GroupError::Refused(refusal) => Hindrance::No(refusal),
        }
    }
}

impl Server {
    /// Attaches a program now or, after a restart, when the others have come back.
    pub(crate) fn attach_or_wait(&mut self, request: RequestId, link: String, shards: u8) {
        let waits = |pending: &Pending| pending.request.client == request.client;
        if self.pending.iter().any(waits) {
            let reason = "an earlier Attach of this connection is not answered yet";
            return self.reply(request, Refusal::new(libc::EBUSY, reason).into());
        }
        let until = now() + PATIENCE;
        self.pending.push(Pending {
            request,
            until,
            link,
            shards,
        });
        self.serve_pending();
    }

    /// Tries again what could not be answered before.
    pub(crate) fn serve_pending(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            match self.attach(&pending) {
                Ok((reply, fds)) => self.reply_with(pending.request, &reply, fds),
                Err(Hindrance::No(refusal)) => self.reply(pending.request, refusal.into()),
                Err(Hindrance::NotYet(_)) if now() < pending.until => self.pending.push(pending),
                Err(Hindrance::NotYet(why)) => {
                    let refusal = self.absent_owners(&why);
                    self.reply(pending.request, refusal.into());
                }
            }
        }
    }

    fn attach(&mut self, pending: &Pending) -> Result<(Reply, Vec<OwnedFd>), Hindrance> {
        let link = self.links.find(&pending.link)?.info.clone();
        let count = check_shards(pending.shards)?;
        let client = self.clients.get(&pending.request.client);
        let client = client.ok_or_else(|| Refusal::new(libc::ECONNRESET, "gone"))?;
        if client.owner.is_some() {
            let reason = "this connection is attached already; open another";
            return Err(Refusal::new(libc::EINVAL, reason).into());
        }
        let peer = client.peer;
        let (process, pidfd) = ProcessId::of(peer, client);
        let program = client.program.clone().unwrap_or_default();
        if self.hold_until.is_some_and(|until| now() < until) {
            return Err(Hindrance::NotYet(
                "other programs may still come back".into(),
            ));
        }
        let owner = self.new_id();
        let slots = self.take_slots(count, owner)?;
        tracing::debug!(
            pid = peer.pid,
            program,
            ?slots,
            link = link.name,
            "attached"
        );
        self.insert_owner(
            owner,
            Owner {
                process,
                program,
                link: link.index,
                slots: slots.clone(),
                pidfd,
                client: Some(pending.request.client),
                dead: false,
            },
        );
        match self.grant(&slots) {
            Ok((grants, fds)) => {
                let slots = grants;
                Ok((Reply::Attached { link, slots }, fds))
            }
            Err(refusal) => {
                self.release(owner);
                Err(refusal.into())
            }
        }
    }

    /// Finds or makes slots that nobody has.
    fn take_slots(&mut self, count: usize, owner: OwnerId) -> Result<Vec<u8>, Hindrance> {
        if self.group.is_none() {
            self.begin_with(Group::create()?);
        }
        if self.available_slots() < count {
            self.release_out_of_sight();
        }
        let available = self.available_slots();
        let group = self.group.as_mut().expect("there is one now");
        if available < count {
            let users = listed(self.owners.values().map(Owner::described));
            let reason = format!(
                "{count} slots are wanted and {available} of {FOR_PROGRAMS} are left; \
                 they are in use by process {users}"
            );
            return Err(Refusal::new(libc::ENOSPC, reason).into());
        }
        for _ in 0..group.slots.missing(count) {
            match group.grow() {
                Ok(()) => {}
                // The group is ours: a stranger has joined it.
                Err(GroupError::Held(why)) => {
                    return Err(Refusal::new(libc::EADDRINUSE, why).into());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(group.slots.take(count, owner))
    }

    fn available_slots(&self) -> usize {
        let group = self.group.as_ref();
        group.map_or(FOR_PROGRAMS, |group| group.slots.available())
    }

    /// Takes slots back from processes of other PID namespaces that have not come back
    /// after a restart: whether they live cannot be known, and others need slots.
    fn release_out_of_sight(&mut self) {
        let owners = self.owners.iter().filter(|(_, o)| o.is_out_of_sight());
        let owners: Vec<OwnerId> = owners.map(|(id, _)| *id).collect();
        for owner in owners {
            self.release(owner);
        }
    }

    fn grant(&self, slots: &[u8]) -> Result<(Vec<SlotGrant>, Vec<OwnedFd>), Refusal> {
        let group = self.group.as_ref().expect("the slots are from it");
        let failed = |error| Refusal::system("cannot hand out slots", &error);
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

    /// Starts with a group of our own: nobody has kept another.
    pub(crate) fn begin_with(&mut self, group: Group) {
        for owner in std::mem::take(&mut self.owners).into_values() {
            tracing::info!(pid = owner.process.pid, "has not kept its slots");
            owner.pidfd.iter().for_each(|fd| self.poller.remove(fd));
        }
        self.group = Some(group);
        self.attend_qp1();
    }

    pub(crate) fn insert_owner(&mut self, id: OwnerId, owner: Owner) {
        self.watch_owner(id, owner);
        // Before anybody can use the slots: a new ferroced must know about them.
        self.save();
    }

    pub(crate) fn watch_owner(&mut self, id: OwnerId, owner: Owner) {
        if let Some(pidfd) = &owner.pidfd
            && let Err(error) = self.poller.add(pidfd, Token::Process(id))
        {
            tracing::warn!(%error, "cannot watch a process");
        }
        if let Some(client) = owner
            .client
            .and_then(|client| self.clients.get_mut(&client))
        {
            client.owner = Some(id);
        }
        self.owners.insert(id, owner);
    }

    /// The connection of an owner has ended.
    pub(crate) fn on_disconnect(&mut self, id: OwnerId, farewell: Farewell) {
        let Some(owner) = self.owners.get_mut(&id) else {
            return;
        };
        owner.client = None;
        // Without a connection only the end of the process can tell us.
        if farewell == Farewell::Theirs || owner.pidfd.is_none() {
            self.release(id);
        }
    }

    /// The process of an owner has ended.
    pub(crate) fn on_process_end(&mut self, id: OwnerId) {
        let Some(owner) = self.owners.get_mut(&id) else {
            return;
        };
        if self.group.is_none() {
            // Its slots can be cleaned up when another program brings the group back.
            owner.dead = true;
            if let Some(pidfd) = owner.pidfd.take() {
                self.poller.remove(pidfd);
            }
            return;
        }
        let client = owner.client.take();
        self.release(id);
        // A child of it may have the connection still.
        if let Some(client) = client {
            if let Some(client) = self.clients.get_mut(&client) {
                client.owner = None;
            }
            self.close(client, Farewell::Ours);
        }
    }

    /// Takes slots back: drained, counted, free for the next one.
    pub(crate) fn release(&mut self, id: OwnerId) {
        let Some(owner) = self.owners.remove(&id) else {
            return;
        };
        owner.pidfd.iter().for_each(|fd| self.poller.remove(fd));
        if let Some(client) = owner
            .client
            .and_then(|client| self.clients.get_mut(&client))
        {
            client.owner = None;
        }
        tracing::debug!(pid = owner.process.pid, slots = ?owner.slots, "released");
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

fn check_shards(shards: u8) -> Result<usize, Refusal> {
    if (1..=MAX_SHARDS).contains(&shards) {
        return Ok(shards.into());
    }
    let reason = format!("{shards} shards are wanted: a program can have 1 to {MAX_SHARDS}");
    Err(Refusal::new(libc::EINVAL, reason))
}
