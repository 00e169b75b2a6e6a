//! Owners of slots.

use std::os::fd::OwnedFd;

use ferroce_control::{CounterPage, SlotKind};

use crate::client::AttachmentId;
use crate::journals::Journal;
use crate::process::ProcessId;
use crate::state::SavedOwner;

/// A program that owns slots of a link. A program with several open devices is the owner of
/// each of them.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) process: ProcessId,
    pub(crate) program: String,
    /// Index of the link, which may be deleted.
    pub(crate) link: u32,
    pub(crate) kind: SlotKind,
    pub(crate) slots: Vec<u8>,
    /// Counters of slots for streams; none after a restart, until the program resumes.
    pub(crate) pages: Vec<CounterPage>,
    /// Descriptor that is readable when the process has ended.
    pub(crate) pidfd: Option<OwnedFd>,
    /// The attachment; `None` if its connection is lost and the program may resume.
    pub(crate) attachment: Option<AttachmentId>,
    /// The program's journal; none after a restart, until the program resumes.
    pub(crate) journal: Option<Journal>,
    /// True if the process ended before the group was adopted: its slots must be released.
    pub(crate) dead: bool,
}

impl Owner {
    pub(crate) fn saved(&self) -> SavedOwner {
        SavedOwner {
            process: self.process,
            program: self.program.clone(),
            link: self.link,
            kind: self.kind,
            slots: self.slots.clone(),
        }
    }

    /// Returns an owner from the state of an earlier ferroced.
    pub(crate) fn restored(saved: SavedOwner) -> Owner {
        let pidfd = saved.process.open();
        Owner {
            process: saved.process,
            program: saved.program,
            link: saved.link,
            kind: saved.kind,
            slots: saved.slots,
            pages: Vec::new(),
            // A process without a PID here may live: it resumes, or ferroced takes its slots
            // when no others are free.
            dead: pidfd.is_none() && saved.process.is_visible(),
            pidfd,
            attachment: None,
            journal: None,
        }
    }

    /// Returns true if the program owns this slot on UDP port 4791.
    pub(crate) fn has_udp_slot(&self, slot: u8) -> bool {
        self.kind == SlotKind::Udp && self.slots.contains(&slot)
    }

    /// Returns true if ferroced cannot notice the end of the process: it has neither a
    /// connection nor a pidfd.
    pub(crate) fn is_unobservable(&self) -> bool {
        self.attachment.is_none() && self.pidfd.is_none()
    }

    /// Returns PID and program for messages.
    pub(crate) fn described(&self) -> String {
        described(self.process.pid, &self.program)
    }
}

/// Returns PID and name of a program for messages.
pub(crate) fn described(pid: u32, program: &str) -> String {
    let program = match program {
        "" => "unknown",
        program => program,
    };
    match pid {
        0 => format!("({program}, in another PID namespace)"),
        pid => format!("{pid} ({program})"),
    }
}
