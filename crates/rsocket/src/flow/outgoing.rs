//! Flow control of the sending side of a stream.

use std::collections::VecDeque;

use super::pieces::Pieces;
use super::{CONTROL_MESSAGES, LOW_WATER, MAX_TRANSFER, ProtocolViolation};
use crate::wire::Region;

/// The next bytes that may be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    /// The number of bytes.
    pub(crate) length: u32,
    /// The bytes' place in the send ring until they are acknowledged.
    pub(crate) pieces: Pieces,
    /// The destination; its `length` is that of the chunk.
    pub(crate) remote: Region,
}

/// Counters of the sending side.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Number of work requests that may still be posted for data.
    slots: u32,
    /// Number of work requests that may still be posted for control messages.
    control: u32,
    /// Sequence number of the next data message, and the first that has no credit yet.
    next: u16,
    limit: u16,
    /// The send ring: its size, the offset of its free bytes, and their number.
    size: u32,
    at: u32,
    free: u32,
    /// The region that is being filled, and the regions after it.
    current: Region,
    offered: VecDeque<Region>,
}

/// The maximum number of published regions that are not begun: our table has 2 entries.
const MAX_OFFERED: usize = 2;

impl Outgoing {
    /// Creates counters for a ring of `size` bytes and `slots` work requests, with the
    /// credits and the first region of the peer's greeting.
    pub(crate) fn new(size: u32, slots: u32, credits: u16, first: Region) -> Outgoing {
        Outgoing {
            slots,
            control: CONTROL_MESSAGES,
            next: 0,
            limit: credits,
            size,
            at: 0,
            free: size,
            current: first,
            offered: VecDeque::with_capacity(MAX_OFFERED),
        }
    }

    /// Returns the part of `want` bytes that may be sent now.
    pub(crate) fn chunk(&self, want: u32) -> Option<Chunk> {
        if self.slots == 0 || self.next == self.limit {
            return None;
        }
        let length = want
            .min(self.current.length)
            .min(self.free)
            .min(MAX_TRANSFER);
        (length > 0).then(|| Chunk {
            length,
            pieces: Pieces::new(self.at, length, self.size),
            remote: Region {
                length,
                ..self.current
            },
        })
    }

    /// Counts a posted chunk, of which the ring holds `kept` bytes: none if it was inline.
    pub(crate) fn posted(&mut self, chunk: &Chunk, kept: u32) {
        self.next = self.next.wrapping_add(1);
        self.keep(kept);
        self.current.addr = self.current.addr.wrapping_add(chunk.length.into());
        self.current.length -= chunk.length;
        self.advance();
    }

    /// Returns room in the ring for up to `want` bytes of a WRITE to an iomap, which needs no
    /// credit.
    pub(crate) fn room(&self, want: u32) -> Option<Pieces> {
        let length = want.min(self.free).min(MAX_TRANSFER);
        (self.slots > 0 && length > 0).then(|| Pieces::new(self.at, length, self.size))
    }

    /// Counts a posted WRITE to an iomap, of which the ring holds `kept` bytes.
    pub(crate) fn posted_direct(&mut self, kept: u32) {
        self.keep(kept);
    }

    /// True if an iomap may be announced, which takes a credit like a data message.
    pub(crate) fn can_announce(&self) -> bool {
        self.slots > 0 && self.next != self.limit
    }

    /// Counts a posted announcement.
    pub(crate) fn announced(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.keep(0);
    }

    /// Counts the completion of a work request for data that kept `kept` bytes in the ring.
    pub(crate) fn completed(&mut self, kept: u32) {
        self.slots += 1;
        self.free += kept;
    }

    /// True if a control message may be posted.
    pub(crate) fn can_control(&self) -> bool {
        self.control > 0
    }

    /// Counts a posted control message.
    pub(crate) fn control_posted(&mut self) {
        self.control -= 1;
    }

    /// Counts the completion of a control message.
    pub(crate) fn control_completed(&mut self) {
        self.control += 1;
    }

    /// Accepts credits: the first sequence number that may not be sent is `limit`.
    pub(crate) fn granted(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// Accepts a region that the peer has published.
    pub(crate) fn offered(&mut self, region: Region) -> Result<(), ProtocolViolation> {
        if self.offered.len() == MAX_OFFERED {
            return Err(ProtocolViolation(
                "it publishes more receive buffers than the table has entries",
            ));
        }
        self.offered.push_back(region);
        self.advance();
        Ok(())
    }

    /// True if the stream is writable.
    pub(crate) fn writable(&self) -> bool {
        let enough = self.free >= LOW_WATER.min(self.size);
        enough && self.chunk(1).is_some()
    }

    /// True if none of the `slots` work requests and no control message is in flight.
    pub(crate) fn idle(&self, slots: u32) -> bool {
        self.slots == slots && self.control == CONTROL_MESSAGES
    }

    fn keep(&mut self, kept: u32) {
        self.slots -= 1;
        self.free -= kept;
        self.at = (self.at + kept) % self.size;
    }

    fn advance(&mut self) {
        while self.current.length == 0
            && let Some(next) = self.offered.pop_front()
        {
            self.current = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(addr: u64, length: u32) -> Region {
        Region {
            addr,
            key: 9,
            length,
        }
    }

    #[test]
    fn region_is_filled_before_the_next_is_begun() {
        let mut sender = Outgoing::new(1000, 10, 10, region(5000, 100));
        sender.offered(region(9000, 50)).unwrap();
        let chunk = sender.chunk(120).unwrap();
        assert_eq!((chunk.length, chunk.remote), (100, region(5000, 100)));
        sender.posted(&chunk, 100);
        let chunk = sender.chunk(20).unwrap();
        assert_eq!(chunk.remote, region(9000, 20));
        sender.posted(&chunk, 20);
        assert_eq!(sender.chunk(100).unwrap().remote, region(9020, 30));
    }

    #[test]
    fn sending_needs_credits_slots_and_regions() {
        let mut sender = Outgoing::new(1000, 2, 1, region(0, 100));
        let chunk = sender.chunk(10).unwrap();
        sender.posted(&chunk, 10);
        assert!(sender.chunk(10).is_none(), "no credits");
        sender.granted(5);
        let chunk = sender.chunk(10).unwrap();
        sender.posted(&chunk, 10);
        assert!(sender.chunk(10).is_none(), "no slots");
        assert!(!sender.idle(2));
        sender.completed(10);
        let chunk = sender.chunk(100).unwrap();
        assert_eq!(chunk.length, 80);
        sender.posted(&chunk, 80);
        sender.completed(10);
        assert!(sender.chunk(10).is_none(), "no region");
        sender.completed(80);
        assert!(sender.idle(2));
    }

    #[test]
    fn chunk_that_wraps_has_two_pieces() {
        let mut sender = Outgoing::new(100, 10, 10, region(0, 1000));
        let chunk = sender.chunk(80).unwrap();
        sender.posted(&chunk, 80);
        sender.completed(80);
        let chunk = sender.chunk(50).unwrap();
        assert_eq!(chunk.pieces.iter().collect::<Vec<_>>(), [(80, 20), (0, 30)]);
        assert_eq!(chunk.pieces.total(), 50);
    }

    #[test]
    fn third_unfilled_region_is_a_protocol_violation() {
        let mut sender = Outgoing::new(100, 10, 10, region(0, 10));
        sender.offered(region(1, 1)).unwrap();
        sender.offered(region(2, 1)).unwrap();
        assert!(sender.offered(region(3, 1)).is_err());
    }
}
