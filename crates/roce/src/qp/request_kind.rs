//! The kinds of requests that a responder executes.

use ferroce_wire::{Opcode, Operation};

/// The way in which a responder executes a request. All matches on it are exhaustive.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum RequestKind {
    /// A packet of a SEND.
    Send,
    /// A packet of an RDMA WRITE.
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
    /// A response, a notification, or a request that RC and XRC do not have.
    NotExecuted,
}

impl RequestKind {
    /// Returns the kind of an opcode. The match lists every operation, so a new one does not
    /// compile until it has a kind.
    #[inline]
    pub(super) fn of(opcode: Opcode) -> RequestKind {
        match opcode.operation() {
            // Each packet of a message passes here: two flags are cheaper than a jump table.
            _ if opcode.is_send() => RequestKind::Send,
            _ if opcode.is_write() => RequestKind::Write,
            Operation::SendFirst
            | Operation::SendMiddle
            | Operation::SendLast
            | Operation::SendLastImm
            | Operation::SendLastInvalidate
            | Operation::SendOnly
            | Operation::SendOnlyImm
            | Operation::SendOnlyInvalidate => RequestKind::Send,
            Operation::WriteFirst
            | Operation::WriteMiddle
            | Operation::WriteLast
            | Operation::WriteLastImm
            | Operation::WriteOnly
            | Operation::WriteOnlyImm => RequestKind::Write,
            Operation::ReadRequest => RequestKind::Read,
            Operation::CompareSwap => RequestKind::CompareSwap,
            Operation::FetchAdd => RequestKind::FetchAdd,
            Operation::AtomicWrite => RequestKind::AtomicWrite,
            Operation::Flush => RequestKind::Flush,
            Operation::ReadResponseFirst
            | Operation::ReadResponseMiddle
            | Operation::ReadResponseLast
            | Operation::ReadResponseOnly
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::Resync
            | Operation::CongestionNotification => RequestKind::NotExecuted,
        }
    }

    /// Returns true if the responder saves the response, for which `max_dest_rd_atomic`
    /// limits the number of requests.
    #[inline]
    pub(super) fn has_own_response(self) -> bool {
        match self {
            RequestKind::Read
            | RequestKind::CompareSwap
            | RequestKind::FetchAdd
            | RequestKind::AtomicWrite
            | RequestKind::Flush => true,
            RequestKind::Send | RequestKind::Write | RequestKind::NotExecuted => false,
        }
    }
}
