//! Resumption: programs register their slots after a restart of ferroced.

use std::os::fd::OwnedFd;

use ferroce_control::{CounterPage, CreditPage, Reply, ResumeDescriptors, SlotKind, SocketEscrow};

use crate::attachments::RESUME_TIMEOUT;
use crate::client::AttachmentId;
use crate::group::Group;
use crate::owner::Owner;
use crate::poller::{Token, now};
use crate::process::ProcessId;
use crate::refusal::{Refusal, listed};
use crate::server::Server;
use crate::slots::OwnerId;

fn wrong(why: &str) -> Refusal {
    Refusal::new(libc::EINVAL, format!("cannot resume: {why}"))
}

/// Takes the descriptors that a program has kept.
fn unpack(kind: SlotKind, slots: &[u8], fds: Vec<OwnedFd>) -> Result<ResumeDescriptors, Refusal> {
    if kind == SlotKind::Streams {
        if fds.len() != slots.len() {
            return Err(wrong("each slot has one descriptor, its counters"));
        }
        let pages = fds.into_iter().map(CounterPage::from_fd);
        let pages = pages.collect::<Result<_, _>>();
        return pages
            .map(ResumeDescriptors::Streams)
            .map_err(|error| wrong(&error.to_string()));
    }
    let [rx, tx, credits] = <[OwnedFd; 3]>::try_from(fds)
        .map_err(|_| wrong("an escrow and a credit page are three descriptors"))?;
    let escrow = SocketEscrow::from_fds([rx, tx]);
    let credits = CreditPage::from_fd(credits).map_err(|error| wrong(&error.to_string()))?;
    Ok(ResumeDescriptors::Udp { escrow, credits })
}

impl Server {
    /// Registers the slots that a program had before a restart.
    pub(crate) fn resume(
        &mut self,
        attachment: AttachmentId,
        link: &str,
        kind: SlotKind,
        slots: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Reply, Refusal> {
        let descriptors = unpack(kind, slots, fds)?;
        let Some(client) = self.clients.get(&attachment.client) else {
            return Err(wrong("the connection is gone"));
        };
        if client.attachments.contains_key(&attachment.number) {
            return Err(wrong("this connection has an attachment of this number"));
        }
        let (peer, program) = (client.peer, client.program.clone().unwrap_or_default());
        let (process, pidfd) = ProcessId::of(peer, client);
        let known = self.absent_owner(process, kind, slots);
        if known.is_none() && !self.access.is_admin(peer) {
            return Err(wrong("these slots do not belong to this program"));
        }
        let pages = match (descriptors, &self.group) {
            (ResumeDescriptors::Udp { escrow, credits }, None) => {
                self.adopt(escrow, credits)?;
                Vec::new()
            }
            (ResumeDescriptors::Udp { escrow, .. }, Some(group)) if group.is_held_by(&escrow) => {
                Vec::new()
            }
            (ResumeDescriptors::Udp { .. }, Some(_)) => {
                return Err(wrong("these sockets are not those of the present group"));
            }
            (ResumeDescriptors::Streams(pages), _) => pages,
        };
        let owner = match known {
            Some(owner) => owner,
            None => self.admit_unknown(process, program, link, kind, slots)?,
        };
        self.watch_process(owner, pidfd);
        let client = self.clients.get_mut(&attachment.client);
        let (Some(entry), Some(client)) = (self.owners.get_mut(&owner), client) else {
            return Err(wrong("the process has ended"));
        };
        entry.attachment = Some(attachment);
        entry.pages = pages;
        client.attachments.insert(attachment.number, owner);
        let link = self.links.by_index(entry.link).map(|l| l.info.clone());
        tracing::info!(pid = peer.pid, ?slots, "program resumed its slots");
        self.save();
        self.introduce_captures(owner);
        self.give_journal(owner);
        Ok(Reply::Resumed { link })
    }

    /// Registers an owner that is not in the state file, because that was lost.
    fn admit_unknown(
        &mut self,
        process: ProcessId,
        program: String,
        link: &str,
        kind: SlotKind,
        slots: &[u8],
    ) -> Result<OwnerId, Refusal> {
        let taken = |slot| {
            let reason = format!("cannot resume: slot {slot} does not exist or has another owner");
            Refusal::new(libc::EBUSY, reason)
        };
        let owner = self.new_id();
        let all = match kind {
            SlotKind::Udp => &mut self.group.as_mut().expect("adopted before").slots,
            SlotKind::Streams => self.stream_slots_up_to(slots),
        };
        for (n, slot) in slots.iter().enumerate() {
            if !all.claim(*slot, owner) {
                for claimed in &slots[..n] {
                    all.release(*claimed);
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
                kind,
                slots: slots.into(),
                pages: Vec::new(),
                pidfd: None,
                attachment: None,
                journal: None,
                dead: false,
            },
        );
        Ok(owner)
    }

    /// Watches the process of an owner for its end, unless that is done already.
    fn watch_process(&mut self, id: OwnerId, pidfd: Option<OwnedFd>) {
        let Some(owner) = self.owners.get_mut(&id).filter(|o| o.pidfd.is_none()) else {
            return;
        };
        owner.pidfd = pidfd;
        if let Some(pidfd) = &owner.pidfd
            && let Err(error) = self.poller.add(pidfd, Token::Process(id))
        {
            tracing::warn!(%error, "cannot watch a process for its end");
        }
    }

    /// Takes over the group of sockets that a program has kept.
    fn adopt(&mut self, escrow: SocketEscrow, credits: CreditPage) -> Result<(), Refusal> {
        let mut group = Group::adopt(escrow, credits)
            .map_err(|error| Refusal::system("cannot take over the sockets", &error))?;
        tracing::info!(
            slots = group.slots.existing(),
            "took over the group of sockets"
        );
        let owners = self.owners.iter();
        for (id, owner) in owners.filter(|(_, owner)| owner.kind == SlotKind::Udp) {
            for slot in &owner.slots {
                if !group.slots.claim(*slot, *id) {
                    tracing::warn!(
                        slot,
                        pid = owner.process.pid,
                        "slot of the state file does not exist"
                    );
                }
            }
        }
        self.group = Some(group);
        self.await_survivors();
        self.attend_qp1();
        if !self.has_saved_state {
            self.hold_slots_until = Some(now() + RESUME_TIMEOUT);
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

    /// Returns the refusal for a program that has waited too long for others to resume.
    pub(crate) fn absent_owners(&self, why: &str) -> Refusal {
        let absent = self
            .owners
            .values()
            .filter(|o| o.attachment.is_none() && !o.dead);
        let absent = listed(absent.map(Owner::described));
        let reason = match absent.as_str() {
            "" => why.to_owned(),
            pids => format!(
                "process {pids} has held the sockets since before ferroced was restarted, and \
                 does not answer; is it stopped? End it, or continue it (`kill -CONT`)"
            ),
        };
        Refusal::new(libc::EAGAIN, reason)
    }
}
