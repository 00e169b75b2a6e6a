//! The table of operations: all that posting, sending and completing a work request need to
//! know about its operation.
//!
//! | operation | class | local memory | length | inline | remote memory | response | queue pair types |
//! | --- | --- | --- | --- | --- | --- | --- | --- |
//! | SEND | message | read | any | yes | no | ACK | all |
//! | SEND with invalidate | message | read | any | yes | no | ACK | RC, XRC |
//! | WRITE | message | read | any | yes | yes | ACK | RC, XRC, UC |
//! | READ | read | written | any | no | yes | own | RC, XRC |
//! | compare and swap, fetch and add | single | written | at least 8 | no | yes | own | RC, XRC |
//! | atomic write | single | read | 8 | yes | yes | own | RC |
//! | flush | single | none | none | no | yes | own | RC |
//! | local invalidate, bind | local | none | none | no | no | none | RC, XRC, UC |
//!
//! Every `match` on [`SendOp`] is exhaustive. Other code asks for a column of this table, or
//! tests for one operation that needs a special step, such as the checks of a bind. So a new
//! operation does not compile until each `match` has an arm for it. The responder's side has
//! the same rule for the operations of packets.

use bitflags::bitflags;

use crate::attr::QpType;
use crate::verbs::{SendOp, WcOpcode};

/// The way in which an operation is executed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum OpClass {
    /// A message of any length, split into packets. The peer's ACK completes it.
    Message,
    /// A READ: requests without payload, answered by data.
    Read,
    /// One request packet, answered by one response packet of its own.
    Single,
    /// Executed by the local adapter: no packet is sent.
    Local,
}

/// The use of the scatter/gather list of a work request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LocalMemory {
    /// The operation does not touch local memory.
    None,
    /// The operation reads local memory: a gather list.
    Read,
    /// The response is written to local memory: a scatter list.
    Written,
}

/// The bytes of local memory that an operation takes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum OpLength {
    /// As many as the list has.
    Any,
    /// Eight; the list may be longer, the rest is not used.
    AtLeast8,
    /// Eight, and the list must have exactly as many.
    Exactly8,
    /// None; the list is ignored.
    None,
}

/// The answer of a reliable peer to an operation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum OpResponse {
    /// Nothing is sent, so nothing is answered.
    None,
    /// An ACK, which also covers all earlier messages.
    Ack,
    /// Data or a response of its own. Fences wait for it, and the queue pair's
    /// `max_rd_atomic` limits the number of outstanding ones.
    Own,
}

bitflags! {
    /// A set of queue pair types.
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    pub struct QpTypes: u8 {
        /// [`QpType::Rc`].
        const RC = 1 << 0;
        /// [`QpType::Uc`].
        const UC = 1 << 1;
        /// [`QpType::Ud`].
        const UD = 1 << 2;
        /// [`QpType::Gsi`].
        const GSI = 1 << 3;
        /// [`QpType::XrcInitiator`].
        const XRC_INITIATOR = 1 << 4;
        /// [`QpType::XrcTarget`], which has no send queue.
        const XRC_TARGET = 1 << 5;
    }
}

impl QpTypes {
    /// Returns the set of one type.
    #[inline]
    pub const fn only(qp_type: QpType) -> QpTypes {
        match qp_type {
            QpType::Rc => QpTypes::RC,
            QpType::Uc => QpTypes::UC,
            QpType::Ud => QpTypes::UD,
            QpType::Gsi => QpTypes::GSI,
            QpType::XrcInitiator => QpTypes::XRC_INITIATOR,
            QpType::XrcTarget => QpTypes::XRC_TARGET,
        }
    }
}

/// A row of the table.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct OpInfo {
    /// Name for error messages.
    pub name: &'static str,
    /// The way in which the operation is executed.
    pub class: OpClass,
    /// The use of the scatter/gather list.
    pub local_memory: LocalMemory,
    /// The bytes of local memory that the operation takes.
    pub length: OpLength,
    /// True if the data may be given inline.
    pub allows_inline: bool,
    /// True if the work request names remote memory by address and rkey.
    pub remote_memory: bool,
    /// True if the remote address must be a multiple of 8.
    pub remote_aligned: bool,
    /// The answer of a reliable peer.
    pub response: OpResponse,
    /// True if the FENCE flag delays the operation.
    pub honors_fence: bool,
    /// True if the operation starts only when all earlier work requests have completed.
    pub waits_for_earlier: bool,
    /// The queue pair types that have the operation.
    pub qp_types: QpTypes,
    /// Opcode of the completion.
    pub completion: WcOpcode,
}

/// The types with a send queue.
const SENDING: QpTypes = QpTypes::all().difference(QpTypes::XRC_TARGET);
/// The reliable types with a send queue.
const RELIABLE: QpTypes = QpTypes::RC.union(QpTypes::XRC_INITIATOR);
/// The connected types with a send queue.
const CONNECTED: QpTypes = RELIABLE.union(QpTypes::UC);

const SEND: OpInfo = OpInfo {
    name: "SEND",
    class: OpClass::Message,
    local_memory: LocalMemory::Read,
    length: OpLength::Any,
    allows_inline: true,
    remote_memory: false,
    remote_aligned: false,
    response: OpResponse::Ack,
    honors_fence: true,
    waits_for_earlier: false,
    qp_types: SENDING,
    completion: WcOpcode::Send,
};

const SEND_INVALIDATE: OpInfo = OpInfo {
    name: "SEND with invalidate",
    class: OpClass::Message,
    local_memory: LocalMemory::Read,
    length: OpLength::Any,
    allows_inline: true,
    remote_memory: false,
    remote_aligned: false,
    response: OpResponse::Ack,
    honors_fence: true,
    waits_for_earlier: false,
    qp_types: RELIABLE,
    completion: WcOpcode::Send,
};

const WRITE: OpInfo = OpInfo {
    name: "WRITE",
    class: OpClass::Message,
    local_memory: LocalMemory::Read,
    length: OpLength::Any,
    allows_inline: true,
    remote_memory: true,
    remote_aligned: false,
    response: OpResponse::Ack,
    honors_fence: true,
    waits_for_earlier: false,
    qp_types: CONNECTED,
    completion: WcOpcode::RdmaWrite,
};

const READ: OpInfo = OpInfo {
    name: "READ",
    class: OpClass::Read,
    local_memory: LocalMemory::Written,
    length: OpLength::Any,
    allows_inline: false,
    remote_memory: true,
    remote_aligned: false,
    response: OpResponse::Own,
    honors_fence: true,
    waits_for_earlier: false,
    qp_types: RELIABLE,
    completion: WcOpcode::RdmaRead,
};

const COMPARE_SWAP: OpInfo = OpInfo {
    name: "compare and swap",
    class: OpClass::Single,
    local_memory: LocalMemory::Written,
    length: OpLength::AtLeast8,
    allows_inline: false,
    remote_memory: true,
    remote_aligned: true,
    response: OpResponse::Own,
    honors_fence: true,
    waits_for_earlier: false,
    qp_types: RELIABLE,
    completion: WcOpcode::CompareSwap,
};

const FETCH_ADD: OpInfo = OpInfo {
    name: "fetch and add",
    completion: WcOpcode::FetchAdd,
    ..COMPARE_SWAP
};

const ATOMIC_WRITE: OpInfo = OpInfo {
    name: "atomic write",
    class: OpClass::Single,
    local_memory: LocalMemory::Read,
    length: OpLength::Exactly8,
    allows_inline: true,
    remote_memory: true,
    remote_aligned: true,
    response: OpResponse::Own,
    honors_fence: true,
    waits_for_earlier: false,
    qp_types: QpTypes::RC,
    completion: WcOpcode::AtomicWrite,
};

const FLUSH: OpInfo = OpInfo {
    name: "flush",
    class: OpClass::Single,
    local_memory: LocalMemory::None,
    length: OpLength::None,
    allows_inline: false,
    remote_memory: true,
    remote_aligned: false,
    response: OpResponse::Own,
    honors_fence: true,
    waits_for_earlier: false,
    qp_types: QpTypes::RC,
    completion: WcOpcode::Flush,
};

const LOCAL_INVALIDATE: OpInfo = OpInfo {
    name: "local invalidate",
    class: OpClass::Local,
    local_memory: LocalMemory::None,
    length: OpLength::None,
    allows_inline: false,
    remote_memory: false,
    remote_aligned: false,
    response: OpResponse::None,
    honors_fence: true,
    // Earlier work requests may still use the key.
    waits_for_earlier: true,
    qp_types: CONNECTED,
    completion: WcOpcode::LocalInvalidate,
};

const BIND_MW: OpInfo = OpInfo {
    name: "bind",
    waits_for_earlier: false,
    completion: WcOpcode::BindMw,
    ..LOCAL_INVALIDATE
};

impl SendOp {
    /// Returns true if the message completes a receive of the peer.
    pub fn completes_receive(&self) -> bool {
        match self {
            SendOp::Send { .. } | SendOp::SendInvalidate { .. } => true,
            SendOp::Write { imm, .. } => imm.is_some(),
            SendOp::Read { .. }
            | SendOp::CompareSwap { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::AtomicWrite { .. }
            | SendOp::Flush { .. }
            | SendOp::BindMw(_)
            | SendOp::LocalInvalidate { .. } => false,
        }
    }

    /// Returns true if the packets of both operations have headers of the same length.
    pub fn has_headers_of(&self, other: &SendOp) -> bool {
        core::mem::discriminant(self) == core::mem::discriminant(other)
            && self.imm().is_some() == other.imm().is_some()
    }

    /// Returns the operation's row of the table.
    ///
    /// The function is always inlined: a use of one column compiles to a test of the
    /// operation's tag.
    #[inline(always)]
    pub const fn info(&self) -> OpInfo {
        match self {
            SendOp::Send { .. } => SEND,
            SendOp::SendInvalidate { .. } => SEND_INVALIDATE,
            SendOp::Write { .. } => WRITE,
            SendOp::Read { .. } => READ,
            SendOp::CompareSwap { .. } => COMPARE_SWAP,
            SendOp::FetchAdd { .. } => FETCH_ADD,
            SendOp::AtomicWrite { .. } => ATOMIC_WRITE,
            SendOp::Flush { .. } => FLUSH,
            SendOp::LocalInvalidate { .. } => LOCAL_INVALIDATE,
            SendOp::BindMw(_) => BIND_MW,
        }
    }

    /// Returns the immediate data of a message.
    #[inline(always)]
    pub const fn imm(&self) -> Option<u32> {
        match self {
            SendOp::Send { imm } | SendOp::Write { imm, .. } => *imm,
            SendOp::SendInvalidate { .. }
            | SendOp::Read { .. }
            | SendOp::CompareSwap { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::AtomicWrite { .. }
            | SendOp::Flush { .. }
            | SendOp::LocalInvalidate { .. }
            | SendOp::BindMw(_) => None,
        }
    }

    /// Returns the address and the rkey of remote memory, if the operation has any.
    #[inline]
    pub const fn remote(&self) -> Option<(u64, u32)> {
        match *self {
            SendOp::Write {
                remote_addr, rkey, ..
            }
            | SendOp::Read { remote_addr, rkey }
            | SendOp::CompareSwap {
                remote_addr, rkey, ..
            }
            | SendOp::FetchAdd {
                remote_addr, rkey, ..
            }
            | SendOp::AtomicWrite { remote_addr, rkey }
            | SendOp::Flush {
                remote_addr, rkey, ..
            } => Some((remote_addr, rkey)),
            SendOp::Send { .. }
            | SendOp::SendInvalidate { .. }
            | SendOp::LocalInvalidate { .. }
            | SendOp::BindMw(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the operation after `op` in the table. The match lists every operation, so a
    /// new one does not compile until it is tested.
    fn next(op: &SendOp) -> Option<SendOp> {
        let (remote_addr, rkey, imm) = (0x1000, 7, Some(5));
        Some(match op {
            SendOp::Send { .. } => SendOp::SendInvalidate { rkey },
            SendOp::SendInvalidate { .. } => SendOp::Write {
                remote_addr,
                rkey,
                imm,
            },
            SendOp::Write { .. } => SendOp::Read { remote_addr, rkey },
            SendOp::Read { .. } => SendOp::CompareSwap {
                remote_addr,
                rkey,
                compare: 1,
                swap: 2,
            },
            SendOp::CompareSwap { .. } => SendOp::FetchAdd {
                remote_addr,
                rkey,
                add: 3,
            },
            SendOp::FetchAdd { .. } => SendOp::AtomicWrite { remote_addr, rkey },
            SendOp::AtomicWrite { .. } => SendOp::Flush {
                remote_addr,
                rkey,
                length: 8,
                placement: 1,
                selectivity: 0,
            },
            SendOp::Flush { .. } => SendOp::LocalInvalidate { key: rkey },
            // A bind needs a window, and its row is that of local invalidate.
            SendOp::LocalInvalidate { .. } | SendOp::BindMw(_) => return None,
        })
    }

    /// Returns one of each operation except the bind.
    fn operations() -> Vec<SendOp> {
        let first = SendOp::Send { imm: Some(5) };
        core::iter::successors(Some(first), next).collect()
    }

    #[test]
    fn operations_of_each_queue_pair_type_are_those_of_ibta() {
        let of = |qp_type: QpType| -> Vec<&str> {
            let operations = operations();
            let infos = operations.iter().map(SendOp::info);
            infos
                .filter(|info| info.qp_types.contains(QpTypes::only(qp_type)))
                .map(|info| info.name)
                .collect()
        };
        let all: Vec<&str> = operations().iter().map(|op| op.info().name).collect();
        assert_eq!(of(QpType::Rc), all);
        assert_eq!(of(QpType::Uc), ["SEND", "WRITE", "local invalidate"]);
        assert_eq!(of(QpType::Ud), ["SEND"]);
        assert_eq!(of(QpType::Gsi), ["SEND"]);
        let not_in_xrc = ["atomic write", "flush"];
        let xrc: Vec<&str> = all
            .into_iter()
            .filter(|n| !not_in_xrc.contains(n))
            .collect();
        assert_eq!(of(QpType::XrcInitiator), xrc);
        assert!(of(QpType::XrcTarget).is_empty());
    }

    #[test]
    fn columns_of_a_row_agree() {
        for op in operations() {
            let info = op.info();
            assert_eq!(info.remote_memory, op.remote().is_some(), "{}", info.name);
            assert!(info.remote_memory || !info.remote_aligned, "{}", info.name);
            let own = matches!(info.class, OpClass::Read | OpClass::Single);
            assert_eq!(own, info.response == OpResponse::Own, "{}", info.name);
            let local = info.class == OpClass::Local;
            assert_eq!(local, info.response == OpResponse::None, "{}", info.name);
            let data = info.local_memory != LocalMemory::None;
            assert_eq!(data, info.length != OpLength::None, "{}", info.name);
            let gathers = info.local_memory == LocalMemory::Read;
            assert_eq!(gathers, info.allows_inline, "{}", info.name);
        }
    }
}
