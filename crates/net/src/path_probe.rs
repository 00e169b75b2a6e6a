//! Path MTU probes, for `ferroce ping`.
//!
//! A probe is a datagram to a closed UDP port, with fragmentation forbidden. If it arrives,
//! the other host answers with ICMP "port unreachable". If it is too long for the path, the
//! kernel or a router may answer with "fragmentation needed". A probe needs no privilege
//! and no software on the other host.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, SockAddr};

use crate::socket;

/// A port that is closed on most hosts; traceroute uses the same.
const CLOSED_PORT: u16 = 33434;
/// Length of the UDP header.
const UDP: usize = 8;
/// Length of the IPv4 header.
const IPV4: usize = 20;
/// Length of the IPv6 header.
const IPV6: usize = 40;

/// Result of a probe.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Passage {
    /// The packet has arrived.
    Arrived,
    /// The packet is longer than the path MTU.
    TooLarge,
    /// There was no answer within the timeout.
    Silence,
}

/// Sends one IP packet of `size` bytes and waits up to `timeout` for the answer.
///
/// # Errors
/// If there is no route to the address.
pub fn probe_path(to: IpAddr, size: usize, timeout: Duration) -> io::Result<Passage> {
    let (domain, level, option, probe, headers) = match to {
        IpAddr::V4(_) => (
            Domain::IPV4,
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_PROBE,
            IPV4 + UDP,
        ),
        IpAddr::V6(_) => (
            Domain::IPV6,
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_PROBE,
            IPV6 + UDP,
        ),
    };
    let socket = socket::udp(domain)?;
    socket::set_number(&socket, level, option, probe)?;
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(timeout))?;
    socket.connect(&SockAddr::from(SocketAddr::new(to, CLOSED_PORT)))?;
    let payload = vec![0; size.saturating_sub(headers)];
    match socket.send(&payload) {
        Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
            return Ok(Passage::TooLarge);
        }
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    match std::io::Read::read(&mut &socket, &mut [0; 64]) {
        // A process listens on the port and has answered: the packet has arrived.
        Ok(_) => Ok(Passage::Arrived),
        Err(error) => match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => Ok(Passage::Arrived),
            Some(libc::EMSGSIZE) => Ok(Passage::TooLarge),
            Some(libc::EAGAIN | libc::EINTR) => Ok(Passage::Silence),
            _ => Err(error),
        },
    }
}
