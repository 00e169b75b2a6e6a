//! Listeners: a TCP socket for the addresses of all iWARP links that an id listens on.
//!
//! The kernel's siw binds a listener for the wildcard address to the netdev of its link. A
//! connection from the same host arrives through the loopback netdev and would not reach it.
//! So one socket serves all, and each connection is checked: its address must be one of an
//! iWARP link.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use ferroce_cm::PortSpace;
use ferroce_cm::ports::Host;
use ferroce_device::iwarp::Time;
use ferroce_net::tcp_port_holder;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, accept_with, bind, listen as tcp_listen,
    shutdown, socket_with, sockopt,
};

use super::passive::{HalfOpen, Passive};
use super::setup::{self, Task, TaskNumber, Watch};
use super::{addresses, now};
use crate::address::{host, with_port};
use crate::devices;
use crate::error::{Error, ErrorKind};
use crate::id::Shared;

/// A listening socket. Dropping it ends the listening.
#[derive(Debug)]
pub(crate) struct TcpListener(TaskNumber);

impl Drop for TcpListener {
    fn drop(&mut self) {
        setup::remove(self.0);
    }
}

/// The listening socket, with its connections that have sent no Request yet.
struct Listener {
    socket: OwnedFd,
    id: Weak<Shared>,
    backlog: u32,
    half_open: HalfOpen,
    /// Requests that the program has not taken.
    waiting: Arc<AtomicU32>,
}

/// Listens on a TCP port, if the address is the wildcard or one of an iWARP link.
pub(crate) fn listen(
    id: &Arc<Shared>,
    source: Host,
    port: u16,
    backlog: u32,
) -> Result<Option<TcpListener>, Error> {
    if id.space != PortSpace::Tcp && id.space != PortSpace::Ib || !devices::have_iwarp(source)? {
        return Ok(None);
    }
    let af_only = id.inner().options.af_only;
    let address = with_port(source, port);
    let socket = open(address, af_only, backlog).map_err(|error| match error {
        Errno::ADDRINUSE => Error::new(
            ErrorKind::Os(libc::EADDRINUSE),
            format!(
                "TCP port {port}, which a link of type siw needs, is taken: {}; stop it, or \
                 choose another port",
                tcp_port_holder(port)
            ),
        ),
        error => Error::system(&format!("cannot listen on TCP port {port}"), error),
    })?;
    let listener = Listener {
        socket,
        id: Arc::downgrade(id),
        backlog,
        half_open: HalfOpen::default(),
        waiting: Arc::default(),
    };
    Ok(Some(TcpListener(setup::add(Box::new(listener))?)))
}

fn open(address: SocketAddr, af_only: bool, backlog: u32) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, af_only)?;
    }
    bind(&socket, &address)?;
    tcp_listen(&socket, backlog.min(i32::MAX as u32) as i32)?;
    Ok(socket)
}

impl Listener {
    fn accept_one(&mut self) -> Result<(), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = accept_with(&self.socket, flags)?;
        let Some((local, peer)) = addresses(&socket) else {
            return Ok(());
        };
        let Some(device) = devices::iwarp_of(host(local)) else {
            tracing::debug!("a connection to {local} is closed: no link of type siw has it");
            return Ok(());
        };
        // Connections without a Request cost little, but not nothing: the oldest one goes.
        self.half_open.limit(self.backlog);
        let passive = Passive::new(now(), socket, device, (local, peer), self.id.clone());
        let passive = passive.within(self.backlog, &self.waiting);
        let token = passive.token();
        match setup::add(Box::new(passive)) {
            Ok(number) => self.half_open.add(number, token),
            Err(error) => tracing::warn!("a connection is closed: {error}"),
        }
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A forked child may have a copy of the descriptor.
        let _already = shutdown(&self.socket, Shutdown::Both);
        self.half_open.clear();
    }
}

impl Task for Listener {
    fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn watch(&self) -> Watch {
        Watch::Readable
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn ready(mut self: Box<Self>) -> Option<Box<dyn Task>> {
        for _ in 0..self.backlog.max(1) {
            match self.accept_one() {
                Ok(()) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    break;
                }
            }
        }
        Some(self)
    }

    fn expired(self: Box<Self>) {}
}

/// Counts a request that waits for the program, until it is dropped.
#[derive(Debug)]
pub(super) struct Waiting(Arc<AtomicU32>);

impl Waiting {
    /// Returns none if `backlog` requests wait already.
    pub(super) fn new(count: &Arc<AtomicU32>, backlog: u32) -> Option<Waiting> {
        let before = count.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(Arc::clone(count));
        (before < backlog).then_some(waiting)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
