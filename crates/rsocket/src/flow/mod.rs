//! Flow control of a stream: credits, ring buffers and regions. The types here count; they
//! hold neither memory nor a queue pair.
//!
//! ```text
//!   Outgoing                                             Incoming
//!   ring of bytes in flight     RDMA WRITE + Data(n)     ring of received bytes
//!   current target region  ---------------------------->   unread | published | free
//!   credits (messages)     <----------------------------  half of the ring is free:
//!                          RDMA WRITE + Credits(limit)     publish it, grant messages
//! ```
//!
//! A receive buffer is published in halves. The sender fills each half before it begins the
//! next, so received bytes lie in the ring in order. Each credit stands for one posted
//! receive and pays for one data message. Control messages need no credit: at most 4 are in
//! flight, and the transport retries when no receive is posted.

mod incoming;
mod outgoing;
mod pieces;

pub(crate) use incoming::Incoming;
pub(crate) use outgoing::{Chunk, Outgoing};
pub(crate) use pieces::Pieces;

/// The maximum number of control messages in flight.
pub(crate) const CONTROL_MESSAGES: u32 = 4;

/// A stream is writable if this many bytes fit into the send ring.
pub(crate) const LOW_WATER: u32 = 2048;

/// The maximum payload of one message in bytes.
pub(crate) const MAX_TRANSFER: u32 = 65536;

/// A protocol violation of the peer, which ends the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ProtocolViolation(pub(crate) &'static str);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::Region;

    /// Both ends in one process: addresses of regions are offsets into the ring.
    struct Pair {
        sender: Outgoing,
        receiver: Incoming,
        ring: Vec<u8>,
        sent: u64,
        received: u64,
        /// Lengths of chunks whose sends have not completed.
        in_flight: Vec<u32>,
    }

    fn byte(at: u64) -> u8 {
        (at % 251) as u8
    }

    impl Pair {
        fn new(ring: u32, messages: u16, send_ring: u32, slots: u32) -> Pair {
            let receiver = Incoming::new(ring, messages, 2);
            let first = Region {
                addr: 0,
                key: 0,
                length: ring / 2,
            };
            Pair {
                sender: Outgoing::new(send_ring, slots, messages, first),
                receiver,
                ring: vec![0; ring as usize],
                sent: 0,
                received: 0,
                in_flight: Vec::new(),
            }
        }

        fn send(&mut self, want: u32) {
            let Some(chunk) = self.sender.chunk(want) else {
                return;
            };
            assert!(chunk.length > 0 && chunk.length <= want);
            for i in 0..u64::from(chunk.length) {
                self.ring[(chunk.remote.addr + i) as usize] = byte(self.sent + i);
            }
            self.sent += u64::from(chunk.length);
            self.sender.posted(&chunk, chunk.length);
            self.in_flight.push(chunk.length);
            self.receiver.arrived(chunk.length).expect("room");
        }

        fn complete(&mut self) {
            if !self.in_flight.is_empty() {
                let length = self.in_flight.remove(0);
                self.sender.completed(length);
            }
        }

        fn receive(&mut self, want: u32) {
            for (offset, length) in self.receiver.readable(want).iter() {
                for i in 0..length {
                    let found = self.ring[(offset + i) as usize];
                    assert_eq!(found, byte(self.received));
                    self.received += 1;
                }
            }
            let pieces = self.receiver.readable(want);
            self.receiver.consume(pieces.total());
        }

        fn credit(&mut self) {
            while self.receiver.credit_due() {
                let credit = self.receiver.grant();
                self.sender.granted(credit.limit);
                if let Some((_slot, addr, length)) = credit.region {
                    let (addr, key) = (addr.into(), 0);
                    self.sender
                        .offered(Region { addr, key, length })
                        .expect("in turn");
                }
            }
        }
    }

    proptest! {
        /// For any sizes of sends and reads: bytes arrive in order, unread bytes are not
        /// overwritten, and after everything was read there is room to send again.
        #[test]
        fn bytes_arrive_in_order_and_the_stream_never_stalls(
            ring in 2u32..20_000, messages in 1u16..50, send_ring in 1u32..20_000, slots in 1u32..20,
            steps in prop::collection::vec((0u8..4, 1u32..8000), 1..400),
        ) {
            let mut pair = Pair::new(ring * 2, messages, send_ring, slots);
            for (what, size) in steps {
                match what {
                    0 => pair.send(size),
                    1 => pair.complete(),
                    2 => pair.receive(size),
                    _ => pair.credit(),
                }
            }
            // After all completions and reads there is room again.
            while !pair.in_flight.is_empty() {
                pair.complete();
            }
            pair.receive(u32::MAX);
            prop_assert_eq!(pair.sent, pair.received);
            pair.credit();
            prop_assert!(pair.sender.chunk(1).is_some());
        }
    }

    #[test]
    fn message_sequence_numbers_wrap() {
        let mut pair = Pair::new(4096, 16, 4096, 8);
        for _ in 0..200_000 {
            pair.credit();
            pair.send(1);
            pair.complete();
            pair.receive(1);
        }
        assert_eq!((pair.sent, pair.received), (200_000, 200_000));
    }
}
