//! libferroce.so: the library that programs load instead of libibverbs and librdmacm.
//!
//! ```text
//!   an unmodified program
//!        | exported functions, and function pointers in C objects
//!        v
//!   this crate: layouts, exported functions, conversions between C and Rust
//!        |
//!        v
//!   ferroce-rsocket, ferroce-rdmacm: sockets and connections, in Rust
//!   ferroce-device: links, engines, sockets, threads
//! ```
//!
//! The crate converts arguments and results. It decides nothing that the crates below can
//! decide. Each C object is the first field of a Rust object (`object`), and the layouts are
//! asserted at compile time ([`ffi`]). Fast paths take no locks of their own and allocate
//! nothing. Operations that need hardware return EOPNOTSUPP, as libibverbs does for an
//! adapter without them.
//!
//! Exported functions trust the program's pointers, as those of libibverbs do, and check
//! everything else.

#![allow(clippy::missing_safety_doc)] // the manual pages specify the pointers
#![allow(missing_docs)] // the manual pages describe the exported functions
#![allow(unreachable_pub)] // programs reach exported functions by name

pub mod exports;
pub mod ffi;

mod advise;
mod ah;
mod arguments;
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
mod iwarp;
mod kernel;
mod limits;
mod log;
mod mapping;
mod mcast;
mod mr;
mod mw;
mod nccl;
mod newer;
mod object;
mod ops;
#[cfg(feature = "versions")]
mod own_calls;
mod pd;
mod post;
mod private;
mod profile;
mod provoke;
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
mod strict;
mod strings;
mod sysfs;
mod unused;
mod users;
mod xrcd;
