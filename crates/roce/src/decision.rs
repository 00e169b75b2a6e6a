//! Decisions of an engine about packets, in words: for captures and the flight recorder.
//!
//! The engine records decisions only while it is observed. Each of them belongs to a path that
//! packets take rarely: a duplicate, a gap, a retransmission, a failure. So an engine that
//! nobody observes does no work for them on the way of most packets.

use core::fmt;

use ferroce_wire::Psn;

use crate::error::Failure;

/// A decision of a queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// A request was received before, and is not executed again.
    Duplicate(Repeat),
    /// A request is ahead of the expected PSN, and is dropped.
    Gap {
        /// The expected PSN.
        expected: Psn,
        /// True if this request causes the NAK; false if an earlier one did.
        reported: bool,
    },
    /// No receive is posted for a request. It is dropped with an RNR NAK.
    NotReady {
        /// Time that the peer is to wait.
        wait_ns: u64,
    },
    /// The receive that is posted for a datagram is too short. The datagram is dropped.
    ShortReceive {
        /// Bytes of the receive.
        room: u64,
        /// Bytes that the datagram needs: 40 for the GRH, and its own.
        needed: u64,
    },
    /// A request is refused with a NAK, and the queue pair fails.
    Refused {
        /// Name of the NAK.
        nak: &'static str,
    },
    /// The requester goes back, and sends packets again.
    GoBack {
        /// First PSN to be sent again.
        from: Psn,
        /// First PSN that was not sent before.
        until: Psn,
        /// Cause of the retransmission.
        cause: Retransmission,
    },
    /// The requester sends its oldest unacknowledged packet again, to learn what was lost.
    Probe {
        /// PSN of the packet.
        psn: Psn,
    },
    /// A work request or the queue pair fails.
    Failed(Failure),
}

/// The response to a duplicate request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Repeat {
    /// An ACK of all requests so far.
    Acknowledged,
    /// The saved response of a READ, an atomic or a flush.
    Answered,
    /// None: the request matches no saved one.
    Ignored,
}

/// The cause of a retransmission.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Retransmission {
    /// A NAK reported a gap, or a response shows that an earlier one was lost.
    Gap,
    /// No response arrived in time.
    Timeout {
        /// The time.
        waited_ns: u64,
        /// Retries that are left.
        left: u8,
    },
    /// The peer acknowledged a probe and nothing behind it.
    ProbeAnswered,
    /// The peer had no receive posted. The packets are sent again after a wait.
    ReceiverNotReady {
        /// The wait.
        wait_ns: u64,
    },
}

impl Decision {
    /// Returns true for decisions about a packet that is dropped or refused, or that make a
    /// queue pair fail or send packets again.
    pub fn is_trouble(&self) -> bool {
        !matches!(self, Decision::Probe { .. })
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Decision::Duplicate(Repeat::Acknowledged) => f.write_str("duplicate, re-acknowledged"),
            Decision::Duplicate(Repeat::Answered) => {
                f.write_str("duplicate, answered from the saved request")
            }
            Decision::Duplicate(Repeat::Ignored) => {
                f.write_str("duplicate, dropped: it matches no saved request")
            }
            Decision::Gap { expected, reported } => {
                write!(f, "dropped: PSN {} is expected", expected.value())?;
                f.write_str(match reported {
                    true => ", a NAK reports the gap",
                    false => ", the gap is reported already",
                })
            }
            Decision::NotReady { wait_ns } => {
                let wait = Span(*wait_ns);
                write!(f, "dropped: no receive posted, an RNR NAK asks for {wait}")
            }
            Decision::ShortReceive { room, needed } => write!(
                f,
                "the receive has {room} bytes, and the datagram with its GRH needs {needed}"
            ),
            Decision::Refused { nak } => write!(f, "refused: NAK \"{nak}\""),
            Decision::GoBack { from, until, cause } => {
                let (from, last) = (from.value(), until.prev().value());
                match from == last {
                    true => write!(f, "PSN {from} is to be sent again: {cause}"),
                    false => write!(f, "PSNs {from} to {last} are to be sent again: {cause}"),
                }
            }
            Decision::Probe { psn } => {
                let psn = psn.value();
                write!(
                    f,
                    "response overdue: PSN {psn} is to be sent again as a probe"
                )
            }
            Decision::Failed(failure) => write!(f, "failed: {failure}"),
        }
    }
}

impl fmt::Display for Retransmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Retransmission::Gap => f.write_str("the peer reported a gap"),
            Retransmission::Timeout { waited_ns, left } => {
                let waited = Span(*waited_ns);
                write!(f, "no response within {waited}, {left} retries left")
            }
            Retransmission::ProbeAnswered => {
                f.write_str("the peer acknowledged a probe and nothing behind it")
            }
            Retransmission::ReceiverNotReady { wait_ns } => {
                let wait = Span(*wait_ns);
                write!(
                    f,
                    "RNR, the peer had no receive posted and asked for {wait}"
                )
            }
        }
    }
}

/// A time in the unit that people use for it.
struct Span(u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ns @ 0..1_000_000 => write!(f, "{} us", ns as f64 / 1e3),
            ns @ 1_000_000..1_000_000_000 => write!(f, "{:.1} ms", ns as f64 / 1e6),
            ns => write!(f, "{} s", ns as f64 / 1e9),
        }
    }
}

/// The decisions since the last time that an observer took them.
#[derive(Debug, Default)]
pub(crate) struct Decisions {
    pub(crate) observed: bool,
    pub(crate) list: Vec<(u32, Decision)>,
}

impl Decisions {
    /// Records a decision of a queue pair, if the engine is observed.
    #[inline]
    pub(crate) fn add(&mut self, qpn: u32, decision: impl FnOnce() -> Decision) {
        if self.observed {
            self.list.push((qpn, decision()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_unit_that_fits() {
        let text = |ns| Span(ns).to_string();
        assert_eq!(text(640_000), "640 us");
        assert_eq!(text(10), "0.01 us");
        assert_eq!(text(67_108_864), "67.1 ms");
        assert_eq!(text(2_500_000_000), "2.5 s");
    }
}
