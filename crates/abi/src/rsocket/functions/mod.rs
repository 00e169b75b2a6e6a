//! The functions that `rdma/rsocket.h` declares.

mod buffers;
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

use ferroce_rsocket::{Errno, Result, Socket, socket};

use crate::errno::{minus_one, refuse, set_errno};

/// Returns the socket of a descriptor; EBADF if there is none.
fn find(fd: c_int) -> Result<Socket> {
    socket::find(fd).ok_or(Errno::BADF)
}

/// Returns 0, or -1 and `errno`.
fn status(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => minus_one(logged(errno)),
    }
}

/// Returns a number of bytes, or -1 and `errno`.
fn count(result: Result<usize>) -> isize {
    match result {
        Ok(count) => count as isize,
        Err(errno) => {
            set_errno(logged(errno));
            -1
        }
    }
}

/// Returns a number of descriptors, or -1 and `errno`.
fn number(result: Result<usize>) -> c_int {
    match result {
        Ok(count) => count as c_int,
        Err(errno) => minus_one(errno.raw_os_error()),
    }
}

/// Logs an error, unless it only says that the call would have to wait, and returns its
/// number.
fn logged(errno: Errno) -> c_int {
    let number = errno.raw_os_error();
    match errno {
        Errno::AGAIN | Errno::INTR | Errno::INPROGRESS | Errno::ALREADY => number,
        _ => refuse(number, std::io::Error::from(errno)),
    }
}
