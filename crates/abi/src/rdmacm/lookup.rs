//! Which of our addresses leads to a destination: the kernel's routes know.

use core::net::{IpAddr, SocketAddr};

use rustix::net::{
    AddressFamily, SocketAddrAny, SocketFlags, SocketType, bind, connect, getsockname, socket_with,
};

use super::Outcome;
use super::address::{any, with_port};
use crate::errno::refuse;
use ferroce_cm::ports::Host;

/// The address from which packets to `destination` leave; `source` if it is one of
/// ours and they can leave from there.
pub(crate) fn source_for(destination: SocketAddr, source: Host) -> Outcome<Host> {
    let errno = |error: rustix::io::Errno| error.raw_os_error();
    if !source.ip.is_unspecified() && destination.ip().is_multicast() {
        return Ok(source);
    }
    let family = match destination {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket =
        socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map_err(errno)?;
    if !source.ip.is_unspecified() {
        bind(&socket, &with_port(source, 0)).map_err(errno)?;
    }
    // A port for the question only: nothing is sent.
    let mut question = destination;
    question.set_port(4791);
    connect(&socket, &question).map_err(errno)?;
    let answer = getsockname(&socket).map_err(errno)?;
    found(answer, destination)
}

fn found(answer: SocketAddrAny, destination: SocketAddr) -> Outcome<Host> {
    let answer = SocketAddr::try_from(answer).map_err(|_| {
        refuse(
            libc::EAFNOSUPPORT,
            "the kernel's route has an address of an unknown family",
        )
    })?;
    let mut host = super::address::host(answer);
    if let (0, SocketAddr::V6(to)) = (host.scope, destination)
        && to.ip().is_unicast_link_local()
    {
        host.scope = to.scope_id();
    }
    Ok(host)
}

/// Whether an address is this machine's.
pub(crate) fn check_local(host: Host) -> Outcome {
    let errno = |error: rustix::io::Errno| error.raw_os_error();
    let family = match any(host.ip) {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let socket =
        socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map_err(errno)?;
    bind(&socket, &with_port(host, 0)).map_err(errno)
}
