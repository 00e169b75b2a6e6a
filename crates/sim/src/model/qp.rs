//! Queue pairs.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ferroce_transport::{QpCap, QpEvent, QpState, QpType, Time, WcStatus};
use ferroce_wire::{Mtu, Psn};

/// Why a queue pair may have failed.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Cause {
    /// The program moved it to ERR.
    pub(crate) program: bool,
    /// A completion of it was lost.
    pub(crate) cq_overflow: bool,
    /// At some time since it was connected its peer did not listen.
    pub(crate) peer_gone: bool,
    /// At some time since it was connected the network was down for long.
    pub(crate) dark: bool,
}

/// Where a send queue stands that was told to drain.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Drain {
    No,
    Draining,
    Drained,
}

/// How a queue pair was set up.
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

/// A datagram that a queue pair must deliver next.
#[derive(Debug)]
pub(crate) struct ExpectedDatagram {
    pub(crate) payload: Vec<u8>,
    pub(crate) imm: Option<u32>,
    pub(crate) src_qp: u32,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) solicited: bool,
}

/// A queue pair.
pub(crate) struct QpModel {
    pub(crate) host: usize,
    pub(crate) qpn: u32,
    pub(crate) kind: QpType,
    /// The other end of a connection.
    pub(crate) peer: Option<usize>,
    pub(crate) send_cq: usize,
    pub(crate) recv_cq: usize,
    pub(crate) srq: Option<usize>,
    /// The XRC domain of a target.
    pub(crate) domain: Option<usize>,
    pub(crate) cap: QpCap,
    pub(crate) signals_all: bool,
    pub(crate) setup: Setup,
    /// The largest message that its receives take.
    pub(crate) recv_size: u64,
    /// As last seen; `None` once destroyed.
    pub(crate) state: Option<QpState>,
    /// Work requests its program has yet to post.
    pub(crate) todo: u32,
    pub(crate) sends: Vec<usize>,
    /// How many of `sends` have ended.
    pub(crate) ended: usize,
    pub(crate) first_error: Option<(usize, WcStatus)>,
    /// Those of `sends` that take a receive.
    pub(crate) messages: Vec<usize>,
    pub(crate) recvs: Vec<usize>,
    pub(crate) recvs_ended: usize,
    /// How many of the peer's messages have been received.
    pub(crate) delivered: usize,
    pub(crate) datagrams: VecDeque<ExpectedDatagram>,
    /// Receives that datagrams have taken.
    pub(crate) datagrams_taken: usize,
    /// Datagrams that have left.
    pub(crate) datagrams_sent: usize,
    pub(crate) groups: BTreeSet<IpAddr>,
    pub(crate) cause: Cause,
    pub(crate) drain: Drain,
    pub(crate) events: Vec<QpEvent>,
    /// A receive of it has failed, and was not just flushed.
    pub(crate) recv_failed: bool,
    /// How often each request PSN has been sent.
    pub(crate) sent: BTreeMap<u32, u32>,
    /// All it has outstanding was posted when its peer no longer listened.
    pub(crate) hopeless: bool,
    /// Requests that want an answer, by the last PSN of the answer.
    pub(crate) awaited: BTreeSet<u32>,
    /// PSNs of READs, which no plain acknowledgement answers.
    pub(crate) read_psns: BTreeSet<u32>,
    /// The request its peer was not ready for, and when to try again.
    pub(crate) rnr_wait: Option<(Psn, Time)>,
    /// The request packet it sent last.
    pub(crate) last_request: Option<Psn>,
    /// Sequence NAKs it has sent, by PSN.
    pub(crate) naks: BTreeSet<u32>,
    /// RNR NAKs that reached it.
    pub(crate) rnr_naks: u32,
    /// Memory of its receives may be gone.
    pub(crate) bad_receives: bool,
    /// Requests it accepted while in RTR.
    pub(crate) early_requests: u32,
    /// Times it was reset to be connected again.
    pub(crate) lives: u32,
    /// It waits to be connected again, until then.
    pub(crate) reconnects: Option<Time>,
}

impl QpModel {
    pub(crate) fn is(&self, state: QpState) -> bool {
        self.state == Some(state)
    }

    /// Whether it takes requests from its peer.
    pub(crate) fn listens(&self) -> bool {
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

    /// Sends that have not ended.
    pub(crate) fn pending(&self) -> usize {
        self.sends.len() - self.ended
    }

    /// Forgets what a reset makes a queue pair forget.
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
        self.hopeless = false;
        self.awaited.clear();
        self.read_psns.clear();
        self.rnr_wait = None;
        self.last_request = None;
        self.naks.clear();
        self.rnr_naks = 0;
        self.bad_receives = false;
        self.events.clear();
        self.recv_failed = false;
        self.early_requests = 0;
    }
}
