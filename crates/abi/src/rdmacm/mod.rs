//! librdmacm: the C functions and structures of rdma_cm, on top of `ferroce-rdmacm`.
//!
//! ```text
//!   rdma_connect, rdma_accept ...        rdma_get_cm_event
//!        |  read structures                   ^  fill structures
//!        v                                    |
//!   ferroce_rdmacm::Id                   ferroce_rdmacm::EventChannel
//! ```
//!
//! This module translates and decides nothing about connections. It owns what exists only in
//! C: `rdma_cm_id` and the fields that programs read in it, the count of acknowledged events,
//! and ids without a channel, which wait for their own events (synchronous ids).

mod accept;
mod address;
mod addrinfo;
mod attributes;
mod channel;
mod connect;
mod devices;
mod ep;
mod event;
mod fields;
mod id;
mod live;
mod multicast;
mod options;
mod path;
mod qp;
mod resolve;
mod srq;
mod strings;

use core::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use accept::*;
pub use addrinfo::*;
pub use attributes::rdma_init_qp_attr;
pub use channel::*;
pub use connect::*;
pub use devices::{rdma_free_devices, rdma_get_devices};
pub use ep::*;
pub use event::{rdma_ack_cm_event, rdma_get_cm_event};
pub use id::*;
pub use multicast::*;
pub use options::*;
pub use qp::*;
pub use resolve::*;
pub use srq::*;
pub use strings::*;

use crate::errno::{minus_one, refuse};

/// The result of a call: a value, or an errno.
type Outcome<T = ()> = Result<T, c_int>;

/// Returns 0, or -1 after setting `errno`.
fn finish(outcome: Outcome) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(errno) => minus_one(errno),
    }
}

/// Returns the `errno` that a function which returns -1 or NULL has set.
fn last_errno() -> c_int {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

/// Returns a function that refuses the call of this name for the reason in an error.
fn refused(call: &'static str) -> impl Fn(ferroce_rdmacm::Error) -> c_int {
    move |error| refuse(error.errno(), format_args!("{call}: {error}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
