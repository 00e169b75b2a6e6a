//! The sending sockets, one per UDP source port.
//!
//! They are not the slot's sockets: a socket has one source port, and flows use different
//! ones, so that the network spreads them over paths and receive queues. The sockets are
//! not connected and forbid fragmentation. Then the IPv4 identification is known: 0, and
//! counting up within a segmented send. They receive nothing. A socket for flows from one
//! IPv4 address is bound to it, which saves a control message per packet.
//!
//! The number of sockets is limited. When the limit is reached, queue pairs share sockets.
//! No socket is closed while the sender exists.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use socket2::{Domain, Socket};

use crate::segments::Segments;
use crate::tx_message::DEFAULT_HOP_LIMIT;
use crate::{socket, steering};

/// The first of the dynamic ports, which RoCEv2 uses as source ports.
const FIRST: u16 = 0xc000;
/// Number of dynamic ports.
const PORTS: usize = 0x4000;

/// A sending socket.
pub(crate) struct TxPort {
    port: u16,
    /// The address that the socket is bound to, if not the wildcard address.
    pub(crate) source: Option<Ipv4Addr>,
    pub(crate) socket: OwnedFd,
    /// Socket that keeps the port on all other addresses, if this one has a single address.
    _guard: Option<Socket>,
    pub(crate) segments: Segments,
}

/// The sockets of one IP family.
pub(crate) struct TxPorts {
    v6: bool,
    limit: usize,
    open: Vec<TxPort>,
    /// For each requested dynamic port the index of its socket in `open`, plus one. Empty
    /// until the first request.
    serves: Vec<u16>,
}

impl TxPorts {
    pub(crate) fn new(v6: bool, limit: usize) -> TxPorts {
        TxPorts {
            v6,
            limit: limit.clamp(1, PORTS),
            open: Vec::new(),
            serves: Vec::new(),
        }
    }

    /// Returns the port that serves `want`, always the same one. Opens a socket if there is
    /// none yet, bound to `source` if that is given and possible.
    pub(crate) fn bind(&mut self, want: u16, source: Option<Ipv4Addr>) -> io::Result<u16> {
        if self.serves.is_empty() {
            self.serves = vec![0; PORTS];
        }
        let entry = table_index(want);
        if self.serves[entry] == 0 {
            let index = self.choose(want | FIRST, source)?;
            self.serves[entry] = index as u16 + 1;
        }
        Ok(self.open[usize::from(self.serves[entry]) - 1].port)
    }

    /// Returns the socket on this port.
    pub(crate) fn port(&self, port: u16) -> Option<&TxPort> {
        let served_by = *self.serves.get(table_index(port))?;
        let open = self.open.get(usize::from(served_by).checked_sub(1)?)?;
        (open.port == port).then_some(open)
    }

    /// Returns an index into `open` for a port that is requested for the first time.
    fn choose(&mut self, want: u16, source: Option<Ipv4Addr>) -> io::Result<usize> {
        if self.open.len() < self.limit {
            let opened = match source {
                // The address may be gone at present, and may come back.
                Some(_) => self
                    .open_near(want, source)
                    .or_else(|_| self.open_near(want, None)),
                None => self.open_near(want, None),
            };
            match opened {
                Ok(opened) => {
                    let port = opened.port;
                    self.open.push(opened);
                    let index = self.open.len() - 1;
                    self.serves[table_index(port)] = index as u16 + 1;
                    return Ok(index);
                }
                Err(error) if self.open.is_empty() => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "cannot open another source port; queue pairs share the open ones");
                }
            }
        }
        Ok(table_index(want) % self.open.len())
    }

    /// Opens a socket on a port, or on the next free one.
    fn open_near(&self, want: u16, source: Option<Ipv4Addr>) -> io::Result<TxPort> {
        let mut socket = self.prepare()?;
        for step in 0..PORTS as u16 {
            let port = want.wrapping_add(step) | FIRST;
            if self.serves[table_index(port)] != 0 {
                continue;
            }
            let bound = socket.bind(&self.address(port, source).into());
            let guarded = bound.and_then(|()| source.map(|_| guard(&socket, port)).transpose());
            match guarded {
                // A bound socket cannot be bound again.
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => socket = self.prepare()?,
                Err(error) => return Err(error),
                Ok(_guard) => {
                    return Ok(TxPort {
                        port,
                        source,
                        socket: socket.into(),
                        _guard,
                        segments: Segments::default(),
                    });
                }
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "all UDP ports from 49152 to 65535 are in use",
        ))
    }

    fn prepare(&self) -> io::Result<Socket> {
        let on = |s: &Socket, level, option, value| socket::set_number(s, level, option, value);
        let socket = if self.v6 {
            let s = socket::udp(Domain::IPV6)?;
            s.set_only_v6(true)?;
            s.set_unicast_hops_v6(DEFAULT_HOP_LIMIT.into())?;
            on(
                &s,
                libc::SOL_IPV6,
                libc::IPV6_MTU_DISCOVER,
                libc::IPV6_PMTUDISC_DO,
            )?;
            s
        } else {
            let s = socket::udp(Domain::IPV4)?;
            s.set_ttl_v4(DEFAULT_HOP_LIMIT.into())?;
            on(
                &s,
                libc::SOL_IP,
                libc::IP_MTU_DISCOVER,
                libc::IP_PMTUDISC_DO,
            )?;
            s
        };
        socket::raise_send_buffer(&socket);
        // Peers send to port 4791. Other datagrams would fill the receive buffer.
        let _ = steering::drop_all(&socket);
        Ok(socket)
    }

    fn address(&self, port: u16, source: Option<Ipv4Addr>) -> SocketAddr {
        match self.v6 {
            true => (Ipv6Addr::UNSPECIFIED, port).into(),
            false => (source.unwrap_or(Ipv4Addr::UNSPECIFIED), port).into(),
        }
    }
}

/// Binds the port of a socket, which has one IPv4 address, on all other addresses too. A
/// user who has the port on any address could send from ours, because a control message can
/// name the source. Peers on this host identify us by our port.
fn guard(socket: &Socket, port: u16) -> io::Result<Socket> {
    let guard = socket::udp(Domain::IPV4)?;
    let _ = steering::drop_all(&guard);
    // During the bind, sockets of one user can share the port if both permit it.
    socket.set_reuse_port(true)?;
    guard.set_reuse_port(true)?;
    let bound = guard.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into());
    guard.set_reuse_port(false)?;
    socket.set_reuse_port(false)?;
    bound.map(|()| guard)
}

/// Returns the index of a dynamic port in `serves`.
fn table_index(port: u16) -> usize {
    usize::from(port | FIRST) - usize::from(FIRST)
}
