//! Sending and receiving.

use core::ffi::{c_int, c_void};

use libc::{iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use crate::fork;
use crate::inside::go;
use crate::map;
use crate::next::real;
use crate::rsockets::*;

/// Returns the rsocket behind a descriptor, after a due replacement of its connection.
fn behind(fd: c_int) -> Option<c_int> {
    map::rsocket(fork::exchanged(fd))
}

/// Defines functions that exist for both kinds of sockets.
macro_rules! same {
    ($(fn $name:ident, $rname:ident($fd:ident $(, $arg:ident: $type:ty)*);)*) => {
        $(#[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($fd: c_int $(, $arg: $type)*) -> ssize_t {
            match behind($fd) {
                // SAFETY: the program's arguments, unchanged.
                Some(rsocket) => go(|| unsafe { $rname(rsocket $(, $arg)*) }),
                // SAFETY: the program's arguments, unchanged.
                None => unsafe { real::$name($fd $(, $arg)*) },
            }
        })*
    };
}

same! {
    fn read, rread(fd, buf: *mut c_void, count: size_t);
    fn readv, rreadv(fd, iov: *const iovec, count: c_int);
    fn recv, rrecv(fd, buf: *mut c_void, len: size_t, flags: c_int);
    fn recvfrom, rrecvfrom(
        fd, buf: *mut c_void, len: size_t, flags: c_int,
        addr: *mut sockaddr, length: *mut socklen_t
    );
    fn recvmsg, rrecvmsg(fd, msg: *mut msghdr, flags: c_int);
    fn write, rwrite(fd, buf: *const c_void, count: size_t);
    fn writev, rwritev(fd, iov: *const iovec, count: c_int);
    fn send, rsend(fd, buf: *const c_void, len: size_t, flags: c_int);
    fn sendto, rsendto(
        fd, buf: *const c_void, len: size_t, flags: c_int,
        addr: *const sockaddr, length: socklen_t
    );
    fn sendmsg, rsendmsg(fd, msg: *const msghdr, flags: c_int);
}

unsafe extern "C" {
    /// Ends a program that would write beyond its buffer.
    fn __chk_fail() -> !;
}

/// `read` for programs that are compiled with checks of buffer sizes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(
    fd: c_int,
    buf: *mut c_void,
    count: size_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: the program's arguments, after the check.
    unsafe {
        if count > room {
            __chk_fail();
        }
        read(fd, buf, count)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's arguments, after the check.
    unsafe {
        if len > room {
            __chk_fail();
        }
        recv(fd, buf, len, flags)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the program's arguments, after the check.
    unsafe {
        if len > room {
            __chk_fail();
        }
        recvfrom(fd, buf, len, flags, addr, length)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    match behind(out) {
        // SAFETY: the program's arguments, unchanged.
        Some(rsocket) => unsafe { copy_file(rsocket, from, offset, count) },
        // SAFETY: the program's arguments, unchanged.
        None => unsafe { real::sendfile(out, from, offset, count) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the program's arguments; `off_t` has 64 bits.
    unsafe { sendfile(out, from, offset, count) }
}

/// Sends a file in pieces. Bytes that were read and not sent are read again.
unsafe fn copy_file(rsocket: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let mut buffer = vec![0_u8; count.clamp(1, 1 << 16)];
    let mut total = 0;
    while total < count {
        let want = (count - total).min(buffer.len());
        // SAFETY: the buffer has `want` bytes, and the offset is the program's or NULL.
        let sent = unsafe {
            let at = match offset.is_null() {
                true => libc::lseek(from, 0, libc::SEEK_CUR),
                false => *offset,
            };
            let got = libc::pread(from, buffer.as_mut_ptr().cast(), want, at);
            if got <= 0 {
                return if total > 0 { total as ssize_t } else { got };
            }
            let sent = go(|| rwrite(rsocket, buffer.as_ptr().cast(), got as size_t));
            if sent > 0 {
                match offset.is_null() {
                    true => _ = libc::lseek(from, at + sent as off_t, libc::SEEK_SET),
                    false => *offset = at + sent as off_t,
                }
            }
            sent
        };
        match sent {
            ..=0 if total == 0 => return sent,
            ..=0 => break,
            _ => total += sent as size_t,
        }
    }
    total as ssize_t
}
