//! What happens when: the only order of events there is.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ferroce_transport::Time;

use crate::network::Flying;

/// Something that is going to happen.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A packet reaches a host's receive buffer.
    Arrive { host: usize, packet: Flying },
    /// A host takes packets from its receive buffer.
    Serve { host: usize },
    /// A host's timer is due.
    Timer { host: usize },
    /// The program on a host does something.
    Program { host: usize },
    /// One of the scenario's disruptions, by number.
    Disrupt { index: usize },
    /// Something that was stopped goes on.
    Resume { qp: usize },
    /// Faults end.
    Heal,
}

/// Future events in the order of time, and of planning where times are equal.
#[derive(Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<Entry>>,
    planned: u64,
}

struct Entry {
    time: Time,
    number: u64,
    what: Happening,
}

impl Agenda {
    pub(crate) fn plan(&mut self, time: Time, what: Happening) {
        let number = self.planned;
        self.planned += 1;
        self.heap.push(Reverse(Entry { time, number, what }));
    }

    pub(crate) fn next(&mut self) -> Option<(Time, Happening)> {
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
