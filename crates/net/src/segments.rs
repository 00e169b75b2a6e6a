//! The segment size of a socket, for messages that do not carry one.
//!
//! A segment size can be given with each message, as a control message that the kernel has
//! to parse, or once as a socket option for all messages. A ping-pong of small messages
//! uses one size all the time, and so does every second message of a long stream.

use std::cell::Cell;
use std::os::fd::OwnedFd;

use crate::socket;

/// Messages in a row that need another size before the option is changed.
const STREAK: u8 = 8;

/// The segment size option of a socket.
#[derive(Default)]
pub(crate) struct Segments {
    /// Value of the option; 0 if the kernel does not segment by itself.
    set: Cell<u16>,
    /// Messages since the last one that used this size.
    others: Cell<u8>,
}

impl Segments {
    /// Returns the segment size to give with a message: `None` if the option has it already,
    /// 0 for a message that must not be segmented. `plain` is true if the message needs no
    /// other control message, so that changing the option saves the control buffer.
    #[inline]
    pub(crate) fn to_send(
        &self,
        socket: &OwnedFd,
        segment: Option<u16>,
        plain: bool,
    ) -> Option<u16> {
        let wanted = segment.unwrap_or(0);
        if wanted == self.set.get() {
            self.others.set(0);
            return None;
        }
        if plain && wanted != 0 {
            self.others.set(self.others.get() + 1);
            if self.others.get() >= STREAK && self.change(socket, wanted) {
                return None;
            }
        }
        Some(wanted)
    }

    /// Sets the option. Returns true on success.
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

    /// Clears the option: only messages that carry a size are segmented. Returns true if it
    /// was set.
    pub(crate) fn clear(&self, socket: &OwnedFd) -> bool {
        self.others.set(0);
        self.set.get() != 0 && self.change(socket, 0)
    }
}
