//! Addresses of this host.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

/// Whether this host has an address, in this network namespace: only then a socket can be
/// bound to it. Link-local addresses belong to the netdev `ifindex`. If no socket can be
/// opened the answer is no.
pub(crate) fn has_address(address: IpAddr, ifindex: u32) -> bool {
    let family = match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let name = match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(v6, 0, 0, ifindex))
        }
        _ => SocketAddr::new(address, 0),
    };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    socket.is_ok_and(|socket| bind(&socket, &name).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_here_and_an_address_of_the_documentation_is_not() {
        assert!(has_address("127.0.0.1".parse().unwrap(), 0));
        assert!(!has_address("192.0.2.1".parse().unwrap(), 0));
        assert!(!has_address("2001:db8::1".parse().unwrap(), 0));
    }
}
