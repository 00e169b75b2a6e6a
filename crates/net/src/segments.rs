//! The segment size that a socket knows without being told.
//!
//! It can be said with each message, which the kernel takes some time to read, or once for
//! all that follow. Who sends small messages back and forth says the same again and again,
//! and so does, every other time, who sends a stream of long ones.

use std::cell::Cell;
use std::os::fd::OwnedFd;

use crate::socket;

/// So many messages must have wanted another size, and none that which is set.
const STREAK: u8 = 8;

/// What a socket has been told, and what would have spared telling it.
#[derive(Default)]
pub(crate) struct Segments {
    /// Longer messages are cut into segments of this size; 0: none is.
    set: Cell<u16>,
    /// How many messages wanted another, since the last that wanted this.
    others: Cell<u8>,
}

impl Segments {
    /// Whether a message leaves as it should, in segments of that size or as a whole,
    /// without anything being said with it.
    #[inline]
    pub(crate) fn suit(&self, socket: &OwnedFd, len: usize, segment: Option<u16>) -> bool {
        let set = self.set.get();
        match segment {
            Some(segment) if segment == set => {
                self.others.set(0);
                true
            }
            Some(segment) => {
                let others = self.others.get() + 1;
                self.others.set(others);
                others >= STREAK && self.change(socket, segment)
            }
            None => set == 0 || len <= usize::from(set) || self.change(socket, 0),
        }
    }

    /// Tells the socket. Whether that worked.
    #[cold]
    fn change(&self, socket: &OwnedFd, segment: u16) -> bool {
        self.others.set(0);
        let (level, option) = (libc::SOL_UDP, libc::UDP_SEGMENT);
        let changed = socket::set_number(socket, level, option, segment.into()).is_ok();
        if changed {
            self.set.set(segment);
        }
        changed
    }

    /// Nothing is cut any more, unless it is said with the message. Whether that is new.
    pub(crate) fn forget(&self, socket: &OwnedFd) -> bool {
        self.others.set(0);
        self.set.get() != 0 && self.change(socket, 0)
    }
}
