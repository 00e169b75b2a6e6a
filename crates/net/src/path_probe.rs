//! Which packets reach another machine: what `ferroce ping` finds out about MTUs.
//!
//! A datagram to a port where nobody listens, never to be fragmented: if it arrives,
//! the other machine says that nobody is there, and if the way is too narrow, the
//! kernel or a router may say so. It needs no privilege, and no help from the other side
//! but what every IP stack gives.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, SockAddr};

use crate::socket;

/// Where nobody listens: traceroute counts on that as well.
const CLOSED_PORT: u16 = 33434;
/// Bytes of UDP's header, and those of IP.
const UDP: usize = 8;
const IPV4: usize = 20;
const IPV6: usize = 40;

/// What became of a packet.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Passage {
    /// It has arrived.
    Arrived,
    /// It does not fit.
    TooLarge,
    /// Nobody said anything.
    Silence,
}

/// Sends one IP packet of `size` bytes, and waits for what is said about it.
///
/// # Errors
/// If there is no way to the address at all.
pub fn probe_path(to: IpAddr, size: usize, patience: Duration) -> io::Result<Passage> {
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
    socket.set_read_timeout(Some(patience))?;
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
        // Somebody listens after all: then it has arrived as well.
        Ok(_) => Ok(Passage::Arrived),
        Err(error) => match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => Ok(Passage::Arrived),
            Some(libc::EMSGSIZE) => Ok(Passage::TooLarge),
            Some(libc::EAGAIN | libc::EINTR) => Ok(Passage::Silence),
            _ => Err(error),
        },
    }
}
