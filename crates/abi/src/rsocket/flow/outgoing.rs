//! The sending side of a stream.

use std::collections::VecDeque;

use super::pieces::Pieces;
use super::{CONTROL_MESSAGES, LOW_WATER, MAX_TRANSFER, Misbehaved};
use crate::rsocket::wire::Region;

/// What may be sent next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) length: u32,
    /// Where in the ring it waits until it has arrived.
    pub(crate) pieces: Pieces,
    /// Where it goes; `length` is the chunk's.
    pub(crate) remote: Region,
}

/// The books of the sending side.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Work requests that may still be posted for data.
    slots: u32,
    /// Work requests that may still be posted for control messages.
    control: u32,
    /// The number of the next data message, and the first that may not be sent yet.
    next: u16,
    limit: u16,
    /// The ring: its size, where free bytes begin, and how many there are.
    size: u32,
    at: u32,
    free: u32,
    /// The region that is being filled, and those to fill afterwards.
    current: Region,
    offered: VecDeque<Region>,
}

/// More regions than the receiver's table has entries were never filled.
const MAX_OFFERED: usize = 2;

impl Outgoing {
    /// A ring of `size` bytes, `slots` work requests, and what the peer granted.
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

    /// What of `want` bytes could be sent now.
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

    /// A chunk of data left, `kept` bytes of it in the ring (none, if it was inline).
    pub(crate) fn posted(&mut self, chunk: &Chunk, kept: u32) {
        self.next = self.next.wrapping_add(1);
        self.keep(kept);
        self.current.addr = self.current.addr.wrapping_add(chunk.length.into());
        self.current.length -= chunk.length;
        self.advance();
    }

    /// Room in the ring for up to `want` bytes that go elsewhere and need no credits.
    pub(crate) fn room(&self, want: u32) -> Option<Pieces> {
        let length = want.min(self.free).min(MAX_TRANSFER);
        (self.slots > 0 && length > 0).then(|| Pieces::new(self.at, length, self.size))
    }

    /// Bytes that go elsewhere have left, `kept` of them in the ring.
    pub(crate) fn posted_elsewhere(&mut self, kept: u32) {
        self.keep(kept);
    }

    /// Whether a message without data may be sent that counts like one with data.
    pub(crate) fn can_announce(&self) -> bool {
        self.slots > 0 && self.next != self.limit
    }

    /// Such a message has left.
    pub(crate) fn announced(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.keep(0);
    }

    /// A work request for data has completed that had `kept` bytes in the ring.
    pub(crate) fn completed(&mut self, kept: u32) {
        self.slots += 1;
        self.free += kept;
    }

    pub(crate) fn can_control(&self) -> bool {
        self.control > 0
    }

    pub(crate) fn control_posted(&mut self) {
        self.control -= 1;
    }

    pub(crate) fn control_completed(&mut self) {
        self.control += 1;
    }

    /// The peer receives messages up to `limit`.
    pub(crate) fn granted(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// The peer has published a region.
    pub(crate) fn offered(&mut self, region: Region) -> Result<(), Misbehaved> {
        if self.offered.len() == MAX_OFFERED {
            return Err(Misbehaved(
                "it publishes more buffers than there is room for",
            ));
        }
        self.offered.push_back(region);
        self.advance();
        Ok(())
    }

    /// Whether the stream counts as writable.
    pub(crate) fn writable(&self) -> bool {
        let enough = self.free >= LOW_WATER.min(self.size);
        enough && self.chunk(1).is_some()
    }

    /// How many work requests are under way, of `slots`.
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
    fn a_region_is_filled_before_the_next_one_is_begun() {
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
    fn without_credits_slots_or_regions_nothing_is_sent() {
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
    fn the_ring_wraps_in_two_pieces() {
        let mut sender = Outgoing::new(100, 10, 10, region(0, 1000));
        let chunk = sender.chunk(80).unwrap();
        sender.posted(&chunk, 80);
        sender.completed(80);
        let chunk = sender.chunk(50).unwrap();
        assert_eq!(chunk.pieces.iter().collect::<Vec<_>>(), [(80, 20), (0, 30)]);
        assert_eq!(chunk.pieces.total(), 50);
    }

    #[test]
    fn a_peer_that_publishes_too_much_is_found_out() {
        let mut sender = Outgoing::new(100, 10, 10, region(0, 10));
        sender.offered(region(1, 1)).unwrap();
        sender.offered(region(2, 1)).unwrap();
        assert!(sender.offered(region(3, 1)).is_err());
    }
}
