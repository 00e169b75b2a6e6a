//! Addresses between C and Rust.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use ferroce_cm::Gid;
use ferroce_cm::ports::Host;
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use super::Outcome;
use crate::errno::refuse;
use crate::ffi::ibv_gid;

/// The address a program passes: IPv4 or IPv6.
///
/// # Safety
/// NULL, or an address as long as its family says.
pub(crate) unsafe fn read(address: *const sockaddr) -> Outcome<SocketAddr> {
    // SAFETY: by contract; a `sockaddr` in a program need not be aligned.
    unsafe {
        if address.is_null() {
            return Err(refuse(libc::EINVAL, "the address is NULL"));
        }
        match i32::from(address.read_unaligned().sa_family) {
            libc::AF_INET => {
                let v4 = address.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr));
                Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let (flow, scope) = (v6.sin6_flowinfo, v6.sin6_scope_id);
                Ok(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), flow, scope).into())
            }
            _ => Err(refuse(libc::EINVAL, "the address is neither IPv4 nor IPv6")),
        }
    }
}

/// The same for C.
pub(crate) fn storage(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: zeros are a valid address of no family.
    let mut storage: sockaddr_storage = unsafe { core::mem::zeroed() };
    let to = &raw mut storage;
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: a `sockaddr_storage` has room for every kind.
            let to = unsafe { &mut *to.cast::<sockaddr_in>() };
            to.sin_family = libc::AF_INET as u16;
            to.sin_port = v4.port().to_be();
            to.sin_addr.s_addr = v4.ip().to_bits().to_be();
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let to = unsafe { &mut *to.cast::<sockaddr_in6>() };
            to.sin6_family = libc::AF_INET6 as u16;
            to.sin6_port = v6.port().to_be();
            to.sin6_flowinfo = v6.flowinfo();
            to.sin6_addr.s6_addr = v6.ip().octets();
            to.sin6_scope_id = v6.scope_id();
        }
    }
    storage
}

/// The address without its port.
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

/// A host and a port.
pub(crate) fn with_port(host: Host, port: u16) -> SocketAddr {
    match host.ip {
        IpAddr::V4(v4) => SocketAddrV4::new(v4, port).into(),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, host.scope).into(),
    }
}

/// The wildcard of the same IP version.
pub(crate) fn any(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// An address as a GID.
pub(crate) fn gid(ip: IpAddr) -> ibv_gid {
    ibv_gid {
        raw: Gid::from(ip).0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_c() {
        for text in ["192.0.2.1:7174", "[2001:db8::1]:80", "[fe80::1%7]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = storage(address);
            // SAFETY: a whole address.
            assert_eq!(unsafe { read((&raw const c).cast()) }, Ok(address));
        }
    }

    #[test]
    fn other_families_are_refused() {
        // SAFETY: zeros are an address of no family.
        let mut c: sockaddr_storage = unsafe { core::mem::zeroed() };
        for family in [0, libc::AF_UNIX, 27] {
            c.ss_family = family as u16;
            // SAFETY: a whole address.
            let read = unsafe { read((&raw const c).cast()) };
            assert_eq!(read, Err(libc::EINVAL), "{family}");
        }
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { read(core::ptr::null()) }, Err(libc::EINVAL));
    }
}
