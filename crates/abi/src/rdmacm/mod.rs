//! librdmacm: connections for programs, made by the connection manager in ferroced.
//!
//! ```text
//!   rdma_connect, rdma_accept ...                 rdma_get_cm_event
//!        |                                              ^  works on it, then hands it out
//!        v                                              |
//!   Id: state, addresses, queue pair              Channel: queue + pipe
//!        |  CmCall, one at a time                       ^
//!        v                                              |  dispatch
//!   Line: one connection to ferroced ------> its thread: answers and CmEvents
//! ```
//!
//! The library does what the kernel's rdma_cm and librdmacm do together: addresses
//! become links and source ports, queue pairs are moved, events are counted. What
//! needs messages on the network is asked of ferroced. As in librdmacm, the work
//! that an event brings is done by the thread that takes it: until then a queue
//! pair has not moved, and a new connection has no id.
//!
//! No lock of an id is held while ferroced is asked: the thread that hears the
//! answer takes those locks, too.

mod accept;
mod address;
mod addrinfo;
mod attributes;
mod channel;
mod connect;
mod datagram;
mod devices;
mod ep;
mod event;
mod id;
mod incoming;
pub(crate) mod line;
mod lookup;
mod multicast;
mod neighbour;
mod options;
mod path;
mod qp;
mod recover;
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

/// What a call comes to: nothing, or an errno.
type Outcome<T = ()> = Result<T, c_int>;

/// 0, or -1 and `errno`.
fn finish(outcome: Outcome) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(errno) => minus_one(errno),
    }
}

/// For functions of verbs that return an errno.
fn checked(code: c_int) -> Outcome {
    match code {
        0 => Ok(()),
        errno => Err(errno),
    }
}

/// For functions that return -1 or NULL, and `errno`.
fn last_errno() -> c_int {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

fn unexpected() -> c_int {
    refuse(
        libc::EPROTO,
        "ferroced answered something else than it was asked",
    )
}

fn no_device() -> c_int {
    refuse(
        libc::EINVAL,
        "the id has no device: its address is not resolved",
    )
}

fn no_port() -> c_int {
    refuse(libc::EINVAL, "the id is not bound to a port")
}

fn no_address() -> c_int {
    refuse(
        libc::EINVAL,
        "the id has no addresses: they are not resolved",
    )
}

fn no_destination() -> c_int {
    refuse(
        libc::EINVAL,
        "the id has no destination: it is not resolved",
    )
}

fn no_connection() -> c_int {
    refuse(libc::EINVAL, "the id has no connection")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
