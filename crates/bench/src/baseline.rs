//! The baseline: the unavoidable work of copying and checksumming each byte once
//! on each side.

use core::hint::black_box;

use ferroce_roce::{MemRef, Memory, Time};

use crate::clock::Clock;
use crate::pair::Pair;
use crate::traffic::{Cost, MESSAGES};

/// Copies and checksums the bytes of one exchange between the same buffers that the
/// engines use. Each packet has `header` and `payload` bytes.
pub fn baseline(pair: &mut Pair, header: usize, payload: usize) -> Cost {
    let clock = Clock::start();
    let packet = header + payload;
    let wire = &mut pair.sender.wire.bytes;

    let (from, base) = (&pair.sender.ends.arena, pair.sender.ends.arena.base());
    let start = clock.now();
    for message in 0..MESSAGES {
        let out = &mut wire[message * packet..][..packet];
        let address = base + (message * payload) as u64;
        black_box(from.read(MemRef::host(address), &mut out[header..]).is_ok());
        black_box(crc32fast::hash(out));
    }
    let middle = clock.now();
    let (to, base) = (&pair.receiver.ends.arena, pair.receiver.ends.arena.base());
    for message in 0..MESSAGES {
        let data = &wire[message * packet..][..packet];
        black_box(crc32fast::hash(data));
        let address = base + (message * payload) as u64;
        black_box(to.write(MemRef::host(address), &data[header..]).is_ok());
    }
    let between = |from: Time, to: Time| to.nanos_since(from);
    Cost {
        sender: between(start, middle),
        receiver: between(middle, clock.now()),
    }
}
