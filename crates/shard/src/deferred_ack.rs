//! A received acknowledgement that arrived together with a message.
//!
//! A program that polls waits for the message. The core delivers the message first, and the
//! acknowledgement in the next turn: when the program polls again, or when the progress
//! thread comes. So the program sees its message sooner.
//!
//! The core defers no acknowledgement behind an answer if the program sees the order of both completions
//! (`answers.rs`). Before an answer that arrives later it delivers the deferred acknowledgement.
//!
//! A program may also wait for the acknowledgement, and look at the message only then: `ib_send_lat`
//! polls for the completion of its own message first. Then a deferred acknowledgement costs another turn,
//! which over UDP is another system call. Such a program polls again before it posts. After
//! [`IN_VAIN`] of these in a row the next [`REST`] acknowledgements are not deferred.

use ferroce_roce::Datagram;
use ferroce_wire::{ACKNOWLEDGE_LEN, rc_acknowledge};

/// Acknowledgements in a row that were deferred in vain, after which the next ones are not deferred.
const IN_VAIN: u32 = 4;
/// Acknowledgements that are not deferred then. After them one is deferred for a trial: the program may
/// do something else now.
const REST: u32 = 64;

/// Room for one acknowledgement.
#[derive(Debug)]
pub(crate) struct DeferredAck {
    bytes: [u8; ACKNOWLEDGE_LEN],
    /// The datagram, with an empty payload.
    datagram: Option<Datagram<'static>>,
    /// True if the program has posted since the acknowledgement was deferred.
    has_posted: bool,
    /// Acknowledgements in a row that were deferred in vain.
    in_vain: u32,
    /// Acknowledgements that will not be deferred.
    rest: u32,
}

impl Default for DeferredAck {
    fn default() -> DeferredAck {
        DeferredAck {
            bytes: [0; ACKNOWLEDGE_LEN],
            datagram: None,
            has_posted: false,
            in_vain: 0,
            rest: 0,
        }
    }
}

impl DeferredAck {
    pub(crate) fn is_empty(&self) -> bool {
        self.datagram.is_none()
    }

    /// Stores a datagram and returns true, if it is an acknowledgement, there is room, and the
    /// program does not wait for it.
    #[inline]
    pub(crate) fn store(&mut self, datagram: &Datagram<'_>) -> bool {
        let Some(bytes) = rc_acknowledge(datagram.payload).filter(|_| self.is_empty()) else {
            return false;
        };
        if self.rest > 0 {
            self.rest -= 1;
            return false;
        }
        self.has_posted = false;
        self.bytes = bytes;
        self.datagram = Some(Datagram {
            payload: &[],
            ..*datagram
        });
        true
    }

    /// Notes that the program posts: it has not waited for the stored datagram.
    #[inline]
    pub(crate) fn note_post(&mut self) {
        self.has_posted = true;
    }

    /// Passes the stored datagram, if any, to `deliver`.
    #[inline]
    pub(crate) fn release(&mut self, deliver: impl FnOnce(&Datagram<'_>)) {
        if let Some(datagram) = self.datagram.take() {
            self.in_vain = match self.has_posted {
                true => 0,
                false => (self.in_vain + 1).min(IN_VAIN),
            };
            if self.in_vain == IN_VAIN {
                self.rest = REST;
            }
            deliver(&Datagram {
                payload: &self.bytes,
                ..datagram
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use ferroce_wire::{Opcode, Operation, Transport};

    use super::*;
    use crate::test_datagram::datagram;

    fn acknowledgement() -> [u8; ACKNOWLEDGE_LEN] {
        let mut packet = [7; ACKNOWLEDGE_LEN];
        let opcode = Opcode::new(Transport::Rc, Operation::Acknowledge);
        packet[0] = opcode.unwrap().byte();
        packet
    }

    /// Defers acknowledgements for a program that posts before it polls again, or does not. Returns
    /// how many of `count` were deferred.
    fn deferred_of(count: usize, deferred: &mut DeferredAck, posts: bool) -> usize {
        let packet = acknowledgement();
        let stored = (0..count).filter(|_| {
            let stored = deferred.store(&datagram(&packet));
            if posts {
                deferred.note_post();
            }
            deferred.release(|_| {});
            stored
        });
        stored.count()
    }

    #[test]
    fn acknowledgements_are_deferred_while_the_program_posts_first() {
        let mut deferred = DeferredAck::default();
        assert_eq!(deferred_of(200, &mut deferred, true), 200);
    }

    #[test]
    fn acknowledgements_that_the_program_waits_for_are_not_deferred() {
        let mut deferred = DeferredAck::default();
        let (in_vain, rest) = (IN_VAIN as usize, REST as usize);
        assert_eq!(deferred_of(in_vain, &mut deferred, false), in_vain);
        assert_eq!(deferred_of(rest, &mut deferred, false), 0);
        assert_eq!(deferred_of(1 + rest, &mut deferred, false), 1, "a trial");
        // The trial after this rest finds a program that posts.
        assert_eq!(deferred_of(10, &mut deferred, true), 10);
    }

    #[test]
    fn one_acknowledgement_is_stored_and_released_unchanged() {
        let mut deferred = DeferredAck::default();
        let packet = acknowledgement();
        assert!(!deferred.store(&datagram(&packet[1..])), "too short");
        let other = [7; ACKNOWLEDGE_LEN];
        assert!(!deferred.store(&datagram(&other)), "another opcode");
        assert!(deferred.is_empty());
        assert!(deferred.store(&datagram(&packet)));
        assert!(!deferred.store(&datagram(&packet)), "no room for a second");
        let mut released = 0;
        for _ in 0..2 {
            deferred.release(|stored| {
                assert_eq!(format!("{stored:?}"), format!("{:?}", datagram(&packet)));
                released += 1;
            });
            assert!(deferred.is_empty());
        }
        assert_eq!(released, 1);
    }
}
