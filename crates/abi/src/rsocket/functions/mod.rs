//! What `rdma/rsocket.h` declares.

mod control;
mod iomap;
mod lifetime;
mod options;
mod transfer;
mod waiting;

pub use control::*;
pub use iomap::*;
pub use lifetime::*;
pub use options::*;
pub use transfer::*;
pub use waiting::*;

use core::ffi::c_int;

use crate::errno::{minus_one, refuse, set_errno};

use super::table::{self, Socket};

/// The socket of a descriptor.
fn find(fd: c_int) -> Result<Socket, c_int> {
    table::find(fd).ok_or(libc::EBADF)
}

/// 0, or -1 and `errno`.
fn done(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => minus_one(told(errno)),
    }
}

/// A number of bytes, or -1 and `errno`.
fn count(result: Result<usize, c_int>) -> isize {
    match result {
        Ok(count) => count as isize,
        Err(errno) => {
            set_errno(told(errno));
            -1
        }
    }
}

/// Logs an error, in the words that the system has for it, unless it only says that
/// the call would have to wait.
fn told(errno: c_int) -> c_int {
    match errno {
        libc::EAGAIN | libc::EINTR | libc::EINPROGRESS | libc::EALREADY => errno,
        _ => refuse(errno, std::io::Error::from_raw_os_error(errno)),
    }
}
