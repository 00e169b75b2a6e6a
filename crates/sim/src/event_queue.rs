//! The queue of future events, which alone determines their order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ferroce_roce::Time;

use crate::network::InFlight;

/// A simulated event.
#[derive(Debug)]
pub(crate) enum SimEvent {
    /// A packet reaches a host's receive buffer.
    Arrive { host: usize, packet: InFlight },
    /// A host processes packets from its receive buffer.
    Serve { host: usize },
    /// The program on a host polls again after it has received something.
    Poll { host: usize },
    /// A thread that sends outside its shard sends now, and ends.
    Sent { host: usize },
    /// A deadline of a host's shard.
    Timer { host: usize, due: Time },
    /// The program on a host takes a step.
    Program { host: usize },
    /// The route of a host's datagrams to a queue pair of its machine is known.
    Route { host: usize, qpn: u32 },
    /// The intruder does something.
    Intrude,
    /// One of the scenario's disruptions, by index.
    Disrupt { index: usize },
    /// A queue pair that waits in RTR, SQD or RESET may continue.
    Resume { qp: usize },
    /// All faults end.
    Heal,
}

/// Future events, ordered by time, then by the order of scheduling.
#[derive(Default)]
pub(crate) struct EventQueue {
    heap: BinaryHeap<Reverse<Entry>>,
    planned: u64,
}

struct Entry {
    time: Time,
    number: u64,
    what: SimEvent,
}

impl EventQueue {
    pub(crate) fn schedule(&mut self, time: Time, what: SimEvent) {
        let number = self.planned;
        self.planned += 1;
        self.heap.push(Reverse(Entry { time, number, what }));
    }

    pub(crate) fn next(&mut self) -> Option<(Time, SimEvent)> {
        let Reverse(entry) = self.heap.pop()?;
        Some((entry.time, entry.what))
    }
}

impl Entry {
    fn key(&self) -> (Time, u64) {
        (self.time, self.number)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}
