//! What the simulator knows about every object: the oracle's side of the world.

mod qp;
mod queues;

use core::net::IpAddr;
use std::rc::Rc;

use ferroce_transport::{WcOpcode, WcStatus};

pub(crate) use qp::{Drain, ExpectedDatagram, QpModel, Setup};
pub(crate) use queues::{CqMode, CqModel, Solicited, SrqModel, WindowModel, WindowState};

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
