//! Seeded randomness.
//!
//! Every decision of a run uses these generators. One seed has several
//! independent streams, so that an additional draw for the network does not
//! change the choices of the programs.

use core::ops::RangeInclusive;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The use of a stream of random numbers.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Stream {
    /// Choice of hosts, queue pairs and faults.
    Scenario,
    /// Actions of the programs and their times.
    Program,
    /// Loss, delay and corruption of packets.
    Network,
    /// Times and callers of the turns of devices.
    Device,
    /// Merged runs and source ports.
    Wire,
    /// Full socket buffers.
    Sender,
    /// Wakeups, routes and deaths on the local wire.
    Local,
    /// A hostile process on the local wire.
    Intruder,
}

pub(crate) struct Rng(ChaCha8Rng);

impl Rng {
    pub(crate) fn new(seed: u64, stream: Stream) -> Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream as u64);
        Rng(rng)
    }

    pub(crate) fn u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub(crate) fn u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Returns a number below `n`; `n` must not be zero.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        // The bias of a 64-bit remainder is negligible for a simulation.
        self.u64() % n
    }

    pub(crate) fn range(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = range.into_inner();
        low + self.below(high - low + 1)
    }

    /// Returns true with this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && f64::from(self.u32()) < probability * 4_294_967_296.0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}
