//! Sockets to send from, one per UDP source port.
//!
//! They are apart from those of the slot: a socket has one source port, and flows
//! want different ones, to be spread over network paths and receive queues. They
//! are not connected, and forbid fragmentation, so that their IPv4 identification
//! is known: 0, and counting up within a segmented send. Nothing is received on
//! them. One for flows from a single IPv4 address is bound to it, which spares each
//! packet to say it.
//!
//! There are at most as many as the limit says. Once they are all open, queue
//! pairs share them; none is ever closed under a queue pair that uses it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use socket2::{Domain, Socket};

use crate::segments::Segments;
use crate::tx_message::USUAL_HOPS;
use crate::{socket, steering};

/// The dynamic ports, from which RoCEv2 sends.
const FIRST: u16 = 0xc000;
const PORTS: usize = 0x4000;

/// A socket to send from.
pub(crate) struct TxPort {
    port: u16,
    /// What it is bound to, if not to any address.
    pub(crate) source: Option<Ipv4Addr>,
    pub(crate) socket: OwnedFd,
    /// Keeps the port on all other addresses, if the socket has one address only.
    _guard: Option<Socket>,
    pub(crate) segments: Segments,
}

/// The sockets of one IP family.
pub(crate) struct TxPorts {
    v6: bool,
    limit: usize,
    open: Vec<TxPort>,
    /// For each dynamic port that was asked for, which of `open` serves it, plus
    /// one. Empty until somebody asks.
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

    /// The port that serves `want`; opens a socket if there is none yet, bound to `source`
    /// if that is given and possible. The same question has the same answer ever after.
    pub(crate) fn bind(&mut self, want: u16, source: Option<Ipv4Addr>) -> io::Result<u16> {
        if self.serves.is_empty() {
            self.serves = vec![0; PORTS];
        }
        let place = place(want);
        if self.serves[place] == 0 {
            let index = self.choose(want | FIRST, source)?;
            self.serves[place] = index as u16 + 1;
        }
        Ok(self.open[usize::from(self.serves[place]) - 1].port)
    }

    /// The one on exactly this port.
    pub(crate) fn port(&self, port: u16) -> Option<&TxPort> {
        let served_by = *self.serves.get(place(port))?;
        let open = self.open.get(usize::from(served_by).checked_sub(1)?)?;
        (open.port == port).then_some(open)
    }

    /// An index into `open` for a port that is asked for the first time.
    fn choose(&mut self, want: u16, source: Option<Ipv4Addr>) -> io::Result<usize> {
        if self.open.len() < self.limit {
            let opened = match source {
                // It may have gone meanwhile, and may come again.
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
                    self.serves[place(port)] = index as u16 + 1;
                    return Ok(index);
                }
                Err(error) if self.open.is_empty() => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "no further source port: sharing those open");
                }
            }
        }
        Ok(place(want) % self.open.len())
    }

    /// Opens a socket on a port, or on the next one that is free.
    fn open_near(&self, want: u16, source: Option<Ipv4Addr>) -> io::Result<TxPort> {
        let mut socket = self.prepare()?;
        for step in 0..PORTS as u16 {
            let port = want.wrapping_add(step) | FIRST;
            if self.serves[place(port)] != 0 {
                continue;
            }
            let bound = socket.bind(&self.address(port, source).into());
            let guarded = bound.and_then(|()| source.map(|_| guard(&socket, port)).transpose());
            match guarded {
                // A socket that is bound cannot be bound again.
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
            s.set_unicast_hops_v6(USUAL_HOPS.into())?;
            on(
                &s,
                libc::SOL_IPV6,
                libc::IPV6_MTU_DISCOVER,
                libc::IPV6_PMTUDISC_DO,
            )?;
            s
        } else {
            let s = socket::udp(Domain::IPV4)?;
            s.set_ttl_v4(USUAL_HOPS.into())?;
            on(
                &s,
                libc::SOL_IP,
                libc::IP_MTU_DISCOVER,
                libc::IP_PMTUDISC_DO,
            )?;
            s
        };
        socket::raise_send_buffer(&socket);
        // Peers answer to port 4791. Whatever else comes would only lie around.
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

/// Binds the port that a socket has on one IPv4 address on all others, too. Another user
/// with the port on any address could send from ours: the source address may be said with
/// each packet. Peers on this host know us by our port.
fn guard(socket: &Socket, port: u16) -> io::Result<Socket> {
    let guard = socket::udp(Domain::IPV4)?;
    let _ = steering::drop_all(&guard);
    // Sockets of one user can share a port if both want to, for the moment of the bind.
    socket.set_reuse_port(true)?;
    guard.set_reuse_port(true)?;
    let bound = guard.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into());
    guard.set_reuse_port(false)?;
    socket.set_reuse_port(false)?;
    bound.map(|()| guard)
}

fn place(port: u16) -> usize {
    usize::from(port | FIRST) - usize::from(FIRST)
}
