//! Flow control of the receiving side of a stream.

use std::collections::VecDeque;

use super::ProtocolViolation;
use super::pieces::Pieces;

/// Credits for the peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Credit {
    /// The first sequence number that the peer may not send.
    pub(crate) limit: u16,
    /// A published half: its entry in the peer's table, its offset and length in the ring.
    pub(crate) region: Option<(u32, u32, u32)>,
}

/// Counters of the receiving side.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// The receive ring: its size, the offset of its unread bytes, and their number.
    size: u32,
    at: u32,
    unread: u32,
    /// Number of bytes that are read and not published again, and their offset.
    free: u32,
    free_at: u32,
    /// Unread bytes of each message, and the maximum number of messages.
    messages: VecDeque<u32>,
    capacity: u16,
    /// Number of messages that were read, and the number at which credits are due.
    read: u16,
    grant_at: u16,
    /// The peer's table: the next entry, and the number of entries.
    slot: u32,
    slots: u32,
}

impl Incoming {
    /// Creates counters for a ring of `size` bytes, an even number, and `capacity` receives.
    /// The first half of the ring is published, in the first of the peer's `slots` entries.
    pub(crate) fn new(size: u32, capacity: u16, slots: u32) -> Incoming {
        Incoming {
            size,
            at: 0,
            unread: 0,
            free: size / 2,
            free_at: size / 2,
            messages: VecDeque::with_capacity(capacity.into()),
            capacity,
            read: 0,
            grant_at: capacity / 2,
            slot: 1 % slots,
            slots,
        }
    }

    /// Counts a data message of `length` bytes.
    pub(crate) fn arrived(&mut self, length: u32) -> Result<(), ProtocolViolation> {
        if length > self.size - self.free - self.unread {
            return Err(ProtocolViolation(
                "it sends more bytes than it has room for",
            ));
        }
        if self.messages.len() == usize::from(self.capacity) {
            return Err(ProtocolViolation(
                "it sends more messages than it has credits for",
            ));
        }
        self.unread += length;
        self.messages.push_back(length);
        self.drop_empty();
        Ok(())
    }

    /// Counts the announcement of an iomap, which takes a credit like a data message.
    pub(crate) fn announcement_arrived(&mut self) -> Result<(), ProtocolViolation> {
        self.arrived(0)
    }

    /// Returns the number of unread bytes.
    pub(crate) fn unread(&self) -> u32 {
        self.unread
    }

    /// Returns the place of up to `want` unread bytes.
    pub(crate) fn readable(&self, want: u32) -> Pieces {
        Pieces::new(self.at, want.min(self.unread), self.size)
    }

    /// Counts `length` bytes as read, at most those that are unread.
    pub(crate) fn consume(&mut self, length: u32) {
        self.at = (self.at + length) % self.size;
        self.unread -= length;
        self.free += length;
        let mut left = length;
        while left > 0
            && let Some(first) = self.messages.front_mut()
        {
            let taken = left.min(*first);
            *first -= taken;
            left -= taken;
            self.drop_empty();
        }
    }

    /// True if credits should be sent.
    pub(crate) fn credit_due(&self) -> bool {
        self.half_is_free() || self.read.wrapping_sub(self.grant_at) as i16 >= 0
    }

    /// Returns the credits to send, and counts them as sent.
    pub(crate) fn grant(&mut self) -> Credit {
        // At least 1: with a capacity of 1, half of it is 0 and credits would always be due.
        self.grant_at = self.read.wrapping_add((self.capacity / 2).max(1));
        let region = self.half_is_free().then(|| {
            let half = self.size / 2;
            let region = (self.slot, self.free_at, half);
            self.free -= half;
            self.free_at = (self.free_at + half) % self.size;
            self.slot = (self.slot + 1) % self.slots;
            region
        });
        Credit {
            limit: self.read.wrapping_add(self.capacity),
            region,
        }
    }

    fn half_is_free(&self) -> bool {
        self.free >= self.size / 2
    }

    /// Counts messages without unread bytes as read.
    fn drop_empty(&mut self) {
        while self.messages.front() == Some(&0) {
            self.messages.pop_front();
            self.read = self.read.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in `rsocket-v4.pcap`: 1 MiB, 384 receives.
    #[test]
    fn second_half_is_published_at_once() {
        let mut receiver = Incoming::new(1 << 20, 384, 2);
        assert!(receiver.credit_due());
        let credit = Credit {
            limit: 384,
            region: Some((1, 1 << 19, 1 << 19)),
        };
        assert_eq!(receiver.grant(), credit);
        assert!(!receiver.credit_due());
    }

    #[test]
    fn credits_are_due_after_half_of_the_messages() {
        let mut receiver = Incoming::new(1 << 20, 10, 2);
        receiver.grant();
        for number in 1..=5 {
            assert!(!receiver.credit_due());
            receiver.arrived(8).unwrap();
            receiver.consume(7);
            assert!(!receiver.credit_due(), "message {number} is not read yet");
            receiver.consume(1);
        }
        assert!(receiver.credit_due());
        let credit = Credit {
            limit: 15,
            region: None,
        };
        assert_eq!(receiver.grant(), credit);
    }

    #[test]
    fn sending_beyond_the_credits_is_a_protocol_violation() {
        let mut receiver = Incoming::new(100, 3, 2);
        assert!(receiver.arrived(51).is_err(), "half is published");
        receiver.grant();
        receiver.arrived(99).unwrap();
        assert!(receiver.arrived(2).is_err());
        receiver.arrived(1).unwrap();
        receiver.arrived(0).unwrap();
        assert!(receiver.arrived(0).is_err(), "three messages are unread");
    }

    #[test]
    fn announcements_count_as_read() {
        let mut receiver = Incoming::new(100, 4, 2);
        receiver.grant();
        receiver.announcement_arrived().unwrap();
        receiver.announcement_arrived().unwrap();
        assert_eq!(receiver.grant().limit, 6);
    }
}
