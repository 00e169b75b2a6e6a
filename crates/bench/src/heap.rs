//! The heap memory of a queue pair.

use anyhow::Result;
use ferroce_wire::Mtu;

use crate::pair::Pair;
use crate::traffic::{MESSAGES, Op, Setup, Traffic};

/// Access to the counters of the allocator.
#[derive(Copy, Clone, Debug)]
pub struct Heap {
    /// Returns the number of bytes that are allocated.
    pub live: fn() -> usize,
    /// Returns the number of allocations made so far.
    pub allocations: fn() -> usize,
}

/// Returns the heap bytes of an idle RC queue pair that is connected and has carried
/// traffic, without its queues.
///
/// The memory of the queues is proportional to their size. So this measures two sizes
/// and extrapolates to size zero.
pub fn bytes_per_qp(heap: Heap, qps: usize) -> Result<f64> {
    const SIZES: [u32; 2] = [16, 64];
    let [small, large] = SIZES.map(|queue| grown(heap, qps, queue));
    let (small, large) = (small?, large?);
    let per_entry = (large - small) / f64::from(SIZES[1] - SIZES[0]);
    Ok(small - per_entry * f64::from(SIZES[0]))
}

/// Returns the heap bytes of a queue pair with its queues.
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
    // Send two bursts over each queue pair.
    for _ in 0..(2 * qps * traffic.burst).div_ceil(MESSAGES) {
        pair.exchange(traffic)?;
    }
    let after = (heap.live)();
    // Subtract the benchmark's own four bytes per queue pair number.
    let harness =
        size_of_val(&pair.sender.ends.qpns[..]) + size_of_val(&pair.receiver.ends.qpns[..]);
    Ok((after - before - harness) as f64 / (2 * qps) as f64)
}
