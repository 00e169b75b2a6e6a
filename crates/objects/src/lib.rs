//! The objects of RDMA verbs that do not depend on the protocol on the wire.
//!
//! | module | objects |
//! | --- | --- |
//! | [`region`] | protection domains, memory regions, memory windows and their keys |
//! | [`memory`] | references to a program's memory, and the trait that moves its bytes |
//! | [`cq`], [`srq`] | completion queues and shared receive queues |
//! | [`send_queue`], [`recv_queue`], [`sge`] | the rings behind a queue pair's two queues |
//! | [`verbs`], [`attr`], [`ah`], [`event`], [`error`] | arguments and results of verbs calls |
//! | [`operation`] | the table of operations of send work requests |
//! | [`transitions`] | the attributes that each change of state takes, by [`Protocol`] |
//!
//! The crate has no socket, thread, clock or source of randomness: time and a seed come in
//! as arguments. A protocol engine (RoCE: `ferroce-roce`) turns work requests of the
//! send ring into packets, and packets into completions.
//!
//! The crate uses two numbers of `ferroce-wire`, because `ibv_qp_attr` holds them: the PSN
//! and the path MTU. It uses no packet format.

#![forbid(unsafe_code)]

pub mod ah;
pub mod attr;
pub mod cq;
pub mod error;
pub mod event;
mod key;
pub mod memory;
pub mod operation;
mod protocol;
pub mod recv_queue;
pub mod region;
pub mod room;
pub mod send_queue;
pub mod sge;
pub mod srq;
pub mod time;
pub mod transitions;
pub mod vendor_code;
pub mod verbs;

pub use ah::{AddressHandle, AddressVector};
pub use attr::{AttrMask, QpAttr, QpCap, QpInit, QpState, QpType};
pub use cq::{Arm, Cq, MAX_CQE};
pub use error::{Failure, Reason, VerbsError};
pub use event::{Event, QpEvent, ReceivedMessages};
pub use memory::{Fault, MemRef, Memory, MemorySpace, NULL_MEMORY};
pub use operation::{LocalMemory, OpClass, OpInfo, OpLength, OpResponse, QpTypes};
pub use protocol::Protocol;
pub use region::{AccessError, Counts, KeyRole, Mr, Mw, MwKind, Pd, Regions, Rereg};
pub use srq::{MAX_SRQ_SGE, MAX_SRQ_WR, Srq, SrqInit, SrqPosting, Xrcd};
pub use time::Time;
pub use vendor_code::{FLUSHED, VENDOR_CODES, VendorCode};
pub use verbs::{
    Access, BindMw, MAX_SGE, NetworkHeader, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge,
    UdTarget, Wc, WcFlags, WcOpcode, WcStatus,
};
