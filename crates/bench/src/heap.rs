//! How much memory a queue pair takes.

use anyhow::Result;
use ferroce_wire::Mtu;

use crate::pair::Pair;
use crate::traffic::{MESSAGES, Op, Setup, Traffic};

/// A view of the heap, from whoever counts what is allocated.
#[derive(Copy, Clone, Debug)]
pub struct Heap {
    /// Bytes that are allocated now.
    pub live: fn() -> usize,
    /// Allocations ever made.
    pub allocations: fn() -> usize,
}

/// Bytes of heap for each RC queue pair that is connected, has carried traffic
/// and is idle; its queues aside.
///
/// What queues take is proportional to their size. So two sizes are measured,
/// and the line through them says what would be left at size zero.
pub fn bytes_per_qp(heap: Heap, qps: usize) -> Result<f64> {
    const SIZES: [u32; 2] = [16, 64];
    let [small, large] = SIZES.map(|queue| grown(heap, qps, queue));
    let (small, large) = (small?, large?);
    let per_entry = (large - small) / f64::from(SIZES[1] - SIZES[0]);
    Ok(small - per_entry * f64::from(SIZES[0]))
}

/// Bytes for each queue pair, with its queues.
fn grown(heap: Heap, qps: usize, queue: u32) -> Result<f64> {
    let setup = Setup {
        qps: 0,
        queue,
        icrc: false,
        mtu: Mtu::Mtu4096,
    };
    let traffic = Traffic {
        op: Op::Send,
        size: 64,
        burst: 16,
    };
    let mut pair = Pair::new(setup)?;
    let before = (heap.live)();
    pair.add_qps(qps, queue)?;
    // Two rounds over all queue pairs.
    for _ in 0..(2 * qps * traffic.burst).div_ceil(MESSAGES) {
        pair.exchange(traffic)?;
    }
    let after = (heap.live)();
    // The harness keeps four bytes of each number.
    let harness = size_of_val(&pair.sender.qpns[..]) + size_of_val(&pair.receiver.qpns[..]);
    Ok((after - before - harness) as f64 / (2 * qps) as f64)
}
