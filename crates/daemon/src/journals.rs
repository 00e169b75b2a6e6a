//! Journals of programs: shared memory with the failures and last packets of their queue pairs.
//!
//! ferroced gives each program a journal, and keeps the journals of programs that have ended, for
//! `ferroce explain`. Only root and the user of a program may read its journal.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

use ferroce_control::{Process, Reply};
use ferroce_trace::JournalFile;

use crate::client::RequestId;
use crate::owner::Owner;
use crate::poller::now;
use crate::refusal::Refusal;
use crate::server::Server;
use crate::slots::OwnerId;

/// Journals with failures of ended programs that are kept. The oldest makes room for a new one.
const MAX_FAILED: usize = 16;
/// The same, without failures: such a program may have been killed while it waited.
const MAX_OTHERS: usize = 4;

/// The journal of a program.
#[derive(Debug)]
pub(crate) struct Journal {
    file: JournalFile,
    /// The user of the program.
    uid: u32,
}

/// The journals of programs that have ended, oldest first.
#[derive(Debug, Default)]
pub(crate) struct EndedJournals(VecDeque<Ended>);

#[derive(Debug)]
struct Ended {
    journal: Journal,
    has_failure: bool,
    link: u32,
    process: Process,
    at: Instant,
}

impl EndedJournals {
    /// Keeps the journal of a program that ends, if something was written to it.
    pub(crate) fn keep(&mut self, owner: &mut Owner) {
        let Some(journal) = owner.journal.take().filter(|j| !j.file.is_empty()) else {
            return;
        };
        let has_failure = journal.file.has_failure();
        let most = match has_failure {
            true => MAX_FAILED,
            false => MAX_OTHERS,
        };
        let is_alike = |ended: &Ended| ended.has_failure == has_failure;
        if self.0.iter().filter(|ended| is_alike(ended)).count() == most
            && let Some(oldest) = self.0.iter().position(is_alike)
        {
            self.0.remove(oldest);
        }
        self.0.push_back(Ended {
            journal,
            has_failure,
            link: owner.link,
            process: process(owner),
            at: now(),
        });
    }
}

impl Server {
    /// Gives a program its journal.
    pub(crate) fn give_journal(&mut self, id: OwnerId) {
        let attachment = self.owners.get(&id).and_then(|owner| owner.attachment);
        let Some(attachment) = attachment else {
            return;
        };
        let Some(client) = self.clients.get(&attachment.client) else {
            return;
        };
        let uid = client.peer.uid;
        let made = JournalFile::new().and_then(|file| Ok((file.try_clone()?, file)));
        match made {
            Ok((theirs, file)) => {
                if let Some(owner) = self.owners.get_mut(&id) {
                    owner.journal = Some(Journal { file, uid });
                }
                let event = Reply::Journal {
                    attachment: attachment.number,
                };
                self.send_event(attachment.client, &event, vec![theirs.into()]);
            }
            Err(error) => tracing::warn!(%error, "a program has no journal"),
        }
    }

    /// Sends the journals that a client may read: those of running programs, then the others.
    pub(crate) fn journals(&mut self, id: RequestId) -> Result<Reply, Refusal> {
        let Some(client) = self.clients.get(&id.client) else {
            return Err(Refusal::new(libc::ECONNRESET, "the connection is closed"));
        };
        let uid = client.peer.uid;
        let name = |link| {
            let link = self.links.by_index(link);
            link.map_or_else(|| "(deleted)".into(), |link| link.config.name.clone())
        };
        let open = |journal: &Journal| -> Option<OwnedFd> {
            let may = uid == 0 || uid == journal.uid;
            let file = may.then(|| journal.file.try_clone().ok()).flatten();
            file.map(OwnedFd::from)
        };
        let mut answers = Vec::new();
        for owner in self.owners.values().filter(|owner| !owner.dead) {
            if let Some(fd) = owner.journal.as_ref().and_then(open) {
                let (link, process) = (name(owner.link), process(owner));
                answers.push((link, process, None, fd));
            }
        }
        for ended in &self.ended_journals.0 {
            if let Some(fd) = open(&ended.journal) {
                let ago = now().saturating_duration_since(ended.at).as_secs();
                answers.push((name(ended.link), ended.process.clone(), Some(ago), fd));
            }
        }
        for (link, process, ended_ago, fd) in answers {
            let reply = Reply::Story {
                link,
                process,
                ended_ago,
            };
            self.reply_with(id, &reply, vec![fd]);
        }
        Ok(Reply::Done)
    }
}

fn process(owner: &Owner) -> Process {
    Process {
        pid: owner.process.pid,
        program: owner.program.clone(),
        slots: owner.slots.clone(),
    }
}
