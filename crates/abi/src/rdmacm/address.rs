//! Conversion of addresses between C and Rust.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use ferroce_cm::Gid;
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use super::Outcome;
use crate::errno::refuse;
use crate::ffi::ibv_gid;

/// Reads an IPv4 or IPv6 address of a program.
///
/// # Safety
/// `address` is NULL or points to an address of the size of its family.
pub(crate) unsafe fn read(address: *const sockaddr) -> Outcome<SocketAddr> {
    // SAFETY: every address begins with its family, and the reads below are of the size of
    // that family. The address need not be aligned.
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

/// Returns the address as a C structure.
pub(crate) fn storage(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: all bytes zero is a valid `sockaddr_storage`, of family AF_UNSPEC.
    let mut storage: sockaddr_storage = unsafe { core::mem::zeroed() };
    let to = &raw mut storage;
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: a `sockaddr_storage` is as large and as aligned as every address type.
            let to = unsafe { &mut *to.cast::<sockaddr_in>() };
            to.sin_family = libc::AF_INET as u16;
            to.sin_port = v4.port().to_be();
            to.sin_addr.s_addr = v4.ip().to_bits().to_be();
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as for IPv4.
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

/// Returns an IP address as a GID.
pub(crate) fn gid(ip: IpAddr) -> ibv_gid {
    ibv_gid {
        raw: Gid::from(ip).0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_conversion_to_c() {
        for text in ["192.0.2.1:7174", "[2001:db8::1]:80", "[fe80::1%7]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = storage(address);
            // SAFETY: `c` is a whole address.
            assert_eq!(unsafe { read((&raw const c).cast()) }, Ok(address));
        }
    }

    #[test]
    fn other_families_are_refused() {
        // SAFETY: all bytes zero is a valid `sockaddr_storage`.
        let mut c: sockaddr_storage = unsafe { core::mem::zeroed() };
        for family in [0, libc::AF_UNIX, 27] {
            c.ss_family = family as u16;
            // SAFETY: `c` has room for an address of any family.
            let read = unsafe { read((&raw const c).cast()) };
            assert_eq!(read, Err(libc::EINVAL), "{family}");
        }
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { read(core::ptr::null()) }, Err(libc::EINVAL));
    }
}
