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

mod ah;
mod attr;
mod bugs;
mod congestion;
mod counters;
mod cq;
mod engine;
mod error;
mod event;
mod key;
mod memory;
mod multicast;
mod psn_mark;
mod qp;
mod qp_table;
mod receive;
mod recv_queue;
mod region;
mod room;
mod round_trip;
mod send_queue;
mod srq;
mod time;
mod timers;
mod transitions;
mod transmit;
mod verbs;

pub use ah::{AddressHandle, AddressVector};
pub use attr::{AttrMask, QpAttr, QpCap, QpInit, QpState, QpType};
#[cfg(feature = "bugs")]
pub use bugs::Bug;
pub use counters::{COUNTERS, Counter, Counters};
pub use cq::{Arm, Cq, MAX_CQE};
pub use engine::{Config, Engine};
pub use error::{Failure, Reason, VerbsError};
pub use event::{Event, QpEvent};
pub use memory::{Fault, Memory, NULL_MEMORY};
pub use multicast::{MAX_GROUPS, MAX_MEMBERS};
pub use qp::QpQuery;
pub use receive::{Datagram, Drop, IpId, Received};
pub use region::{AccessError, Counts, KeyRole, Mr, Mw, MwKind, Pd, Regions, Rereg};
pub use srq::{MAX_SRQ_SGE, MAX_SRQ_WR, Srq, SrqInit, SrqPosting, Xrcd};
pub use time::Time;
pub use transmit::{Batch, ICRC_LEN, MAX_RUN_BYTES, MAX_RUN_PACKETS, Path, Run, Trailer, TxPacket};
pub use verbs::{
    Access, BindMw, MAX_SGE, NetworkHeader, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge,
    UdTarget, Wc, WcFlags, WcOpcode, WcStatus,
};
