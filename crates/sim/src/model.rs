//! What the simulator knows about every object: the oracle's side of the world.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use ferroce_transport::{Cq, Mw, QpCap, QpEvent, QpState, QpType, Srq, WcOpcode, WcStatus};
use ferroce_wire::{Mtu, Psn};

use crate::zone::Place;

/// What a send work request does.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Send,
    SendInvalidate,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
    LocalInvalidate,
    Bind,
}

impl Kind {
    /// The opcode of its completion.
    pub(crate) fn wc_opcode(self) -> WcOpcode {
        match self {
            Kind::Send | Kind::SendInvalidate => WcOpcode::Send,
            Kind::Write => WcOpcode::RdmaWrite,
            Kind::Read => WcOpcode::RdmaRead,
            Kind::CompareSwap => WcOpcode::CompareSwap,
            Kind::FetchAdd => WcOpcode::FetchAdd,
            Kind::AtomicWrite => WcOpcode::AtomicWrite,
            Kind::Flush => WcOpcode::Flush,
            Kind::LocalInvalidate => WcOpcode::LocalInvalidate,
            Kind::Bind => WcOpcode::BindMw,
        }
    }
}

/// What may become of a work request, apart from what befalls its queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    /// It may succeed.
    pub(crate) success: bool,
    /// The errors it may complete with.
    pub(crate) errors: Vec<WcStatus>,
    /// The peer may refuse it.
    pub(crate) refusable: bool,
}

impl Verdict {
    /// It has no reason to fail.
    pub(crate) fn good() -> Verdict {
        Verdict {
            success: true,
            errors: Vec::new(),
            refusable: false,
        }
    }

    /// The peer must refuse it.
    pub(crate) fn refused(errors: &[WcStatus]) -> Verdict {
        Verdict {
            success: false,
            errors: errors.to_vec(),
            refusable: true,
        }
    }

    /// It must fail on this side.
    pub(crate) fn fails(error: WcStatus) -> Verdict {
        Verdict {
            success: false,
            errors: vec![error],
            refusable: false,
        }
    }

    /// From now on it may also fail like this.
    pub(crate) fn also(&mut self, error: WcStatus, refusable: bool) {
        self.errors.push(error);
        self.refusable |= refusable;
    }
}

/// How a work request ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// With this status, by a completion or implied by a later one.
    Completed(WcStatus),
    /// Without a completion: its queue pair was reset or destroyed.
    Vanished,
}

/// A counter at the peer and the operand of an atomic on it.
#[derive(Copy, Clone, Debug)]
pub(crate) struct AtomicTarget {
    pub(crate) host: usize,
    pub(crate) va: u64,
    pub(crate) operand: u64,
}

/// Where a datagram goes.
#[derive(Clone, Debug)]
pub(crate) struct DatagramTarget {
    pub(crate) address: IpAddr,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
}

/// A range that a FLUSH must flush: address, length, durably.
pub(crate) type FlushRange = (u64, u64, bool);

/// A send work request.
#[derive(Debug)]
pub(crate) struct SendRecord {
    pub(crate) qp: usize,
    /// Its number in its queue, since the queue was last reset.
    pub(crate) index: usize,
    pub(crate) kind: Kind,
    pub(crate) payload: Rc<[u8]>,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidates: Option<u32>,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) local: Vec<Place>,
    /// Host and place of the memory it writes or reads there.
    pub(crate) remote: Option<(usize, Place)>,
    /// The remote place is free once this request has succeeded.
    pub(crate) frees_remote: bool,
    pub(crate) atomic: Option<AtomicTarget>,
    pub(crate) flush: Option<FlushRange>,
    pub(crate) window: Option<usize>,
    pub(crate) xrc_srq: Option<usize>,
    pub(crate) datagram: Option<DatagramTarget>,
    pub(crate) verdict: Verdict,
    pub(crate) end: Option<End>,
}

impl SendRecord {
    /// Whether it takes a receive at the peer.
    pub(crate) fn consumes(&self) -> bool {
        match self.kind {
            Kind::Send | Kind::SendInvalidate => true,
            Kind::Write => self.imm.is_some(),
            _ => false,
        }
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.end == Some(End::Completed(WcStatus::Success))
    }
}

/// Which queue a receive was posted to.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum RecvOwner {
    Qp(usize),
    Srq(usize),
}

/// A receive work request.
#[derive(Debug)]
pub(crate) struct RecvRecord {
    pub(crate) owner: RecvOwner,
    /// Its number in its queue.
    pub(crate) index: usize,
    pub(crate) places: Vec<Place>,
    /// What it may fail with, beyond what its queue pair or message bring.
    pub(crate) errors: Vec<WcStatus>,
    pub(crate) end: Option<End>,
}

impl RecvRecord {
    pub(crate) fn capacity(&self) -> u64 {
        self.places.iter().map(|p| p.len).sum()
    }
}

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
    /// How often each request PSN has been sent.
    pub(crate) sent: BTreeMap<u32, u32>,
    /// All it has outstanding was posted when its peer no longer listened.
    pub(crate) hopeless: bool,
    /// Requests that want an answer, by the last PSN of the answer.
    pub(crate) awaited: BTreeSet<u32>,
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
    /// It waits to be connected again.
    pub(crate) reconnecting: bool,
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
        self.naks.clear();
        self.rnr_naks = 0;
        self.bad_receives = false;
        self.events.clear();
        self.early_requests = 0;
    }
}

/// A shared receive queue.
pub(crate) struct SrqModel {
    pub(crate) host: usize,
    pub(crate) srq: Arc<Srq>,
    /// The target of an XRC queue's domain, and the queue's completion queue.
    pub(crate) xrc: Option<(usize, usize)>,
    pub(crate) recv_size: u64,
    /// Receives posted and not completed.
    pub(crate) outstanding: BTreeSet<usize>,
    pub(crate) posted: usize,
    /// Receives that a reset or destroyed queue pair may have taken along.
    pub(crate) may_be_lost: usize,
    /// A limit event is due when fewer receives are left.
    pub(crate) limit_armed: bool,
}

/// Whether a completion wakes those who wait for solicited ones.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Solicited {
    No,
    Unknown,
    Yes,
}

impl From<bool> for Solicited {
    fn from(solicited: bool) -> Solicited {
        match solicited {
            true => Solicited::Yes,
            false => Solicited::No,
        }
    }
}

/// How a program learns of completions.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum CqMode {
    /// It looks now and then.
    Polled,
    /// It waits to be told of any completion.
    Any,
    /// It waits to be told of solicited ones, and looks now and then.
    Solicited,
}

/// A completion queue.
pub(crate) struct CqModel {
    pub(crate) host: usize,
    pub(crate) cq: Arc<Cq>,
    pub(crate) mode: CqMode,
    pub(crate) notified: bool,
    /// Armed for solicited completions, and nothing has been taken unaccounted for since.
    pub(crate) armed: bool,
    /// It may overflow.
    pub(crate) small: bool,
    pub(crate) overflowed: bool,
}

/// What a memory window shows.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum WindowState {
    /// Nothing.
    Free,
    /// A bind is posted.
    Binding,
    /// This memory.
    Bound,
    /// Its end is posted.
    Ending,
}

/// A memory window.
pub(crate) struct WindowModel {
    /// The queue pair that binds it.
    pub(crate) qp: usize,
    pub(crate) mw: Arc<Mw>,
    pub(crate) state: WindowState,
    pub(crate) rkey: u32,
    pub(crate) place: Option<Place>,
    /// The peer's address of its first byte.
    pub(crate) first: u64,
    /// Bytes of it that have been given to work requests.
    pub(crate) used: u64,
    /// Keys it once had, which are good for nothing now.
    pub(crate) stale: Option<u32>,
}
