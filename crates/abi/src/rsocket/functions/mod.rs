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

use crate::errno::{minus_one, set_errno};

use super::table::{self, Socket};

/// The socket of a descriptor.
fn find(fd: c_int) -> Result<Socket, c_int> {
    table::find(fd).ok_or(libc::EBADF)
}

/// 0, or -1 and `errno`.
fn done(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => minus_one(errno),
    }
}

/// A number of bytes, or -1 and `errno`.
fn count(result: Result<usize, c_int>) -> isize {
    match result {
        Ok(count) => count as isize,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}
