//! Memory mapped for the peer.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use libc::off_t;

use super::{count, done, find};
use crate::errno::set_errno;
use crate::rsocket::stream::Stream;
use crate::rsocket::table::Socket;

fn stream(socket: c_int) -> Result<Arc<Stream>, c_int> {
    match find(socket)? {
        Socket::Stream(stream) => Ok(stream),
        _ => Err(libc::EOPNOTSUPP),
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
    // SAFETY: the caller's memory.
    let mapped = stream(socket).and_then(|stream| unsafe { stream.map(buf, len, prot, offset) });
    mapped.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// `riounmap`
#[unsafe(no_mangle)]
pub extern "C" fn riounmap(socket: c_int, buf: *mut c_void, len: usize) -> c_int {
    done(stream(socket).and_then(|stream| stream.unmap(buf, len)))
}

/// `riowrite`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riowrite(
    socket: c_int,
    buf: *const c_void,
    count_: usize,
    offset: off_t,
    flags: c_int,
) -> usize {
    count(stream(socket).and_then(|stream| {
        // SAFETY: the caller's bytes.
        unsafe { stream.write_mapped(buf.cast(), count_, offset, flags) }
    })) as usize
}
