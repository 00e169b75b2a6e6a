//! Socket options.

use core::ffi::{c_int, c_void};

use ferroce_rsocket::{Errno, Socket};
use libc::socklen_t;

use super::{find, status};
use crate::arguments::slice;

/// `rsetsockopt`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    status(find(socket).and_then(|socket| {
        if value.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: the program's value has `length` bytes, which it does not change during
        // the call.
        let value = unsafe { slice(value.cast(), length as usize) }.ok_or(Errno::FAULT)?;
        match socket {
            Socket::Stream(stream) => stream.set_option(level, name, value),
            Socket::Datagram(datagram) => datagram.set_option(level, name, value),
            Socket::Epoll(_) => Err(Errno::NOTSOCK),
        }
    }))
}

/// `rgetsockopt`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    status(find(socket).and_then(|socket| {
        if value.is_null() || length.is_null() {
            return Err(Errno::FAULT);
        }
        let found = match socket {
            Socket::Stream(stream) => stream.option(level, name)?,
            Socket::Datagram(datagram) => datagram.option(level, name)?,
            Socket::Epoll(_) => return Err(Errno::NOTSOCK),
        };
        let bytes = found.bytes();
        // SAFETY: neither is NULL, and the program's value has room for `*length` bytes.
        unsafe {
            let room = bytes.len().min(*length as usize);
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast::<u8>(), room);
            *length = room as socklen_t;
        }
        Ok(())
    }))
}
