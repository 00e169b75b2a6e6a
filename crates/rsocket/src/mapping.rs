//! Memory of the program that the peer may access. The unsafe code for memory is here.

use std::sync::Arc;

use ferroce_device::Device;
use ferroce_device::transport::{Access, Mr, Pd};

use crate::wire::Region;
use crate::{Result, error};

/// Memory of the program that the peer may write to with `riowrite`.
#[derive(Debug)]
pub(crate) struct Mapping {
    addr: u64,
    length: u32,
    mr: Arc<Mr>,
    device: Arc<Device>,
}

impl Mapping {
    /// Registers memory of the program.
    ///
    /// # Safety
    ///
    /// The memory stays allocated until the mapping is dropped. Until then the device may
    /// write to it at any time, so the program has no Rust references to it.
    pub(crate) unsafe fn new(
        device: &Arc<Device>,
        pd: &Arc<Pd>,
        (addr, length): (u64, u32),
        access: Access,
    ) -> Result<Mapping> {
        // SAFETY: the caller's promise holds until `drop` has deregistered the memory.
        let mr = unsafe { device.register(pd, addr, length.into(), addr, access) };
        Ok(Mapping {
            addr,
            length,
            mr: mr.map_err(error::of_verbs)?,
            device: Arc::clone(device),
        })
    }

    /// Returns the memory as the peer names it.
    pub(crate) fn region(&self) -> Region {
        Region {
            addr: self.addr,
            key: self.mr.rkey(),
            length: self.length,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Err(refused) = self.device.deregister(&self.mr) {
            tracing::warn!("an iomap of an rsocket stays registered: {refused}");
        }
    }
}
