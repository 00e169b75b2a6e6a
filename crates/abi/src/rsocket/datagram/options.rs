//! Options of datagram sockets: mostly those of the UDP socket.

use core::ffi::c_int;

use super::Datagram;
use crate::rsocket::option_value::{OptionValue, int_of};
use crate::rsocket::settings::queue_size;
use crate::rsocket::{RDMA_INLINE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA, sys};

/// No option of a UDP socket is longer.
const MAX_VALUE: usize = 256;

impl Datagram {
    pub(crate) fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Result<(), c_int> {
        if level == SOL_RDMA {
            let mut book = self.lock();
            let number = u32::try_from(int_of(value)?).map_err(|_| libc::EINVAL)?;
            match name {
                RDMA_SQSIZE => book.sizes.send = queue_size(number).into(),
                RDMA_RQSIZE => book.sizes.receive = queue_size(number).into(),
                RDMA_INLINE => {}
                _ => return Err(libc::ENOTSUP),
            }
            return Ok(());
        }
        let (fd, length) = (self.fd(), value.len());
        // SAFETY: the kernel reads the value, and nothing else.
        let set = unsafe {
            libc::syscall(
                libc::SYS_setsockopt,
                fd,
                level,
                name,
                value.as_ptr(),
                length,
            )
        };
        if set == 0 { Ok(()) } else { Err(sys::errno()) }
    }

    pub(crate) fn option(&self, level: c_int, name: c_int) -> Result<OptionValue, c_int> {
        if level == SOL_RDMA {
            let book = self.lock();
            return match name {
                RDMA_SQSIZE => Ok(OptionValue::Int(book.sizes.send as c_int)),
                RDMA_RQSIZE => Ok(OptionValue::Int(book.sizes.receive as c_int)),
                RDMA_INLINE => Ok(OptionValue::Int(0)),
                _ => Err(libc::ENOTSUP),
            };
        }
        let mut value = vec![0; MAX_VALUE];
        let mut length = MAX_VALUE as libc::socklen_t;
        let fd = self.fd();
        // SAFETY: the kernel writes as much as there is room for.
        let got = unsafe {
            let (value, length) = (value.as_mut_ptr(), &raw mut length);
            libc::syscall(libc::SYS_getsockopt, fd, level, name, value, length)
        };
        if got != 0 {
            return Err(sys::errno());
        }
        value.truncate(length as usize);
        Ok(OptionValue::Bytes(value))
    }
}
