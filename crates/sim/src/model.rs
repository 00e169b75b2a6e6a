//! The oracle's model of every verbs object and work request.

mod qp;
mod queues;

use core::net::IpAddr;
use std::rc::Rc;

use ferroce_roce::{SendOp, WcOpcode, WcStatus};

pub(crate) use qp::{Drain, ExpectedDatagram, QpModel, Setup};
pub(crate) use queues::{CqMode, CqModel, Solicited, SrqModel, WindowModel, WindowState};

use crate::zone::Place;

/// The operation of a send work request.
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
    /// Returns the kind of an operation.
    pub(crate) fn of(op: &SendOp) -> Kind {
        match op {
            SendOp::Send { .. } => Kind::Send,
            SendOp::SendInvalidate { .. } => Kind::SendInvalidate,
            SendOp::Write { .. } => Kind::Write,
            SendOp::Read { .. } => Kind::Read,
            SendOp::CompareSwap { .. } => Kind::CompareSwap,
            SendOp::FetchAdd { .. } => Kind::FetchAdd,
            SendOp::AtomicWrite { .. } => Kind::AtomicWrite,
            SendOp::Flush { .. } => Kind::Flush,
            SendOp::LocalInvalidate { .. } => Kind::LocalInvalidate,
            SendOp::BindMw(_) => Kind::Bind,
        }
    }

    /// Returns the opcode of the completion.
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

/// The outcomes that a work request may have by itself. Failures of its queue
/// pair, such as a flush, are judged separately.
#[derive(Clone, Debug)]
pub(crate) struct AllowedOutcome {
    /// Success is allowed.
    pub(crate) success: bool,
    /// Error statuses that are allowed.
    pub(crate) errors: Vec<WcStatus>,
    /// The responder may answer with a NAK.
    pub(crate) refusable: bool,
}

impl AllowedOutcome {
    /// Returns the outcome of a valid request: success only.
    pub(crate) fn good() -> AllowedOutcome {
        AllowedOutcome {
            success: true,
            errors: Vec::new(),
            refusable: false,
        }
    }

    /// Returns the outcome of a request that the responder must refuse.
    pub(crate) fn refused(errors: &[WcStatus]) -> AllowedOutcome {
        AllowedOutcome {
            success: false,
            errors: errors.to_vec(),
            refusable: true,
        }
    }

    /// Returns the outcome of a request that must fail at the requester.
    pub(crate) fn fails(error: WcStatus) -> AllowedOutcome {
        AllowedOutcome {
            success: false,
            errors: vec![error],
            refusable: false,
        }
    }

    /// Allows one more error status.
    pub(crate) fn add_error(&mut self, error: WcStatus, refusable: bool) {
        self.errors.push(error);
        self.refusable |= refusable;
    }
}

/// The end of a work request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Completed with this status, shown by its own completion or implied by a later one.
    Completed(WcStatus),
    /// Discarded without a completion: its queue pair was reset or destroyed.
    Discarded,
}

/// A counter in the peer's memory and the operand of an atomic on it.
#[derive(Copy, Clone, Debug)]
pub(crate) struct AtomicTarget {
    pub(crate) host: usize,
    pub(crate) va: u64,
    pub(crate) operand: u64,
}

/// The destination of a datagram.
#[derive(Clone, Debug)]
pub(crate) struct DatagramTarget {
    pub(crate) address: IpAddr,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
}

/// A range that a FLUSH must flush: address, length, whether to persistence.
pub(crate) type FlushRange = (u64, u64, bool);

/// A send work request.
#[derive(Debug)]
pub(crate) struct SendRecord {
    pub(crate) qp: usize,
    /// Position in its send queue, counted from the last reset.
    pub(crate) index: usize,
    pub(crate) kind: Kind,
    pub(crate) payload: Rc<[u8]>,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidates: Option<u32>,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) local: Vec<Place>,
    /// Host and place of the remote memory that the request writes or reads.
    pub(crate) remote: Option<(usize, Place)>,
    /// The remote place is freed when this request succeeds.
    pub(crate) frees_remote: bool,
    pub(crate) atomic: Option<AtomicTarget>,
    pub(crate) flush: Option<FlushRange>,
    pub(crate) window: Option<usize>,
    pub(crate) xrc_srq: Option<usize>,
    pub(crate) datagram: Option<DatagramTarget>,
    pub(crate) allowed: AllowedOutcome,
    pub(crate) end: Option<End>,
}

impl SendRecord {
    /// Returns true if the request consumes a receive at the peer.
    pub(crate) fn consumes(&self) -> bool {
        match self.kind {
            Kind::Send | Kind::SendInvalidate => true,
            Kind::Write => self.imm.is_some(),
            Kind::Read
            | Kind::CompareSwap
            | Kind::FetchAdd
            | Kind::AtomicWrite
            | Kind::Flush
            | Kind::LocalInvalidate
            | Kind::Bind => false,
        }
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.end == Some(End::Completed(WcStatus::Success))
    }
}

/// The queue that a receive was posted to.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum RecvOwner {
    Qp(usize),
    Srq(usize),
}

/// A receive work request.
#[derive(Debug)]
pub(crate) struct RecvRecord {
    pub(crate) owner: RecvOwner,
    /// Position in its receive queue.
    pub(crate) index: usize,
    pub(crate) places: Vec<Place>,
    /// Additional errors that are allowed, such as for deregistered memory.
    pub(crate) errors: Vec<WcStatus>,
    pub(crate) end: Option<End>,
}

impl RecvRecord {
    pub(crate) fn capacity(&self) -> u64 {
        self.places.iter().map(|p| p.len).sum()
    }
}
