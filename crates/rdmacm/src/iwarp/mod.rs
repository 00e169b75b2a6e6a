//! Connections on links of type siw: TCP and MPA setup, in this process.
//!
//! ```text
//!   listen  -> Listener --accept-> Responder --Request-> event CONNECT_REQUEST
//!                                                          accept -> Reply, stream of the QP
//!   connect -> Initiator --Reply-> stream of the QP, event ESTABLISHED
//! ```
//!
//! [`setup`] has the thread that does this. Once a connection is set up, its socket belongs to
//! the device: [`Connection`] learns when the stream begins and ends, and queues the events.
//! ferroced reserves port numbers, and sees no connection. So its end disturbs none.

mod active;
mod connection;
mod list;
mod listener;
mod passive;
mod setup;

use core::net::{IpAddr, SocketAddr};

use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{getpeername, getsockname};
use rustix::time::{ClockId, clock_gettime};

use ferroce_device::iwarp::Time;

use crate::error::{Error, ErrorKind};
use crate::event::PeerParams;

pub(crate) use active::{Connecting, connect};
pub(crate) use connection::disconnect;
pub(crate) use list::streams_on;
pub(crate) use listener::{TcpListener, listen};
pub(crate) use passive::{Incoming, accept, create_id, reject};

/// The iWARP side of an id.
#[derive(Debug, Default)]
pub(crate) enum Stage {
    /// The id has no connection on an iWARP link.
    #[default]
    None,
    /// A request that the program has not answered.
    Request(Box<Incoming>),
    /// A request of this end that has no answer yet.
    Connecting(Connecting),
    /// The queue pair with this number has the stream.
    Connected(u32),
}

/// An event of a connection, as it waits in a channel.
#[derive(Debug)]
pub(crate) enum IwarpEvent {
    Request(Box<Incoming>),
    Established(Option<PeerParams>),
    /// The peer rejected the request, or no process listens.
    Refused {
        errno: i32,
        private_data: Vec<u8>,
    },
    Unreachable(i32),
    ConnectError(i32),
    Disconnected,
}

fn now() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    Time::from_nanos(now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs())
}

/// Returns both addresses of a connection; IPv4 addresses as such.
fn addresses(socket: &OwnedFd) -> Option<(SocketAddr, SocketAddr)> {
    let local = SocketAddr::try_from(getsockname(socket.as_fd()).ok()?).ok()?;
    let peer = getpeername(socket.as_fd()).ok()?;
    let peer = SocketAddr::try_from(peer?).ok()?;
    Some((plain(local), plain(peer)))
}

/// Returns an IPv4 address in the form of an IPv6 one as IPv4.
fn plain(address: SocketAddr) -> SocketAddr {
    match (address, address.ip().to_canonical()) {
        (SocketAddr::V6(_), v4 @ IpAddr::V4(_)) => SocketAddr::new(v4, address.port()),
        _ => address,
    }
}

fn no_queue_pair() -> Error {
    Error::new(
        ErrorKind::Invalid,
        "a connection on an iWARP link needs its queue pair before: create it with \
         rdma_create_qp, or name it in conn_param.qp_num",
    )
}
