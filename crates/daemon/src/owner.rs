//! An attachment: a program's slots on a link.

use std::os::fd::OwnedFd;

use crate::client::ClientId;
use crate::process::ProcessId;
use crate::state::SavedOwner;

/// Who owns some slots.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) process: ProcessId,
    pub(crate) program: String,
    /// The index of its link, which may be gone.
    pub(crate) link: u32,
    pub(crate) slots: Vec<u8>,
    /// Readable when the process has ended.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Its connection. None: it has lost it, and may come back.
    pub(crate) client: Option<ClientId>,
    /// It has ended while nobody held the group; its slots must still be cleaned up.
    pub(crate) dead: bool,
}

impl Owner {
    pub(crate) fn saved(&self) -> SavedOwner {
        SavedOwner {
            process: self.process,
            program: self.program.clone(),
            link: self.link,
            slots: self.slots.clone(),
        }
    }

    /// An owner that an earlier ferroced knew.
    pub(crate) fn restored(saved: SavedOwner) -> Owner {
        let pidfd = saved.process.open();
        Owner {
            process: saved.process,
            program: saved.program,
            link: saved.link,
            slots: saved.slots,
            // One that cannot be seen may live: it comes back, or its slots are taken when
            // there are no others.
            dead: pidfd.is_none() && saved.process.is_visible(),
            pidfd,
            client: None,
        }
    }

    /// True if it has lost its connection, and nothing will tell when it ends.
    pub(crate) fn is_out_of_sight(&self) -> bool {
        self.client.is_none() && self.pidfd.is_none()
    }

    /// For people.
    pub(crate) fn described(&self) -> String {
        let program = match self.program.as_str() {
            "" => "unknown",
            program => program,
        };
        match self.process.pid {
            0 => format!("({program}, in another PID namespace)"),
            pid => format!("{pid} ({program})"),
        }
    }
}
