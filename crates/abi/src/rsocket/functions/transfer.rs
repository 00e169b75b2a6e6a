//! Sending and receiving.

use core::ffi::{c_int, c_void};
use std::io::IoSlice;
use std::net::SocketAddr;

use ferroce_rsocket::{Errno, Result, Socket};
use libc::{iovec, msghdr, sockaddr, socklen_t};
use rustix::net::{RecvFlags, SendFlags};

use super::buffers::Buffers;
use super::lifetime::write_if_wanted;
use super::{count, find};
use crate::rsocket::address;

/// Length above which no datagram can be sent: that of UDP.
const MAX_DATAGRAM: usize = 65_535;

/// The result of receiving: the number of bytes, and for a datagram its sender and whether
/// it was truncated.
#[derive(Default)]
struct Received {
    bytes: usize,
    from: Option<SocketAddr>,
    is_truncated: bool,
}

/// Returns the list entry of a call's only buffer.
fn part(buf: *const c_void, length: usize) -> iovec {
    iovec {
        iov_base: buf.cast_mut(),
        // The kernel permits any length, and transfers a part.
        iov_len: length.min(isize::MAX as usize),
    }
}

/// `rrecv`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize {
    let part = part(buf, len);
    // SAFETY: the program's buffer has `len` bytes.
    let buffers = unsafe { Buffers::one(&part) };
    count(buffers.and_then(|buffers| Ok(receive(socket, buffers, flags)?.bytes)))
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
    let part = part(buf, len);
    // SAFETY: the program's buffer has `len` bytes.
    let buffers = unsafe { Buffers::one(&part) };
    let received = buffers.and_then(|buffers| receive(socket, buffers, flags));
    if let Ok(received) = &received {
        // SAFETY: the program's `src_addr` has room for `*addrlen` bytes, or one of them is
        // NULL.
        unsafe { write_if_wanted(received.from, src_addr, addrlen) };
    }
    count(received.map(|received| received.bytes))
}

/// `rrecvmsg`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvmsg(socket: c_int, msg: *mut msghdr, flags: c_int) -> isize {
    // SAFETY: the program passes NULL, or a message that no other thread uses.
    let Some(msg) = (unsafe { msg.as_mut() }) else {
        return count(Err(Errno::FAULT));
    };
    // SAFETY: the message's list has `msg_iovlen` entries, and each buffer its length.
    let buffers = unsafe { Buffers::new(msg.msg_iov, msg.msg_iovlen) };
    let received = buffers.and_then(|buffers| receive(socket, buffers, flags));
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
    // SAFETY: `rrecv` asks the same of the buffer: `count` bytes.
    unsafe { rrecv(socket, buf, count, 0) }
}

/// `rreadv`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rreadv(socket: c_int, iov: *const iovec, iovcnt: c_int) -> isize {
    // SAFETY: the program's list has `iovcnt` entries, and each buffer its length.
    let buffers = unsafe { Buffers::new(iov, list_length(iovcnt)) };
    count(buffers.and_then(|buffers| Ok(receive(socket, buffers, 0)?.bytes)))
}

/// `rsend`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsend(
    socket: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    let part = part(buf, len);
    // SAFETY: the program's buffer has `len` bytes.
    let buffers = unsafe { Buffers::one(&part) };
    count(buffers.and_then(|buffers| send(socket, buffers, flags, None)))
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
    let part = part(buf, len);
    // SAFETY: the program's buffer has `len` bytes, and its address `addrlen`.
    let arguments = unsafe { (Buffers::one(&part), optional(dest_addr, addrlen)) };
    count(send_to(socket, arguments, flags))
}

/// `rsendmsg`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendmsg(socket: c_int, msg: *const msghdr, flags: c_int) -> isize {
    // SAFETY: the program passes NULL, or a message that no other thread changes.
    let Some(msg) = (unsafe { msg.as_ref() }) else {
        return count(Err(Errno::FAULT));
    };
    if msg.msg_controllen > 0 {
        return count(Err(Errno::NOTSUP));
    }
    // SAFETY: the message's list has `msg_iovlen` entries, each buffer its length, and the
    // address `msg_namelen` bytes.
    let arguments = unsafe {
        (
            Buffers::new(msg.msg_iov, msg.msg_iovlen),
            optional(msg.msg_name.cast_const().cast(), msg.msg_namelen),
        )
    };
    count(send_to(socket, arguments, flags))
}

/// `rwrite`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwrite(socket: c_int, buf: *const c_void, count: usize) -> isize {
    // SAFETY: `rsend` asks the same of the buffer: `count` bytes.
    unsafe { rsend(socket, buf, count, 0) }
}

/// `rwritev`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwritev(socket: c_int, iov: *const iovec, iovcnt: c_int) -> isize {
    // SAFETY: the program's list has `iovcnt` entries, and each buffer its length.
    let buffers = unsafe { Buffers::new(iov, list_length(iovcnt)) };
    count(buffers.and_then(|buffers| send(socket, buffers, 0, None)))
}

/// Returns the length of a list; one that is too long for a negative number.
fn list_length(count: c_int) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Reads the address of a destination, if the program names one.
///
/// # Safety
///
/// The pointer is NULL or has `length` readable bytes.
unsafe fn optional(to: *const sockaddr, length: socklen_t) -> Option<Result<SocketAddr>> {
    // SAFETY: the pointer is not NULL, so it has `length` bytes.
    (!to.is_null()).then(|| unsafe { address::read(to, length) })
}

fn send_to(
    socket: c_int,
    (buffers, to): (Result<Buffers<'_>>, Option<Result<SocketAddr>>),
    flags: c_int,
) -> Result<usize> {
    send(socket, buffers?, flags, to)
}

/// Sends from the program's buffers. Only datagrams need a destination, so that a bad address
/// is an error for them only.
fn send(
    socket: c_int,
    buffers: Buffers<'_>,
    flags: c_int,
    to: Option<Result<SocketAddr>>,
) -> Result<usize> {
    let flags = SendFlags::from_bits_retain(flags.cast_unsigned());
    match find(socket)? {
        Socket::Stream(stream) => {
            let parts: Vec<_> = buffers.slices().map(IoSlice::new).collect();
            stream.send_vectored(&parts, flags)
        }
        Socket::Datagram(datagram) => {
            let to = to.transpose()?;
            if buffers.length() > MAX_DATAGRAM {
                return Err(Errno::MSGSIZE);
            }
            let data: Vec<u8> = buffers.slices().flatten().copied().collect();
            datagram.send(&data, to, flags)
        }
        Socket::Epoll(_) => Err(Errno::NOTSOCK),
    }
}

/// Receives into the program's buffers.
fn receive(socket: c_int, buffers: Buffers<'_>, flags: c_int) -> Result<Received> {
    let flags = RecvFlags::from_bits_retain(flags.cast_unsigned());
    match find(socket)? {
        Socket::Stream(stream) => {
            // SAFETY: `receive_each` uses one buffer at a time.
            let parts = unsafe { buffers.slices_mut() };
            Ok(Received {
                bytes: stream.receive_each(parts, flags)?,
                ..Received::default()
            })
        }
        Socket::Datagram(datagram) => {
            let mut received = Received::default();
            received.bytes = datagram.receive(flags, |source, bytes| {
                received.from = Some(source);
                let mut left = bytes;
                // SAFETY: the loop uses one buffer at a time.
                for part in unsafe { buffers.slices_mut() } {
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
