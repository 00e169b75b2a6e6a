//! Iomaps.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use ferroce_rsocket::{Errno, Result, Socket, Stream};
use libc::off_t;
use rustix::net::SendFlags;

use super::{count, find, status};
use crate::arguments::slice;
use crate::errno::set_errno;
use crate::ffi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE};
use crate::mr;

fn stream(socket: c_int) -> Result<Arc<Stream>> {
    match find(socket)? {
        Socket::Stream(stream) => Ok(stream),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// `riomap`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riomap(
    socket: c_int,
    buf: *mut c_void,
    len: usize,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    let mapped = stream(socket).and_then(|stream| {
        if prot & !libc::PROT_WRITE != 0 {
            return Err(Errno::INVAL);
        }
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        mr::check(buf as u64, len, buf as u64, access).map_err(Errno::from_raw_os_error)?;
        let offset = (offset != -1).then_some(offset as u64);
        // SAFETY: the program keeps the memory until `riounmap` or `rclose`: that is the
        // contract of `riomap`. It is written in C, so it has no Rust references.
        unsafe { stream.map(buf, len, prot & libc::PROT_WRITE != 0, offset) }
    });
    match mapped {
        Ok(offset) => offset as off_t,
        Err(errno) => {
            set_errno(errno.raw_os_error());
            -1
        }
    }
}

/// `riounmap`
#[unsafe(no_mangle)]
pub extern "C" fn riounmap(socket: c_int, buf: *mut c_void, len: usize) -> c_int {
    status(stream(socket).and_then(|stream| stream.unmap(buf, len)))
}

/// `riowrite`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riowrite(
    socket: c_int,
    buf: *const c_void,
    length: usize,
    offset: off_t,
    flags: c_int,
) -> usize {
    count(stream(socket).and_then(|stream| {
        // SAFETY: the program's buffer has `length` bytes, which it does not change during
        // the call.
        let bytes = unsafe { slice(buf.cast(), length) }.ok_or(Errno::FAULT)?;
        let flags = SendFlags::from_bits_retain(flags.cast_unsigned());
        stream.write_mapped(bytes, offset as u64, flags)
    })) as usize
}
