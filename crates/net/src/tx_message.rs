//! Routes of runs, and the messages that send them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ferroce_roce::Path;
use ferroce_wire::ROCE_PORT;
use socket2::Domain;

use crate::address::Name;
use crate::send_error::SendError;
use crate::socket;
use crate::syscall::Outgoing;

/// Default hop limit of the sending sockets.
pub(crate) const DEFAULT_HOP_LIMIT: u8 = 64;

/// The route of a message: canonical addresses, IP fields and the outgoing interface.
#[derive(Copy, Clone)]
pub(crate) struct Route {
    source: IpAddr,
    destination: IpAddr,
    traffic_class: u8,
    hop_limit: u8,
    /// The outgoing interface; 0 if routing decides.
    ifindex: u32,
    /// True if the socket is bound to `source`.
    bound: bool,
}

impl Route {
    /// Returns the route of a path. `bound` is the address that the socket is bound to.
    pub(crate) fn new(path: &Path, ifindex: Option<u32>, bound: Option<Ipv4Addr>) -> Route {
        let source = path.flow.source.to_canonical();
        Route {
            source,
            bound: bound.is_some_and(|bound| source == IpAddr::V4(bound)),
            destination: path.flow.destination.to_canonical(),
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            ifindex: ifindex.unwrap_or(0),
        }
    }

    /// Returns the same route with the interface left to routing. Returns `None` if there is
    /// no interface, or if the destination is valid on that interface only.
    pub(crate) fn any_interface(&self) -> Option<Route> {
        let scoped = match self.destination {
            IpAddr::V4(v4) => v4.is_multicast(),
            IpAddr::V6(v6) => v6.is_multicast() || v6.is_unicast_link_local(),
        };
        (self.ifindex != 0 && !scoped).then_some(Route {
            ifindex: 0,
            ..*self
        })
    }

    /// Converts an error of `sendmsg` for packets of `segment` bytes.
    pub(crate) fn explain(&self, error: io::Error, segment: usize) -> SendError {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => SendError::WouldBlock,
            Some(libc::EMSGSIZE) => SendError::TooBig(segment),
            Some(libc::EINVAL | libc::EADDRNOTAVAIL) => SendError::NotOurAddress(self.source),
            Some(
                libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::ENETDOWN
                | libc::ENODEV
                | libc::ENXIO
                | libc::EACCES,
            ) => {
                // IPv4 has one error for "no route" and "not a local source address".
                if self.source.is_ipv4() && !is_local(self.source) {
                    return SendError::NotOurAddress(self.source);
                }
                SendError::Unreachable {
                    destination: self.destination,
                    error,
                }
            }
            _ => SendError::Dropped(error),
        }
    }

    /// Returns true if the message must carry the hop limit: it differs from the socket's,
    /// or the destination is multicast, which has another default. The kernel refuses 0, so
    /// 0 means the default.
    fn sets_hop_limit(&self) -> bool {
        match self.hop_limit {
            0 => false,
            DEFAULT_HOP_LIMIT => self.destination.is_multicast(),
            _ => true,
        }
    }

    /// Returns true if the message needs no control messages but the segment size.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.bound && self.ifindex == 0 && self.traffic_class == 0 && !self.sets_hop_limit()
    }

    /// Returns the destination.
    #[inline]
    pub(crate) fn name(&self) -> (Name, usize) {
        Name::new(self.destination, ROCE_PORT, self.ifindex)
    }

    /// Returns a message with one datagram or, with `segment`, several. Control messages for
    /// values that the socket already has are left out.
    pub(crate) fn message<'a>(&self, body: &'a [u8], segment: Option<u16>) -> Outgoing<'a> {
        let (name, name_len) = self.name();
        let mut message = Outgoing {
            name,
            name_len,
            body,
            ..Outgoing::EMPTY
        };
        let control = &mut message.control;
        let class = i32::from(self.traffic_class).to_ne_bytes();
        let hops = i32::from(self.hop_limit).to_ne_bytes();
        let index = self.ifindex.to_ne_bytes();
        let mut at = 0;
        match self.source {
            IpAddr::V4(source) => {
                if !self.bound || self.ifindex != 0 {
                    let mut info = [0; 12];
                    info[..4].copy_from_slice(&index);
                    info[4..8].copy_from_slice(&source.octets());
                    at = control.put(at, libc::SOL_IP, libc::IP_PKTINFO, info);
                }
                if self.traffic_class != 0 {
                    at = control.put(at, libc::SOL_IP, libc::IP_TOS, class);
                }
                if self.sets_hop_limit() {
                    at = control.put(at, libc::SOL_IP, libc::IP_TTL, hops);
                }
            }
            IpAddr::V6(source) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&source.octets());
                info[16..].copy_from_slice(&index);
                at = control.put(at, libc::SOL_IPV6, libc::IPV6_PKTINFO, info);
                if self.traffic_class != 0 {
                    at = control.put(at, libc::SOL_IPV6, libc::IPV6_TCLASS, class);
                }
                if self.sets_hop_limit() {
                    at = control.put(at, libc::SOL_IPV6, libc::IPV6_HOPLIMIT, hops);
                }
            }
        }
        if let Some(segment) = segment {
            let segment = segment.to_ne_bytes();
            at = control.put(at, libc::SOL_UDP, libc::UDP_SEGMENT, segment);
        }
        message.control_len = at;
        message
    }
}

/// Returns true if an IPv4 address belongs to this machine.
fn is_local(address: IpAddr) -> bool {
    socket::udp(Domain::IPV4)
        .and_then(|socket| socket.bind(&SocketAddr::new(address, 0).into()))
        .is_ok()
}
