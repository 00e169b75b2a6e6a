//! Addresses of sockets: C's and ours.

use core::ffi::c_int;
use core::mem::size_of;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

/// Reads the address that a program gave.
///
/// # Safety
///
/// NULL, or readable for `length` bytes.
pub(crate) unsafe fn read(addr: *const sockaddr, length: socklen_t) -> Result<SocketAddr, c_int> {
    if addr.is_null() {
        return Err(libc::EFAULT);
    }
    let length = length as usize;
    if length < size_of::<libc::sa_family_t>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the family was checked to be there.
    let family = unsafe { addr.cast::<libc::sa_family_t>().read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET if length >= size_of::<sockaddr_in>() => {
            // SAFETY: it is long enough.
            let v4 = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            let ip = u32::from_be(v4.sin_addr.s_addr).into();
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 if length >= size_of::<sockaddr_in6>() => {
            // SAFETY: it is long enough.
            let v6 = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            let (ip, port) = (v6.sin6_addr.s6_addr.into(), u16::from_be(v6.sin6_port));
            let flowinfo = u32::from_be(v6.sin6_flowinfo);
            Ok(SocketAddrV6::new(ip, port, flowinfo, v6.sin6_scope_id).into())
        }
        libc::AF_INET | libc::AF_INET6 => Err(libc::EINVAL),
        _ => Err(libc::EAFNOSUPPORT),
    }
}

/// The address as C has it, and its length.
pub(crate) fn to_c(addr: &SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: zeros are an address of no family.
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
            // SAFETY: the storage has room for any address.
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
            // SAFETY: the storage has room for any address.
            unsafe { place.cast::<sockaddr_in6>().write(c) };
            size_of::<sockaddr_in6>()
        }
    };
    (storage, length as socklen_t)
}

/// Gives an address to a program: as much as there is room for, and its whole length.
///
/// # Safety
///
/// Both NULL, or `length` can be used and `addr` written to for `*length` bytes.
pub(crate) unsafe fn write(
    from: &SocketAddr,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<(), c_int> {
    if addr.is_null() || length.is_null() {
        return Err(libc::EFAULT);
    }
    let (storage, whole) = to_c(from);
    // SAFETY: as the caller promised.
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
    fn addresses_come_back() {
        for text in ["192.0.2.7:7174", "[2001:db8::7]:7174", "[fe80::1%3]:1"] {
            let addr: SocketAddr = text.parse().unwrap();
            let (c, length) = to_c(&addr);
            // SAFETY: the storage is longer than that.
            let read = unsafe { read((&raw const c).cast(), length) };
            assert_eq!(read, Ok(addr));
        }
    }

    #[test]
    fn short_and_foreign_addresses_are_refused() {
        let (c, length) = to_c(&"192.0.2.7:1".parse().unwrap());
        let c = (&raw const c).cast::<sockaddr>();
        // SAFETY: the storage is longer than that.
        unsafe {
            assert_eq!(read(c, length - 1), Err(libc::EINVAL));
            assert_eq!(read(c, 1), Err(libc::EINVAL));
            assert_eq!(read(core::ptr::null(), length), Err(libc::EFAULT));
        }
        let unix = [libc::AF_UNIX as libc::sa_family_t; 16];
        // SAFETY: 32 bytes.
        let read = unsafe { read(unix.as_ptr().cast(), 32) };
        assert_eq!(read, Err(libc::EAFNOSUPPORT));
    }

    #[test]
    fn a_program_with_little_room_gets_a_part() {
        let addr = "192.0.2.7:7174".parse().unwrap();
        let mut bytes = [0xff_u8; 16];
        let mut length = 4;
        // SAFETY: room for four bytes.
        unsafe { write(&addr, bytes.as_mut_ptr().cast(), &mut length) }.unwrap();
        assert_eq!(length, 16);
        assert_eq!(bytes[2..6], [0x1c, 0x06, 0xff, 0xff]);
    }
}
