//! Sending and receiving.

use core::ffi::{c_int, c_void};
use core::ptr;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;

use ferroce_rsocket::{Errno, Result, Socket};
use libc::{iovec, msghdr, sockaddr, socklen_t};
use rustix::net::{RecvFlags, SendFlags};

use super::lifetime::write_if_wanted;
use super::{count, find};
use crate::rsocket::address;

/// The maximum number of bytes of one call, as in the kernel.
const MAX_LENGTH: usize = 0x7fff_f000;

/// The maximum number of buffers of one call, as in the kernel.
const MAX_PARTS: usize = 1024;

/// The result of receiving: the number of bytes, and for a datagram its sender and whether
/// it was truncated.
#[derive(Default)]
struct Received {
    bytes: usize,
    from: Option<SocketAddr>,
    is_truncated: bool,
}

/// Returns a program's buffer as a slice; EFAULT if it is NULL and not empty.
///
/// # Safety
///
/// The buffer has `length` bytes, which nothing writes to while the slice is used.
pub(super) unsafe fn bytes<'a>(buf: *const c_void, length: usize) -> Result<&'a [u8]> {
    match buf.is_null() {
        true if length == 0 => Ok(&[]),
        true => Err(Errno::FAULT),
        // SAFETY: the caller's promise, and the pointer is not NULL.
        false => Ok(unsafe { core::slice::from_raw_parts(buf.cast(), length) }),
    }
}

/// Returns a program's array of buffers; EFAULT if an address is NULL where bytes are.
///
/// # Safety
///
/// The array has `count` entries, whose buffers nothing else uses while the result is used.
unsafe fn buffers<'a>(first: *const iovec, count: usize) -> Result<&'a [iovec]> {
    if count == 0 {
        return Ok(&[]);
    }
    if count > MAX_PARTS {
        return Err(Errno::INVAL);
    }
    if first.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller's promise, and the pointer is not NULL.
    let parts = unsafe { core::slice::from_raw_parts(first, count) };
    let missing = |part: &iovec| part.iov_base.is_null() && part.iov_len > 0;
    match parts.iter().any(missing) {
        true => Err(Errno::FAULT),
        false => Ok(parts),
    }
}

/// `rrecv`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize {
    // SAFETY: the caller's buffer, and no address.
    unsafe { rrecvfrom(socket, buf, len, flags, ptr::null_mut(), ptr::null_mut()) }
}

/// `rrecvfrom`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    src_addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> isize {
    let part = iovec {
        iov_base: buf,
        iov_len: len.min(MAX_LENGTH),
    };
    // SAFETY: the caller's buffer has `len` bytes.
    let received = unsafe { receive(socket, &part, 1, flags) };
    if let Ok(received) = &received {
        // SAFETY: the caller's `src_addr` has room for `*addrlen` bytes, or is NULL.
        unsafe { write_if_wanted(received.from, src_addr, addrlen) };
    }
    count(received.map(|received| received.bytes))
}

/// `rrecvmsg`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvmsg(socket: c_int, msg: *mut msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's message, or NULL.
    let Some(msg) = (unsafe { msg.as_mut() }) else {
        return count(Err(Errno::FAULT));
    };
    // SAFETY: the message has this many buffers.
    let received = unsafe { receive(socket, msg.msg_iov, msg.msg_iovlen, flags) };
    if let Ok(received) = &received {
        msg.msg_controllen = 0;
        msg.msg_flags = if received.is_truncated {
            libc::MSG_TRUNC
        } else {
            0
        };
        match received.from {
            from @ Some(_) if !msg.msg_name.is_null() => {
                // SAFETY: the message's `msg_name` has room for `msg_namelen` bytes.
                unsafe { write_if_wanted(from, msg.msg_name.cast(), &mut msg.msg_namelen) };
            }
            _ => msg.msg_namelen = 0,
        }
    }
    count(received.map(|received| received.bytes))
}

/// `rread`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rread(socket: c_int, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller's buffer.
    unsafe { rrecv(socket, buf, count, 0) }
}

/// `rreadv`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rreadv(socket: c_int, iov: *const iovec, iovcnt: c_int) -> isize {
    let parts = usize::try_from(iovcnt).unwrap_or(usize::MAX);
    // SAFETY: the caller's array has `iovcnt` buffers.
    let received = unsafe { receive(socket, iov, parts, 0) };
    count(received.map(|received| received.bytes))
}

/// `rsend`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsend(
    socket: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the caller's buffer, and no address.
    unsafe { rsendto(socket, buf, len, flags, ptr::null(), 0) }
}

/// `rsendto`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendto(
    socket: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    dest_addr: *const sockaddr,
    addrlen: socklen_t,
) -> isize {
    let part = iovec {
        iov_base: buf.cast_mut(),
        iov_len: len.min(MAX_LENGTH),
    };
    // SAFETY: the caller's buffer has `len` bytes, and the address `addrlen`.
    count(unsafe { send(socket, &part, 1, flags, dest_addr, addrlen) })
}

/// `rsendmsg`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendmsg(socket: c_int, msg: *const msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's message, or NULL.
    let Some(msg) = (unsafe { msg.as_ref() }) else {
        return count(Err(Errno::FAULT));
    };
    if msg.msg_controllen > 0 {
        return count(Err(Errno::NOTSUP));
    }
    let (parts, to) = (msg.msg_iov, msg.msg_name.cast_const().cast());
    // SAFETY: the message has this many buffers, and an address of this length.
    count(unsafe { send(socket, parts, msg.msg_iovlen, flags, to, msg.msg_namelen) })
}

/// `rwrite`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwrite(socket: c_int, buf: *const c_void, count: usize) -> isize {
    // SAFETY: the caller's buffer.
    unsafe { rsend(socket, buf, count, 0) }
}

/// `rwritev`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwritev(socket: c_int, iov: *const iovec, iovcnt: c_int) -> isize {
    let parts = usize::try_from(iovcnt).unwrap_or(usize::MAX);
    // SAFETY: the caller's array has `iovcnt` buffers.
    count(unsafe { send(socket, iov, parts, 0, ptr::null(), 0) })
}

/// # Safety
///
/// As [`buffers`] and [`address::read`].
unsafe fn send(
    socket: c_int,
    first: *const iovec,
    count: usize,
    flags: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> Result<usize> {
    // SAFETY: the caller's promise.
    let parts: Vec<IoSlice<'_>> = unsafe { buffers(first, count)? }
        .iter()
        // SAFETY: the caller's buffer has `iov_len` bytes.
        .map(|part| unsafe { bytes(part.iov_base, part.iov_len) }.map(IoSlice::new))
        .collect::<Result<_>>()?;
    let flags = SendFlags::from_bits_retain(flags.cast_unsigned());
    match find(socket)? {
        Socket::Stream(stream) => stream.send_vectored(&parts, flags),
        Socket::Datagram(datagram) => {
            let to = match to.is_null() {
                true => None,
                // SAFETY: the caller's promise.
                false => Some(unsafe { address::read(to, length)? }),
            };
            let data: Vec<u8> = parts.iter().flat_map(|part| part.iter()).copied().collect();
            datagram.send(&data, to, flags)
        }
        Socket::Epoll(_) => Err(Errno::NOTSOCK),
    }
}

/// # Safety
///
/// As [`buffers`].
unsafe fn receive(
    socket: c_int,
    first: *const iovec,
    count: usize,
    flags: c_int,
) -> Result<Received> {
    // SAFETY: the caller's promise.
    let mut parts: Vec<IoSliceMut<'_>> = unsafe { buffers(first, count)? }
        .iter()
        .filter(|part| part.iov_len > 0)
        .map(|part| {
            // SAFETY: the caller's buffer has `iov_len` bytes, and its address is not NULL.
            let bytes = unsafe {
                core::slice::from_raw_parts_mut(part.iov_base.cast::<u8>(), part.iov_len)
            };
            IoSliceMut::new(bytes)
        })
        .collect();
    let flags = RecvFlags::from_bits_retain(flags.cast_unsigned());
    match find(socket)? {
        Socket::Stream(stream) => Ok(Received {
            bytes: stream.receive_vectored(&mut parts, flags)?,
            ..Received::default()
        }),
        Socket::Datagram(datagram) => {
            let mut received = Received::default();
            received.bytes = datagram.receive(flags, |source, bytes| {
                received.from = Some(source);
                let mut left = bytes;
                for part in &mut parts {
                    let (now, rest) = left.split_at(left.len().min(part.len()));
                    part[..now.len()].copy_from_slice(now);
                    left = rest;
                }
                received.is_truncated = !left.is_empty();
                match flags.contains(RecvFlags::TRUNC) {
                    true => bytes.len(),
                    false => bytes.len() - left.len(),
                }
            })?;
            Ok(received)
        }
        Socket::Epoll(_) => Err(Errno::NOTSOCK),
    }
}
