//! The model of queue pairs.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ferroce_roce::{QpCap, QpEvent, QpState, QpType, Time, WcStatus};
use ferroce_wire::{Mtu, Psn};

use crate::program::Choice;

/// Causes for the failure of a queue pair that lie outside its work requests.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Cause {
    /// The program moved the queue pair to ERR.
    pub(crate) program: bool,
    /// One of its completion queues overflowed, so completions are missing.
    pub(crate) cq_overflow: bool,
    /// The peer was unable to receive at some time since the connection was made.
    pub(crate) peer_gone: bool,
    /// The network had an outage at some time since the connection was made.
    pub(crate) outage: bool,
}

/// The drain state of a send queue.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Drain {
    No,
    Draining,
    Drained,
}

/// The attributes of a queue pair.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) mtu: Mtu,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) depth: u8,
    pub(crate) sq_psn: Psn,
    pub(crate) qkey: u32,
    pub(crate) flow_label: u32,
}

/// A datagram that a queue pair must deliver to its program.
#[derive(Debug)]
pub(crate) struct ExpectedDatagram {
    pub(crate) payload: Vec<u8>,
    pub(crate) imm: Option<u32>,
    pub(crate) src_qp: u32,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) solicited: bool,
}

/// The oracle's model of a queue pair.
pub(crate) struct QpModel {
    pub(crate) host: usize,
    pub(crate) qpn: u32,
    pub(crate) kind: QpType,
    /// The other end of a connection.
    pub(crate) peer: Option<usize>,
    pub(crate) send_cq: usize,
    pub(crate) recv_cq: usize,
    pub(crate) srq: Option<usize>,
    /// XRC domain of an XRC target.
    pub(crate) domain: Option<usize>,
    pub(crate) cap: QpCap,
    pub(crate) signals_all: bool,
    pub(crate) setup: Setup,
    /// Largest message that fits its receives.
    pub(crate) recv_size: u64,
    /// State at the last query; `None` once destroyed.
    pub(crate) state: Option<QpState>,
    /// Number of work requests that the program has yet to post.
    pub(crate) todo: u32,
    /// The only operation that the program posts, with long messages.
    pub(crate) only: Option<Choice>,
    pub(crate) sends: Vec<usize>,
    /// Number of `sends` that have ended.
    pub(crate) ended: usize,
    pub(crate) first_error: Option<(usize, WcStatus)>,
    /// The entries of `sends` that consume a receive at the peer.
    pub(crate) messages: Vec<usize>,
    pub(crate) recvs: Vec<usize>,
    pub(crate) recvs_ended: usize,
    /// Number of the peer's messages received.
    pub(crate) delivered: usize,
    pub(crate) datagrams: VecDeque<ExpectedDatagram>,
    /// Number of receives that datagrams have consumed.
    pub(crate) datagrams_taken: usize,
    /// Number of work requests whose datagram was sent or that failed.
    pub(crate) datagrams_sent: usize,
    pub(crate) groups: BTreeSet<IpAddr>,
    pub(crate) cause: Cause,
    pub(crate) drain: Drain,
    pub(crate) events: Vec<QpEvent>,
    /// A receive completed with an error other than a flush.
    pub(crate) recv_failed: bool,
    /// Number of transmissions of each request PSN.
    pub(crate) sent: BTreeMap<u32, u32>,
    /// All outstanding requests were posted after the peer stopped receiving.
    pub(crate) peer_unreachable: bool,
    /// READs, atomics and FLUSHes awaiting a response, by the response's last PSN.
    pub(crate) awaited: BTreeSet<u32>,
    /// PSNs of READs. A plain ACK must never answer them.
    pub(crate) read_psns: BTreeSet<u32>,
    /// The PSN that an RNR NAK refused, and the earliest time to retransmit it.
    pub(crate) rnr_wait: Option<(Psn, Time)>,
    /// The PSN of the last RNR NAK, and the end of the wait that the first one for this PSN
    /// began.
    pub(crate) last_rnr_nak: Option<(Psn, Time)>,
    /// PSN of the request packet sent last.
    pub(crate) last_request: Option<Psn>,
    /// Sequence NAKs sent, by PSN.
    pub(crate) naks: BTreeSet<u32>,
    /// Number of RNR NAKs received.
    pub(crate) rnr_naks: u32,
    /// Memory of a posted receive was deregistered.
    pub(crate) bad_receives: bool,
    /// Number of request packets accepted while in RTR.
    pub(crate) early_requests: u32,
    /// Number of resets made in order to reconnect.
    pub(crate) reconnections: u32,
    /// Time at which the queue pair is connected again.
    pub(crate) reconnect_at: Option<Time>,
}

impl QpModel {
    pub(crate) fn is(&self, state: QpState) -> bool {
        self.state == Some(state)
    }

    /// Returns true in a state that accepts requests from the peer.
    pub(crate) fn can_receive(&self) -> bool {
        matches!(
            self.state,
            Some(QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
        )
    }

    pub(crate) fn is_datagram(&self) -> bool {
        self.kind.is_datagram()
    }

    pub(crate) fn has_own_rq(&self) -> bool {
        self.srq.is_none() && !matches!(self.kind, QpType::XrcInitiator | QpType::XrcTarget)
    }

    pub(crate) fn can_send(&self) -> bool {
        self.kind != QpType::XrcTarget
    }

    /// Returns the number of sends that have not ended.
    pub(crate) fn pending(&self) -> usize {
        self.sends.len() - self.ended
    }

    /// Clears everything that a reset clears.
    pub(crate) fn forget(&mut self) {
        self.sends.clear();
        self.ended = 0;
        self.first_error = None;
        self.messages.clear();
        self.recvs.clear();
        self.recvs_ended = 0;
        self.delivered = 0;
        self.datagrams.clear();
        self.datagrams_taken = 0;
        self.datagrams_sent = 0;
        self.cause = Cause::default();
        self.drain = Drain::No;
        self.sent.clear();
        self.peer_unreachable = false;
        self.awaited.clear();
        self.read_psns.clear();
        self.rnr_wait = None;
        self.last_rnr_nak = None;
        self.last_request = None;
        self.naks.clear();
        self.rnr_naks = 0;
        self.bad_receives = false;
        self.events.clear();
        self.recv_failed = false;
        self.early_requests = 0;
    }
}
