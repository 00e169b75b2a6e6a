//! A run as one message to the kernel.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ferroce_transport::Path;
use ferroce_wire::ROCE_PORT;
use socket2::Domain;

use crate::address::Name;
use crate::send_error::SendError;
use crate::socket;
use crate::syscall::Outgoing;

/// The hop limit of sockets to send from.
pub(crate) const USUAL_HOPS: u8 = 64;

/// The way of a message: canonical addresses and the interface to leave by.
#[derive(Copy, Clone)]
pub(crate) struct Way {
    source: IpAddr,
    destination: IpAddr,
    traffic_class: u8,
    hop_limit: u8,
    /// Meant for this interface; 0 if routing decides.
    ifindex: u32,
    /// The socket sends from `source` anyway.
    bound: bool,
}

impl Way {
    /// By a socket that is bound to `bound`, if to any address.
    pub(crate) fn new(path: &Path, ifindex: Option<u32>, bound: Option<Ipv4Addr>) -> Way {
        let source = path.flow.source.to_canonical();
        Way {
            source,
            bound: bound.is_some_and(|bound| source == IpAddr::V4(bound)),
            destination: path.flow.destination.to_canonical(),
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            ifindex: ifindex.unwrap_or(0),
        }
    }

    /// The same, left to routing, if the interface was no more than a wish. Where
    /// addresses mean something only on an interface there is no choice.
    pub(crate) fn any_interface(&self) -> Option<Way> {
        let scoped = match self.destination {
            IpAddr::V4(v4) => v4.is_multicast(),
            IpAddr::V6(v6) => v6.is_multicast() || v6.is_unicast_link_local(),
        };
        (self.ifindex != 0 && !scoped).then_some(Way {
            ifindex: 0,
            ..*self
        })
    }

    /// Sorts an error of `sendmsg` for packets of `segment` bytes.
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
                // IPv4 has one error for "no such way" and "not from there".
                if self.source.is_ipv4() && !is_ours(self.source) {
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

    /// Whether the hop limit is another than the socket's own, which does not serve
    /// multicast. 0 would be refused; the default serves whoever did not care.
    fn must_say_hops(&self) -> bool {
        match self.hop_limit {
            0 => false,
            USUAL_HOPS => self.destination.is_multicast(),
            _ => true,
        }
    }

    /// Whether there is nothing to say that its socket does not do anyway.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.bound && self.ifindex == 0 && self.traffic_class == 0 && !self.must_say_hops()
    }

    /// Where it leads.
    #[inline]
    pub(crate) fn name(&self) -> (Name, usize) {
        Name::new(self.destination, ROCE_PORT, self.ifindex)
    }

    /// A message of one datagram, or with `segment` of several. What its socket does
    /// anyway is not said again: the source, traffic class 0, the usual hop limit.
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
                if self.must_say_hops() {
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
                if self.must_say_hops() {
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

/// Whether an IPv4 address is one of this machine's.
fn is_ours(address: IpAddr) -> bool {
    socket::udp(Domain::IPV4)
        .and_then(|socket| socket.bind(&SocketAddr::new(address, 0).into()))
        .is_ok()
}
