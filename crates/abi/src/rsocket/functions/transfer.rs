//! Bytes in and out.

use core::ffi::{c_int, c_void};
use core::ptr;
use std::net::SocketAddr;

use libc::{iovec, msghdr, sockaddr, socklen_t};

use super::{count, find};
use crate::rsocket::address;
use crate::rsocket::table::Socket;

/// The most that one call moves, as the kernel has it.
const MAX_LENGTH: usize = 0x7fff_f000;

/// `rrecv`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize {
    // SAFETY: the caller's memory.
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
    let mut from = None;
    let mut truncated = false;
    // SAFETY: the caller's memory.
    let result = unsafe { receive(socket, &[part], flags, &mut from, &mut truncated) };
    if result.is_ok()
        && !src_addr.is_null()
        && let Some(from) = from
    {
        // SAFETY: the caller's room for an address.
        let _no_length_no_address = unsafe { address::write(&from, src_addr, addrlen) };
    }
    count(result)
}

/// `rrecvmsg`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvmsg(socket: c_int, msg: *mut msghdr, flags: c_int) -> isize {
    if msg.is_null() {
        return count(Err(libc::EFAULT));
    }
    // SAFETY: the caller's message.
    let msg = unsafe { &mut *msg };
    let mut from = None;
    let mut truncated = false;
    // SAFETY: the caller's parts.
    let result = unsafe {
        parts(msg.msg_iov, msg.msg_iovlen)
            .and_then(|parts| receive(socket, parts, flags, &mut from, &mut truncated))
    };
    if result.is_ok() {
        msg.msg_controllen = 0;
        msg.msg_flags = if truncated { libc::MSG_TRUNC } else { 0 };
        match from {
            Some(from) if !msg.msg_name.is_null() => {
                // SAFETY: the caller's room for an address.
                let _never_fails =
                    unsafe { address::write(&from, msg.msg_name.cast(), &mut msg.msg_namelen) };
            }
            _ => msg.msg_namelen = 0,
        }
    }
    count(result)
}

/// `rread`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rread(socket: c_int, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller's memory.
    unsafe { rrecv(socket, buf, count, 0) }
}

/// `rreadv`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rreadv(socket: c_int, iov: *const iovec, iovcnt: c_int) -> isize {
    let (mut from, mut truncated) = (None, false);
    // SAFETY: the caller's parts.
    count(unsafe {
        parts(iov, usize::try_from(iovcnt).unwrap_or(usize::MAX))
            .and_then(|parts| receive(socket, parts, 0, &mut from, &mut truncated))
    })
}

/// `rsend`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsend(
    socket: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the caller's bytes.
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
    // SAFETY: the caller's bytes and address.
    count(unsafe { send(socket, &[part], flags, dest_addr, addrlen) })
}

/// `rsendmsg`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendmsg(socket: c_int, msg: *const msghdr, flags: c_int) -> isize {
    if msg.is_null() {
        return count(Err(libc::EFAULT));
    }
    // SAFETY: the caller's message.
    let msg = unsafe { &*msg };
    if msg.msg_controllen > 0 {
        return count(Err(libc::ENOTSUP));
    }
    // SAFETY: the caller's parts and address.
    count(unsafe {
        parts(msg.msg_iov, msg.msg_iovlen)
            .and_then(|parts| send(socket, parts, flags, msg.msg_name.cast(), msg.msg_namelen))
    })
}

/// `rwrite`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwrite(socket: c_int, buf: *const c_void, count: usize) -> isize {
    // SAFETY: the caller's bytes.
    unsafe { rsend(socket, buf, count, 0) }
}

/// `rwritev`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwritev(socket: c_int, iov: *const iovec, iovcnt: c_int) -> isize {
    // SAFETY: the caller's parts.
    count(unsafe {
        parts(iov, usize::try_from(iovcnt).unwrap_or(usize::MAX))
            .and_then(|parts| send(socket, parts, 0, ptr::null(), 0))
    })
}

unsafe fn parts<'a>(first: *const iovec, count: usize) -> Result<&'a [iovec], c_int> {
    const MAX_PARTS: usize = 1024;
    match count {
        0 => Ok(&[]),
        _ if count > MAX_PARTS => Err(libc::EINVAL),
        _ if first.is_null() => Err(libc::EFAULT),
        // SAFETY: as many as the caller says.
        _ => Ok(unsafe { core::slice::from_raw_parts(first, count) }),
    }
}

unsafe fn send(
    socket: c_int,
    parts: &[iovec],
    flags: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> Result<usize, c_int> {
    match find(socket)? {
        Socket::Stream(stream) => {
            let mut total = 0;
            for part in parts {
                // SAFETY: the caller's bytes.
                let sent = unsafe { stream.send(part.iov_base.cast(), part.iov_len, flags) };
                match sent {
                    Ok(sent) => total += sent,
                    Err(errno) if total == 0 => return Err(errno),
                    Err(_) => break,
                }
                if sent != Ok(part.iov_len) {
                    break;
                }
            }
            Ok(total)
        }
        Socket::Datagram(datagram) => {
            let to: Option<SocketAddr> = match to.is_null() {
                true => None,
                // SAFETY: the caller's address.
                false => Some(unsafe { address::read(to, length)? }),
            };
            let mut data = Vec::new();
            for part in parts.iter().filter(|part| part.iov_len > 0) {
                // SAFETY: the caller's bytes.
                data.extend_from_slice(unsafe {
                    core::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len)
                });
            }
            datagram.send(&data, to, flags)
        }
        Socket::Epoll(_) => Err(libc::ENOTSOCK),
    }
}

unsafe fn receive(
    socket: c_int,
    parts: &[iovec],
    flags: c_int,
    from: &mut Option<SocketAddr>,
    truncated: &mut bool,
) -> Result<usize, c_int> {
    match find(socket)? {
        Socket::Stream(stream) => {
            let mut total = 0;
            for part in parts.iter().filter(|part| part.iov_len > 0) {
                // What comes after the first part is taken if it is there.
                let more = total > 0 && flags & libc::MSG_WAITALL == 0;
                let flags = if more {
                    flags | libc::MSG_DONTWAIT
                } else {
                    flags
                };
                // SAFETY: the caller's memory.
                let got = unsafe { stream.receive(part.iov_base.cast(), part.iov_len, flags) };
                match got {
                    Ok(got) => total += got,
                    Err(errno) if total == 0 => return Err(errno),
                    Err(_) => break,
                }
                if got != Ok(part.iov_len) || flags & libc::MSG_PEEK != 0 {
                    break;
                }
            }
            Ok(total)
        }
        Socket::Datagram(datagram) => datagram.receive(flags, |source, bytes| {
            *from = Some(source);
            let mut left = bytes;
            for part in parts {
                let now = left.len().min(part.iov_len);
                // SAFETY: the caller's memory.
                unsafe { ptr::copy_nonoverlapping(left.as_ptr(), part.iov_base.cast(), now) };
                left = &left[now..];
            }
            *truncated = !left.is_empty();
            match flags & libc::MSG_TRUNC {
                0 => bytes.len() - left.len(),
                _ => bytes.len(),
            }
        }),
        Socket::Epoll(_) => Err(libc::ENOTSOCK),
    }
}
