//! Socket addresses of C programs.

use core::ffi::c_int;
use core::mem::size_of;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

use ferroce_rsocket::{Errno, Result};
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

/// Reads an address from a program.
///
/// # Safety
///
/// The pointer is NULL or has `length` readable bytes.
pub(crate) unsafe fn read(addr: *const sockaddr, length: socklen_t) -> Result<SocketAddr> {
    if addr.is_null() {
        return Err(Errno::FAULT);
    }
    let length = length as usize;
    if length < size_of::<libc::sa_family_t>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: `length` covers the family.
    let family = unsafe { addr.cast::<libc::sa_family_t>().read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET if length >= size_of::<sockaddr_in>() => {
            // SAFETY: `length` covers the structure.
            let v4 = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            let ip = u32::from_be(v4.sin_addr.s_addr).into();
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 if length >= size_of::<sockaddr_in6>() => {
            // SAFETY: `length` covers the structure.
            let v6 = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            let (ip, port) = (v6.sin6_addr.s6_addr.into(), u16::from_be(v6.sin6_port));
            let flowinfo = u32::from_be(v6.sin6_flowinfo);
            Ok(SocketAddrV6::new(ip, port, flowinfo, v6.sin6_scope_id).into())
        }
        libc::AF_INET | libc::AF_INET6 => Err(Errno::INVAL),
        _ => Err(Errno::AFNOSUPPORT),
    }
}

/// Returns an address as a C structure, and its length.
pub(crate) fn to_c(addr: &SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: a `sockaddr_storage` consists of integers, which may be 0.
    let mut storage: sockaddr_storage = unsafe { core::mem::zeroed() };
    let place = &raw mut storage;
    let length = match addr {
        SocketAddr::V4(v4) => {
            let c = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(*v4.ip()).to_be(),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: a `sockaddr_storage` is as large and as aligned as any address.
            unsafe { place.cast::<sockaddr_in>().write(c) };
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let c = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo().to_be(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: a `sockaddr_storage` is as large and as aligned as any address.
            unsafe { place.cast::<sockaddr_in6>().write(c) };
            size_of::<sockaddr_in6>()
        }
    };
    (storage, length as socklen_t)
}

/// Writes an address to a program's memory: as much as fits, and its whole length.
///
/// # Safety
///
/// A pointer is NULL, or `addr` has room for `*length` bytes.
pub(crate) unsafe fn write(
    from: &SocketAddr,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<()> {
    if addr.is_null() || length.is_null() {
        return Err(Errno::FAULT);
    }
    let (storage, whole) = to_c(from);
    // SAFETY: `addr` has room for `*length` bytes, and the storage holds `whole`.
    unsafe {
        let room = (*length).min(whole) as usize;
        core::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), addr.cast::<u8>(), room);
        *length = whole;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["192.0.2.7:7174", "[2001:db8::7]:7174", "[fe80::1%3]:1"] {
            let addr: SocketAddr = text.parse().unwrap();
            let (c, length) = to_c(&addr);
            // SAFETY: the storage has at least `length` bytes.
            let read = unsafe { read((&raw const c).cast(), length) };
            assert_eq!(read, Ok(addr));
        }
    }

    #[test]
    fn short_and_foreign_addresses_are_refused() {
        let (c, length) = to_c(&"192.0.2.7:1".parse().unwrap());
        let c = (&raw const c).cast::<sockaddr>();
        // SAFETY: the storage has at least `length` bytes.
        unsafe {
            assert_eq!(read(c, length - 1), Err(Errno::INVAL));
            assert_eq!(read(c, 1), Err(Errno::INVAL));
            assert_eq!(read(core::ptr::null(), length), Err(Errno::FAULT));
        }
        let unix = [libc::AF_UNIX as libc::sa_family_t; 16];
        // SAFETY: the array has 32 bytes.
        let read = unsafe { read(unix.as_ptr().cast(), 32) };
        assert_eq!(read, Err(Errno::AFNOSUPPORT));
    }

    #[test]
    fn address_is_cut_to_the_room_of_the_program() {
        let addr = "192.0.2.7:7174".parse().unwrap();
        let mut bytes = [0xff_u8; 16];
        let mut length = 4;
        // SAFETY: the array has room for 4 bytes.
        unsafe { write(&addr, bytes.as_mut_ptr().cast(), &mut length) }.unwrap();
        assert_eq!(length, 16);
        assert_eq!(bytes[2..6], [0x1c, 0x06, 0xff, 0xff]);
    }
}
