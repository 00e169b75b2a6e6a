//! Sockets of listeners that have just closed.
//!
//! A server may close its listener after a connection, and listen again for the next one. TCP
//! refuses a client that connects in between. perftest with `-R` does that: its server tells
//! the client to connect for the second time before it listens again. So the socket of a
//! listener to which a peer has connected stays open for [`LISTENER_GAP`], as requests wait for
//! the next listener of a RoCE service. The kernel holds the connections, and the next listener
//! of this process on the same address takes them over.

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::sync::Mutex;

use ferroce_cm::LISTENER_GAP;
use ferroce_control::PerProcess;
use ferroce_device::iwarp::Time;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::net::{Shutdown, shutdown};

use super::now;
use super::setup::{self, Task, TaskNumber, Watch};
use crate::lock;

/// The address of a listening socket.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    pub(super) address: SocketAddr,
    /// True if an IPv6 socket takes no IPv4 connections.
    pub(super) af_only: bool,
}

/// The sockets whose listeners have closed.
static GAPS: PerProcess<Mutex<BTreeMap<Place, Kept>>> = PerProcess::new();

/// A socket that listens until its gap ends.
struct Kept {
    socket: OwnedFd,
    task: TaskNumber,
    deadline: Time,
}

/// The end of a gap. Its descriptor is never ready: the listening socket may be, and connections
/// must wait.
struct Gap {
    place: Place,
    never: OwnedFd,
    deadline: Time,
}

/// Keeps a copy of the socket of a listener that closes.
pub(super) fn begin(place: Place, socket: &OwnedFd) {
    if let Err(error) = try_begin(place, socket) {
        tracing::debug!("the listener on {} closes at once: {error}", place.address);
        close(socket);
    }
}

fn try_begin(place: Place, socket: &OwnedFd) -> Result<(), crate::Error> {
    let failed = |error: std::io::Error| crate::Error::system("listening socket", error);
    let socket = socket.try_clone().map_err(failed)?;
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let deadline = now() + LISTENER_GAP;
    let gap = Gap {
        place,
        never: eventfd(0, flags).map_err(|error| failed(error.into()))?,
        deadline,
    };
    let mut gaps = lock(GAPS.get());
    let task = setup::add(Box::new(gap))?;
    let kept = Kept {
        socket,
        task,
        deadline,
    };
    gaps.insert(place, kept);
    drop(gaps);
    Ok(())
}

/// Ends the gap of an address. Returns the socket, which still listens.
pub(super) fn take(place: Place) -> Option<OwnedFd> {
    let kept = lock(GAPS.get()).remove(&place)?;
    setup::remove(kept.task);
    Some(kept.socket)
}

/// Closes a listening socket.
pub(super) fn close(socket: &OwnedFd) {
    // A forked child may have a copy of the descriptor.
    let _already = shutdown(socket, Shutdown::Both);
}

impl Task for Gap {
    fn socket(&self) -> &OwnedFd {
        &self.never
    }

    fn watch(&self) -> Watch {
        Watch::Readable
    }

    fn deadline(&self) -> Option<Time> {
        Some(self.deadline)
    }

    fn ready(self: Box<Self>) -> Option<Box<dyn Task>> {
        Some(self)
    }

    fn expired(self: Box<Self>) {
        let mut gaps = lock(GAPS.get());
        let is_own = |kept: &Kept| kept.deadline == self.deadline;
        // A later gap of the same address ends later.
        let kept = match gaps.get(&self.place).is_some_and(is_own) {
            true => gaps.remove(&self.place),
            false => None,
        };
        drop(gaps);
        if let Some(kept) = kept {
            close(&kept.socket);
        }
    }
}
