//! Socket addresses and the hosts that rdma_cm binds to.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use ferroce_cm::ports::Host;

/// Returns the host of a socket address. Only link-local addresses keep their scope.
pub(crate) fn host(address: SocketAddr) -> Host {
    let scope = match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
        _ => 0,
    };
    Host {
        ip: address.ip(),
        scope,
    }
}

/// Returns the socket address of a host and a port.
pub(crate) fn with_port(host: Host, port: u16) -> SocketAddr {
    match host.ip {
        IpAddr::V4(v4) => SocketAddrV4::new(v4, port).into(),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, host.scope).into(),
    }
}

/// Returns the wildcard address of the same IP version.
pub(crate) fn any(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
