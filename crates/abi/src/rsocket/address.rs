//! Socket addresses of C programs.

use core::ffi::c_int;
use core::mem::size_of;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

use ferroce_rsocket::{Errno, Result};
use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

/// The bytes of a `sockaddr_in` or `sockaddr_in6`.
type Bytes = [u8; MAX];

const MAX: usize = size_of::<sockaddr_in6>();

/// Reads an address from a program.
///
/// # Safety
///
/// The pointer is NULL or has `length` readable bytes.
pub(crate) unsafe fn read(addr: *const sockaddr, length: socklen_t) -> Result<SocketAddr> {
    if addr.is_null() {
        return Err(Errno::FAULT);
    }
    let length = (length as usize).min(MAX);
    let mut bytes = [0; MAX];
    // SAFETY: the address has at least `length` bytes, which is at most `MAX`: the number of
    // bytes in `bytes`, a local variable.
    unsafe { core::ptr::copy_nonoverlapping(addr.cast(), bytes.as_mut_ptr(), length) };
    parse(&bytes, length)
}

/// Reads an address of which the program has given `length` bytes.
fn parse(bytes: &Bytes, length: usize) -> Result<SocketAddr> {
    if length < size_of::<libc::sa_family_t>() {
        return Err(Errno::INVAL);
    }
    let family = libc::sa_family_t::from_ne_bytes(array(bytes, 0));
    let port = u16::from_be_bytes(array(bytes, 2));
    match c_int::from(family) {
        libc::AF_INET if length >= size_of::<sockaddr_in>() => {
            let ip = array::<4>(bytes, 4).into();
            Ok(SocketAddrV4::new(ip, port).into())
        }
        libc::AF_INET6 if length >= size_of::<sockaddr_in6>() => {
            let ip = array::<16>(bytes, 8).into();
            let flowinfo = u32::from_be_bytes(array(bytes, 4));
            let scope = u32::from_ne_bytes(array(bytes, 24));
            Ok(SocketAddrV6::new(ip, port, flowinfo, scope).into())
        }
        libc::AF_INET | libc::AF_INET6 => Err(Errno::INVAL),
        _ => Err(Errno::AFNOSUPPORT),
    }
}

fn array<const N: usize>(bytes: &Bytes, at: usize) -> [u8; N] {
    core::array::from_fn(|place| bytes[at + place])
}

/// Returns an address as the bytes of a C structure, and their number.
pub(crate) fn to_c(addr: &SocketAddr) -> (Bytes, socklen_t) {
    let mut bytes = [0; MAX];
    let (family, length) = match addr {
        SocketAddr::V4(v4) => {
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            (libc::AF_INET, size_of::<sockaddr_in>())
        }
        SocketAddr::V6(v6) => {
            bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..].copy_from_slice(&v6.scope_id().to_ne_bytes());
            (libc::AF_INET6, size_of::<sockaddr_in6>())
        }
    };
    bytes[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
    bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
    (bytes, length as socklen_t)
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
    let (bytes, whole) = to_c(from);
    // SAFETY: `addr` has room for `*length` bytes, and `bytes` has at least `whole`.
    unsafe {
        let room = (*length).min(whole) as usize;
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), addr.cast(), room);
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
            let (bytes, length) = to_c(&addr);
            assert_eq!(parse(&bytes, length as usize), Ok(addr));
        }
    }

    #[test]
    fn addresses_have_the_layout_of_c() {
        let (bytes, length) = to_c(&"192.0.2.7:7174".parse().unwrap());
        // SAFETY: a `sockaddr_in` consists of integers, and the array is as long.
        let v4 = unsafe { bytes.as_ptr().cast::<sockaddr_in>().read_unaligned() };
        assert_eq!(length as usize, size_of::<sockaddr_in>());
        assert_eq!(c_int::from(v4.sin_family), libc::AF_INET);
        assert_eq!(u16::from_be(v4.sin_port), 7174);
        assert_eq!(u32::from_be(v4.sin_addr.s_addr), 0xc000_0207);
        let (bytes, _) = to_c(&"[2001:db8::7%3]:7174".parse().unwrap());
        // SAFETY: a `sockaddr_in6` consists of integers, and the array is as long.
        let v6 = unsafe { bytes.as_ptr().cast::<sockaddr_in6>().read_unaligned() };
        assert_eq!(c_int::from(v6.sin6_family), libc::AF_INET6);
        assert_eq!((v6.sin6_port, v6.sin6_scope_id), (7174_u16.to_be(), 3));
        assert_eq!(v6.sin6_addr.s6_addr[15], 7);
    }

    #[test]
    fn short_and_foreign_addresses_are_refused() {
        let (bytes, length) = to_c(&"192.0.2.7:1".parse().unwrap());
        let length = length as usize;
        assert_eq!(parse(&bytes, length - 1), Err(Errno::INVAL));
        assert_eq!(parse(&bytes, 1), Err(Errno::INVAL));
        // SAFETY: NULL is allowed.
        let null = unsafe { read(core::ptr::null(), 16) };
        assert_eq!(null, Err(Errno::FAULT));
        let mut unix = bytes;
        unix[..2].copy_from_slice(&(libc::AF_UNIX as libc::sa_family_t).to_ne_bytes());
        assert_eq!(parse(&unix, length), Err(Errno::AFNOSUPPORT));
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
