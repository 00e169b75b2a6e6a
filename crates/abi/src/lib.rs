//! libferroce.so: what programs load instead of libibverbs and librdmacm.
//!
//! ```text
//!   an unmodified program
//!        | exported functions, and function pointers in the objects it got
//!        v
//!   this crate: C objects and errno outside, Rust objects and errors inside
//!        |
//!        v
//!   ferroce-device: links, engines, sockets, threads
//! ```
//!
//! The layer knows C, and decides nothing about verbs that the engine could
//! decide. Every C object is the first field of a Rust one (`object`); the
//! memory layout is asserted at compile time ([`ffi`]). Fast paths take no locks
//! of their own and allocate nothing. What software cannot do answers
//! `EOPNOTSUPP`, as libibverbs does for an adapter without it.
//!
//! Exported functions trust the pointers they get, as those of libibverbs do,
//! and check everything else.

#![allow(clippy::missing_safety_doc)] // the manual pages say what pointers must be
#![allow(missing_docs)] // the manual pages say what exported functions do
#![allow(unreachable_pub)] // programs reach exported functions by name

pub mod exports;
pub mod ffi;

mod advise;
mod ah;
mod async_events;
mod buf;
mod channel;
mod context;
mod convert;
mod cq;
mod cq_ex;
mod device_list;
mod dm;
mod domain;
mod errno;
mod event_count;
mod fork;
mod gids;
mod import;
mod kernel;
mod limits;
mod log;
mod mapping;
mod mcast;
mod mr;
mod mw;
mod newer;
mod object;
mod ops;
#[cfg(feature = "versions")]
mod own_calls;
mod pd;
mod post;
mod private;
mod qp;
mod qp_create;
mod qp_ex;
mod query;
mod rates;
mod rdmacm;
mod registry;
mod retired_cqs;
mod rsocket;
mod srq;
mod strings;
mod sysfs;
mod unused;
mod users;
mod xrcd;
