//! Options of datagram sockets: mostly those of the UDP socket.

use core::ffi::c_int;
use std::os::fd::AsFd;

use super::Datagram;
use crate::option::{RDMA_INLINE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA};
use crate::option_value::{OptionValue, int_of};
use crate::settings::queue_size;
use crate::{Errno, Result, sys};

impl Datagram {
    /// Sets a socket option, by the numbers of `setsockopt`.
    ///
    /// # Errors
    ///
    /// ENOTSUP for an unknown option of rsockets; the errors of the kernel for others.
    pub fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
        if level != SOL_RDMA {
            return sys::setsockopt(self.udp.as_fd(), level, name, value);
        }
        let mut state = self.lock();
        let number = u32::try_from(int_of(value)?).map_err(|_| Errno::INVAL)?;
        match name {
            RDMA_SQSIZE => state.sizes.send = queue_size(number).into(),
            RDMA_RQSIZE => state.sizes.receive = queue_size(number).into(),
            RDMA_INLINE => {}
            _ => return Err(Errno::NOTSUP),
        }
        Ok(())
    }

    /// Returns a socket option, by the numbers of `getsockopt`.
    ///
    /// # Errors
    ///
    /// ENOTSUP for an unknown option of rsockets; the errors of the kernel for others.
    pub fn option(&self, level: c_int, name: c_int) -> Result<OptionValue> {
        if level != SOL_RDMA {
            return sys::getsockopt(self.udp.as_fd(), level, name).map(OptionValue::Bytes);
        }
        let state = self.lock();
        match name {
            RDMA_SQSIZE => Ok(OptionValue::Int(state.sizes.send as c_int)),
            RDMA_RQSIZE => Ok(OptionValue::Int(state.sizes.receive as c_int)),
            RDMA_INLINE => Ok(OptionValue::Int(0)),
            _ => Err(Errno::NOTSUP),
        }
    }
}
