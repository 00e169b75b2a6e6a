//! Programs that come back after ferroced was restarted, with the sockets they kept.

use std::os::fd::OwnedFd;

use ferroce_control::{CreditPage, Reply, SocketEscrow};

use crate::attachments::PATIENCE;
use crate::client::ClientId;
use crate::group::Group;
use crate::owner::Owner;
use crate::poller::{Token, now};
use crate::process::ProcessId;
use crate::refusal::{Refusal, listed};
use crate::server::Server;
use crate::slots::OwnerId;

impl Server {
    /// A program comes back with the slots it had before a restart.
    pub(crate) fn resume(
        &mut self,
        client: ClientId,
        link: &str,
        slots: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Reply, Refusal> {
        let wrong = |why: &str| Refusal::new(libc::EINVAL, format!("cannot resume: {why}"));
        let [rx, tx, credits] = <[OwnedFd; 3]>::try_from(fds)
            .map_err(|_| wrong("an escrow and a credit page are three descriptors"))?;
        let escrow = SocketEscrow::from_fds([rx, tx]);
        let credits = CreditPage::from_fd(credits).map_err(|error| wrong(&error.to_string()))?;
        let (peer, program) = match self.clients.get(&client) {
            Some(c) if c.owner.is_none() => (c.peer, c.program.clone().unwrap_or_default()),
            _ => return Err(wrong("this connection is attached already")),
        };
        let Some(socket) = self.clients.get(&client) else {
            return Err(wrong("the connection is gone"));
        };
        let (process, pidfd) = ProcessId::of(peer, socket);
        let known = self.owners.iter().find(|(_, owner)| {
            owner.process.is_same(process) && owner.slots == slots && owner.client.is_none()
        });
        let known = known.map(|(id, _)| *id);
        if known.is_none() && !self.access.is_admin(peer) {
            return Err(wrong("these slots are not known to be yours"));
        }
        match &self.group {
            None => self.adopt(escrow, credits)?,
            Some(group) if group.is_held_by(&escrow) => {}
            Some(_) => return Err(wrong("these sockets are not of the group there is now")),
        }
        let owner = match known {
            Some(owner) => owner,
            None => self.admit_unknown(process, program, link, slots)?,
        };
        self.watch_process(owner, pidfd);
        let (Some(entry), Some(c)) = (self.owners.get_mut(&owner), self.clients.get_mut(&client))
        else {
            return Err(wrong("the process has ended"));
        };
        entry.client = Some(client);
        c.owner = Some(owner);
        let link = self.links.by_index(entry.link).map(|l| l.info.clone());
        tracing::info!(pid = peer.pid, ?slots, "is back");
        self.save();
        Ok(Reply::Resumed { link })
    }

    /// Registers an owner that the notes do not mention, because there are none.
    fn admit_unknown(
        &mut self,
        process: ProcessId,
        program: String,
        link: &str,
        slots: &[u8],
    ) -> Result<OwnerId, Refusal> {
        let taken = |slot| {
            let reason = format!("cannot resume: slot {slot} does not exist or is another's");
            Refusal::new(libc::EBUSY, reason)
        };
        let owner = self.new_id();
        let group = self.group.as_mut().expect("adopted before");
        for (n, slot) in slots.iter().enumerate() {
            if !group.slots.claim(*slot, owner) {
                for claimed in &slots[..n] {
                    group.slots.release(*claimed);
                }
                return Err(taken(*slot));
            }
        }
        let index = self.links.find(link).map_or(u32::MAX, |l| l.info.index);
        self.insert_owner(
            owner,
            Owner {
                process,
                program,
                link: index,
                slots: slots.into(),
                pidfd: None,
                client: None,
                dead: false,
            },
        );
        Ok(owner)
    }

    /// Watches the process of an owner, unless it is watched already.
    fn watch_process(&mut self, id: OwnerId, pidfd: Option<OwnedFd>) {
        let Some(owner) = self.owners.get_mut(&id).filter(|o| o.pidfd.is_none()) else {
            return;
        };
        owner.pidfd = pidfd;
        if let Some(pidfd) = &owner.pidfd
            && let Err(error) = self.poller.add(pidfd, Token::Process(id))
        {
            tracing::warn!(%error, "cannot watch a process");
        }
    }

    /// Takes over the group that a surviving program has kept.
    fn adopt(&mut self, escrow: SocketEscrow, credits: CreditPage) -> Result<(), Refusal> {
        let mut group = Group::adopt(escrow, credits)
            .map_err(|error| Refusal::system("cannot take the sockets over", &error))?;
        tracing::info!(
            slots = group.slots.existing(),
            "group of sockets taken over"
        );
        for (id, owner) in &self.owners {
            for slot in &owner.slots {
                if !group.slots.claim(*slot, *id) {
                    tracing::warn!(slot, pid = owner.process.pid, "slot is not there");
                }
            }
        }
        self.group = Some(group);
        self.await_survivors();
        self.attend_qp1();
        if !self.has_notes {
            self.hold_until = Some(now() + PATIENCE);
        }
        let dead: Vec<OwnerId> = self
            .owners
            .iter()
            .filter(|(_, o)| o.dead)
            .map(|(id, _)| *id)
            .collect();
        for owner in dead {
            self.release(owner);
        }
        Ok(())
    }

    /// Why an attachment cannot wait any longer.
    pub(crate) fn absent_owners(&self, why: &str) -> Refusal {
        let absent = self
            .owners
            .values()
            .filter(|o| o.client.is_none() && !o.dead);
        let absent = listed(absent.map(Owner::described));
        let reason = match absent.as_str() {
            "" => why.to_owned(),
            pids => format!(
                "process {pids} holds the sockets since before ferroced was restarted, and \
                 does not answer; is it stopped? End it, or let it go on"
            ),
        };
        Refusal::new(libc::EAGAIN, reason)
    }
}
