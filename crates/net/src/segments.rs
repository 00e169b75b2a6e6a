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

/// What a socket has been told, and whether that is still of use.
#[derive(Default)]
pub(crate) struct Segments {
    /// Longer messages are cut into segments of this size; 0: none is.
    set: Cell<u16>,
    /// How many messages wanted another, since the last that wanted this.
    others: Cell<u8>,
}

impl Segments {
    /// What must be said with a message that is to be cut, or not to be cut, like that:
    /// nothing, or the size, 0 for one that stays whole. `alone`: there is nothing else to
    /// say with it, so that telling the socket would spare something.
    #[inline]
    pub(crate) fn to_say(
        &self,
        socket: &OwnedFd,
        segment: Option<u16>,
        alone: bool,
    ) -> Option<u16> {
        let wanted = segment.unwrap_or(0);
        if wanted == self.set.get() {
            self.others.set(0);
            return None;
        }
        if alone && wanted != 0 {
            self.others.set(self.others.get() + 1);
            if self.others.get() >= STREAK && self.change(socket, wanted) {
                return None;
            }
        }
        Some(wanted)
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
