//! The receiving side of a stream.

use std::collections::VecDeque;

use super::Misbehaved;
use super::pieces::Pieces;

/// What to tell the peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Credit {
    /// The first message that it may not send.
    pub(crate) limit: u16,
    /// A new buffer: the entry of the peer's table, and offset and length in the ring.
    pub(crate) region: Option<(u32, u32, u32)>,
}

/// The books of the receiving side.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// The ring, and where its unread bytes begin.
    size: u32,
    at: u32,
    unread: u32,
    /// Bytes that were read and not yet published again, and where they begin.
    free: u32,
    free_at: u32,
    /// Lengths of messages whose bytes are unread, and how many there may be.
    messages: VecDeque<u32>,
    capacity: u16,
    /// How many messages were read, and when to grant more.
    read: u16,
    grant_at: u16,
    /// The peer's table: the next entry, and how many there are.
    slot: u32,
    slots: u32,
}

impl Incoming {
    /// A ring of `size` bytes, of which the first half is published, and `capacity`
    /// receives. `size` is even; the peer's table has `slots` entries, of which
    /// the first is in use.
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

    /// The peer has written bytes behind those that were there.
    pub(crate) fn arrived(&mut self, length: u32) -> Result<(), Misbehaved> {
        if length > self.size - self.free - self.unread {
            return Err(Misbehaved(
                "it claims to have sent more than there is room for",
            ));
        }
        if self.messages.len() == usize::from(self.capacity) {
            return Err(Misbehaved("it sends more messages than it has credits for"));
        }
        self.unread += length;
        self.messages.push_back(length);
        self.drop_empty();
        Ok(())
    }

    /// A message without data has arrived that counts like one with data.
    pub(crate) fn announcement_arrived(&mut self) -> Result<(), Misbehaved> {
        self.arrived(0)
    }

    /// How many bytes can be read.
    pub(crate) fn unread(&self) -> u32 {
        self.unread
    }

    /// Where the first of up to `want` bytes lie.
    pub(crate) fn readable(&self, want: u32) -> Pieces {
        Pieces::new(self.at, want.min(self.unread), self.size)
    }

    /// The first bytes have been read; `length` is not more than there were.
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

    /// Whether the peer should be told something.
    pub(crate) fn credit_due(&self) -> bool {
        self.half_is_free() || self.read.wrapping_sub(self.grant_at) as i16 >= 0
    }

    /// What to tell it; it counts as told.
    pub(crate) fn grant(&mut self) -> Credit {
        // Half of one is nothing, and would be due at once again.
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

    /// Messages count as read when nothing of them is left.
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
    fn the_second_half_is_published_at_once() {
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
    fn many_small_messages_are_granted_by_halves() {
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
    fn a_peer_that_sends_too_much_is_found_out() {
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
