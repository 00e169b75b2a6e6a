//! Addresses of this host.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, getsockname, socket_with};

/// Any port will do: no packet is sent.
const PORT: u16 = 9;

/// Returns true if this host has an address, in this network namespace. Link-local addresses
/// belong to the netdev `ifindex`. Returns false if no socket can be opened.
///
/// The kernel sends to an address of its own from that same address. A bind to the address
/// would be no proof: it succeeds for every address if `net.ipv4.ip_nonlocal_bind` is 1.
pub fn has_address(address: IpAddr, ifindex: u32) -> bool {
    // The kernel sends to all of 127.0.0.0/8 from 127.0.0.1.
    if address.is_loopback() {
        return true;
    }
    let family = match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let name = match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(v6, PORT, 0, ifindex))
        }
        _ => SocketAddr::new(address, PORT),
    };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let source = socket.and_then(|socket| {
        connect(&socket, &name)?;
        getsockname(&socket)
    });
    let source = source.map(SocketAddr::try_from);
    source.is_ok_and(|source| source.is_ok_and(|source| source.ip() == address))
}

#[cfg(test)]
mod tests {
    use ferroce_testnet::{isolated, netdev};

    use super::*;

    fn is_here(address: &str) -> bool {
        has_address(address.parse().unwrap(), 1)
    }

    #[test]
    fn only_addresses_of_this_host_are_here() {
        isolated("host::tests::only_addresses_of_this_host_are_here", || {
            netdev::add_address("lo", "192.0.2.7/32");
            netdev::add_address("lo", "2001:db8::7/128");
            for nonlocal_bind in ["0", "1"] {
                for family in ["ipv4", "ipv6"] {
                    let path = format!("/proc/sys/net/{family}/ip_nonlocal_bind");
                    std::fs::write(path, nonlocal_bind).unwrap();
                }
                for address in ["127.0.0.1", "127.0.0.5", "192.0.2.7", "::1", "2001:db8::7"] {
                    assert!(is_here(address), "{address}, {nonlocal_bind}");
                }
                for address in ["192.0.2.1", "2001:db8::1"] {
                    assert!(!is_here(address), "{address}, {nonlocal_bind}");
                }
            }
        });
    }
}
