//! The channel adapter as a library: everything the InfiniBand architecture
//! says a queue pair does, and nothing about how packets travel.
//!
//! ```text
//!   post_send, post_recv, modify ...          poll (Cq)      poll_event
//!              |                                  ^              ^
//!              v                                  |              |
//!   +----------------------------- Engine -----------------------------+
//!   |  requester: work requests -> packets     completer: answers ->   |
//!   |  responder: requests -> memory, answers             completions  |
//!   +------------------------------------------------------------------+
//!      |  poll_transmit            ^ receive             ^ handle_timeout
//!      v  (headers + references)   | (datagrams)         | (time)
//! ```
//!
//! The engine has no socket, thread, clock or source of randomness. Time and
//! packets come in as arguments; memory is reached through [`Memory`]; packets
//! leave as [`Batch`]es of headers and references to memory. So the same code
//! runs in a program, under a deterministic simulator and in a benchmark.
//!
//! One [`Engine`] holds the queue pairs of one shard and wants exclusive
//! access. What shards share has its own, short locks: keys ([`Regions`]),
//! completion queues ([`Cq`]) and shared receive queues ([`Srq`]).

#![forbid(unsafe_code)]

mod adapter;
mod bugs;
mod congestion;
mod counters;
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

// The objects, under the names that the modules of this crate use.
use ferroce_objects::{
    attr, cq, error, event, memory, operation, recv_queue, region, room, srq, time, transitions,
    verbs,
};

pub use adapter::Adapter;
#[cfg(feature = "bugs")]
pub use bugs::Bug;
pub use counters::{COUNTERS, Counter, Counters};
pub use engine::{Config, Engine};
pub use ferroce_objects::{
    Access, AccessError, AddressHandle, AddressVector, Arm, AttrMask, BindMw, Counts, Cq, Event,
    Failure, Fault, KeyRole, LocalMemory, MAX_CQE, MAX_SGE, MAX_SRQ_SGE, MAX_SRQ_WR, MemRef,
    Memory, MemorySpace, Mr, Mw, MwKind, NULL_MEMORY, NetworkHeader, OpClass, OpInfo, OpLength,
    OpResponse, Pd, Protocol, QpAttr, QpCap, QpEvent, QpInit, QpState, QpType, QpTypes, Reason,
    RecvWr, Regions, Rereg, SendData, SendFlags, SendOp, SendWr, Sge, Srq, SrqInit, SrqPosting,
    Time, UdTarget, VerbsError, Wc, WcFlags, WcOpcode, WcStatus, Xrcd,
};
pub use multicast::{MAX_GROUPS, MAX_MEMBERS};
pub use qp::QpQuery;
pub use receive::{Datagram, Drop, IpId, Received};
pub use transmit::{Batch, ICRC_LEN, Path, Run, RunLimits, Trailer, TxPacket};
