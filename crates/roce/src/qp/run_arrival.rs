//! Learns whether runs arrive whole at a peer on another host.
//!
//! An ACK behind the answer to a request, in one run, costs no system call of its own. If the run arrives
//! whole, the peer processes the ACK first. A network may separate the two packets: then the peer would
//! complete its receive before the request, and programs depend on the other order. So an ACK goes first, as
//! on adapters. But over a veth pair, for example, runs stay whole, and a second datagram for each answer took 3 of
//! 8 us.
//!
//! Both ends send the first ACKs twice: in front of the answer, and behind it in its run. A peer of another
//! kind takes the second one for a duplicate. A queue pair whose peer's runs all arrive whole sends ACKs
//! behind answers from then on, because the way there is mostly like the way back. A duplicate ACK that
//! arrives alone was separated from its run, or repeated after a loss: from then on all ACKs go first.

use ferroce_wire::Psn;

use super::Qp;

/// Runs that must arrive whole. A network that separates one in a hundred shows that to half of all
/// queue pairs.
const NEEDED: u8 = 64;
/// ACKs that are sent twice. The peer may lack some of their runs.
const PROBES: u8 = 96;
/// Value of `whole` after a run was separated.
const SEPARATED: u8 = u8::MAX;

/// Whether runs of the peer arrive whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunArrival {
    /// Runs with an ACK behind other packets that have arrived.
    whole: u8,
    /// ACKs that will be sent twice.
    probes: u8,
}

/// Where an ACK goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckPlace {
    BehindRequests,
    BeforeRequests,
    /// Before the requests, and once more behind them.
    Both,
}

impl Default for RunArrival {
    fn default() -> RunArrival {
        RunArrival {
            whole: 0,
            probes: PROBES,
        }
    }
}

impl RunArrival {
    /// Returns the place of an ACK that could end the run of an answer.
    pub(super) fn ack_place(&mut self) -> AckPlace {
        if self.whole == NEEDED {
            return AckPlace::BehindRequests;
        }
        match self.probes {
            0 => AckPlace::BeforeRequests,
            left => {
                self.probes = left - 1;
                AckPlace::Both
            }
        }
    }

    fn note_whole(&mut self) {
        if self.whole < NEEDED {
            self.whole += 1;
        }
    }

    fn note_separated(&mut self) {
        (self.whole, self.probes) = (SEPARATED, 0);
    }
}

impl Qp {
    /// Notes how the ACK of a PSN has arrived: alone, or behind other packets of its run.
    pub(crate) fn note_ack_arrival(&mut self, psn: Psn, alone: bool) {
        if !alone {
            self.run_arrival.note_whole();
        } else if psn.is_before(self.req.una) {
            self.run_arrival.note_separated();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acks_follow_requests_after_enough_whole_runs() {
        let mut arrival = RunArrival::default();
        for _ in 0..NEEDED {
            assert_eq!(arrival.ack_place(), AckPlace::Both);
            arrival.note_whole();
        }
        assert_eq!(arrival.ack_place(), AckPlace::BehindRequests);
        arrival.note_whole();
        assert_eq!(arrival.ack_place(), AckPlace::BehindRequests);
    }

    #[test]
    fn acks_precede_requests_of_a_peer_that_sends_no_runs() {
        let mut arrival = RunArrival::default();
        for _ in 0..PROBES {
            assert_eq!(arrival.ack_place(), AckPlace::Both);
        }
        assert_eq!(arrival.ack_place(), AckPlace::BeforeRequests);
    }

    #[test]
    fn acks_precede_requests_for_good_after_a_separated_run() {
        for whole in [0, 1, NEEDED] {
            let mut arrival = RunArrival::default();
            (0..whole).for_each(|_| arrival.note_whole());
            arrival.note_separated();
            (0..=NEEDED).for_each(|_| arrival.note_whole());
            assert_eq!(arrival.ack_place(), AckPlace::BeforeRequests);
        }
    }
}
