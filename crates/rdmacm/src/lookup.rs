//! Source addresses, looked up in the kernel's routing table.

use core::net::{IpAddr, SocketAddr};

use ferroce_cm::ports::Host;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, socket_with,
};

use crate::address::{any, host, with_port};
use crate::error::{Error, ErrorKind};

/// Returns the address from which packets to `destination` leave. If `source` is not the
/// wildcard, it must be an address of this host with a route to `destination`.
pub(crate) fn source_for(destination: SocketAddr, source: Host) -> Result<Host, Error> {
    if !source.ip.is_unspecified() && destination.ip().is_multicast() {
        return Ok(source);
    }
    let failed = |error| Error::system(&format!("no route to {}", destination.ip()), error);
    let family = match destination {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::DGRAM, flags, None).map_err(failed)?;
    if !source.ip.is_unspecified() {
        bind(&socket, &with_port(source, 0)).map_err(failed)?;
    }
    // `connect` needs a port; the socket sends nothing.
    let mut target = destination;
    target.set_port(4791);
    connect(&socket, &target).map_err(failed)?;
    let found = getsockname(&socket).map_err(failed)?;
    let found = SocketAddr::try_from(found).map_err(|_| {
        Error::new(
            ErrorKind::Os(libc::EAFNOSUPPORT),
            "the kernel's route has an address of an unknown family",
        )
    })?;
    let mut found = host(found);
    if let (0, SocketAddr::V6(to)) = (found.scope, destination)
        && to.ip().is_unicast_link_local()
    {
        found.scope = to.scope_id();
    }
    Ok(found)
}

/// Fails unless `host` is an address of this machine.
pub(crate) fn check_local(host: Host) -> Result<(), Error> {
    let failed = |error| Error::system(&format!("{} is not an address here", host.ip), error);
    let family = match any(host.ip) {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::DGRAM, flags, None).map_err(failed)?;
    bind(&socket, &with_port(host, 0)).map_err(failed)
}
