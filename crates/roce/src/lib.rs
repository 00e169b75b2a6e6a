//! The RoCE protocol as a library: the queue pairs of the InfiniBand architecture, without
//! the sockets that carry their packets.
//!
//! ```text
//!   post_send, post_recv, modify ...          poll (Cq)      poll_event
//!              |                                  ^              ^
//!              v                                  |              |
//!   +----------------------------- Engine -----------------------------+
//!   |  requester: work requests -> packets     completer: responses    |
//!   |  responder: requests -> memory, responses        -> completions  |
//!   +------------------------------------------------------------------+
//!      |  poll_transmit            ^ receive             ^ handle_timeout
//!      v  (headers + references)   | (datagrams)         | (time)
//! ```
//!
//! The engine has no socket, thread, clock or source of randomness. Time and received
//! packets are arguments. Memory is accessed through [`Memory`]. Packets to send are
//! [`Batch`]es of headers and references to memory. So the same code runs in a program,
//! under a deterministic simulator and in a benchmark.
//!
//! An [`Engine`] holds the queue pairs of one shard and needs exclusive access. The objects
//! that shards share come from `ferroce-objects` and have their own short locks: keys
//! ([`Regions`]), completion queues ([`Cq`]) and shared receive queues ([`Srq`]). This crate
//! re-exports them.

#![forbid(unsafe_code)]

mod bugs;
mod congestion;
mod counters;
mod decision;
mod engine;
mod multicast;
mod psn_mark;
mod qp;
mod qp_table;
mod receive;
mod round_trip;
mod send_queue;
mod timers;
mod transmit;

// The modules of this crate use the objects as `crate::attr`, `crate::cq` and so on.
use ferroce_objects::{
    attr, cq, error, event, memory, operation, recv_queue, region, room, srq, time, transitions,
    vendor_code, verbs,
};

#[cfg(feature = "bugs")]
pub use bugs::Bug;
pub use counters::{COUNTERS, Counter, Counters};
pub use decision::{Decision, Repeat, Retransmission};
pub use engine::{Config, Engine};
pub use ferroce_objects::{
    Access, AccessError, AddressHandle, AddressVector, Arm, AttrMask, BindMw, Counts, Cq, Event,
    FLUSHED, Failure, Fault, KeyRole, LocalMemory, MAX_CQE, MAX_SGE, MAX_SRQ_SGE, MAX_SRQ_WR,
    MemRef, Memory, MemorySpace, Mr, Mw, MwKind, NULL_MEMORY, NetworkHeader, OpClass, OpInfo,
    OpLength, OpResponse, Pd, Protocol, QpAttr, QpCap, QpEvent, QpInit, QpState, QpType, QpTypes,
    Reason, ReceivedMessages, RecvWr, Regions, Rereg, SendData, SendFlags, SendOp, SendWr, Sge,
    Srq, SrqInit, SrqPosting, Time, UdTarget, VENDOR_CODES, VendorCode, VerbsError, Wc, WcFlags,
    WcOpcode, WcStatus, Xrcd,
};
pub use multicast::{MAX_GROUPS, MAX_MEMBERS};
pub use qp::{QpQuery, RetryCounts};
pub use receive::{Datagram, Drop, IpId, Received};
pub use transmit::{Batch, ICRC_LEN, Path, Run, RunLimits, Trailer, TxPacket};
