//! The segment size that a socket knows without being told.
//!
//! It can be said with each message, which the kernel takes some time to read, or once for
//! all that follow. Who sends small messages back and forth says the same again and again;
//! of a stream the runs differ.

use std::cell::Cell;
use std::os::fd::OwnedFd;

use crate::socket;

/// So often in a row the same size must have been asked for.
const STREAK: u8 = 8;

/// What a socket has been told, and what would have spared telling it.
#[derive(Default)]
pub(crate) struct Segments {
    /// Longer messages are cut into segments of this size; 0: none is.
    set: Cell<u16>,
    wanted: Cell<u16>,
    streak: Cell<u8>,
}

impl Segments {
    /// Whether a message leaves as it should, in segments of that size or as a whole,
    /// without anything being said with it.
    #[inline]
    pub(crate) fn suit(&self, socket: &OwnedFd, len: usize, segment: Option<u16>) -> bool {
        let set = self.set.get();
        match segment {
            Some(segment) if segment == set => true,
            Some(segment) => self.consider(socket, segment),
            None => set == 0 || len <= usize::from(set) || self.change(socket, 0),
        }
    }

    fn consider(&self, socket: &OwnedFd, segment: u16) -> bool {
        let streak = match self.wanted.replace(segment) == segment {
            true => self.streak.get().saturating_add(1),
            false => 0,
        };
        self.streak.set(streak);
        streak >= STREAK && self.change(socket, segment)
    }

    /// Tells the socket. Whether that worked.
    #[cold]
    fn change(&self, socket: &OwnedFd, segment: u16) -> bool {
        let (level, option) = (libc::SOL_UDP, libc::UDP_SEGMENT);
        let changed = socket::set_number(socket, level, option, segment.into()).is_ok();
        if changed {
            self.set.set(segment);
        }
        changed
    }

    /// Nothing is cut any more, unless it is said with the message. Whether that is new.
    pub(crate) fn forget(&self, socket: &OwnedFd) -> bool {
        self.streak.set(0);
        self.set.get() != 0 && self.change(socket, 0)
    }
}
