//! A program's own memory, mapped for its peer to write to.

use core::ffi::{c_int, c_void};
use std::collections::VecDeque;
use std::sync::PoisonError;

use crate::ffi::*;
use crate::mr::{ibv_dereg_mr, ibv_reg_mr};

use super::Stream;
use super::core::{Core, Phase};
use crate::rsocket::sys;
use crate::rsocket::wire::{IomapEntry, Region};

/// The mappings of a socket.
#[derive(Debug, Default)]
pub(crate) struct Iomaps {
    mappings: Vec<Mapping>,
    /// Those that the peer has not been told of, by index.
    untold: VecDeque<u32>,
}

/// A registered part of the program's memory.
#[derive(Debug)]
struct Mapping {
    mr: *mut ibv_mr,
    /// Which entry of the peer's table tells of it, and under what offset.
    entry: Option<(u32, u64)>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Mapping {}

impl Mapping {
    fn region(&self) -> Region {
        // SAFETY: lives as long as this.
        let mr = unsafe { &*self.mr };
        Region {
            addr: mr.addr.expose_provenance() as u64,
            key: mr.rkey,
            length: mr.length as u32,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: registered by us, and nobody else knows it.
        unsafe { ibv_dereg_mr(self.mr) };
    }
}

impl Stream {
    /// Maps memory; under which offset.
    ///
    /// # Safety
    ///
    /// The memory stays until it is unmapped.
    pub(crate) unsafe fn map(
        &self,
        memory: *mut c_void,
        length: usize,
        protection: c_int,
        offset: i64,
    ) -> Result<i64, c_int> {
        let mut core = self.lock();
        if protection & !libc::PROT_WRITE != 0 || u32::try_from(length).is_err() {
            return Err(libc::EINVAL);
        }
        let Some(connection) = core.connection.as_ref() else {
            return Err(libc::EINVAL);
        };
        let capacity = connection.peer_iomaps();
        let remote = protection & libc::PROT_WRITE != 0;
        let index = match remote {
            true => Some(core.iomaps.free_index(capacity).ok_or(libc::ENOMEM)?),
            false => None,
        };
        let access = match remote {
            true => IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
            false => IBV_ACCESS_LOCAL_WRITE,
        };
        // SAFETY: a live protection domain; the memory is as the caller promised.
        let mr = unsafe { ibv_reg_mr(self.id.pd(), memory, length, access as c_int) };
        if mr.is_null() {
            return Err(sys::errno());
        }
        let offset = match offset {
            -1 => memory.expose_provenance() as i64,
            offset => offset,
        };
        core.iomaps.mappings.push(Mapping {
            mr,
            entry: index.map(|index| (index, offset as u64)),
        });
        core.iomaps.untold.extend(index);
        Ok(offset)
    }

    pub(crate) fn unmap(&self, memory: *mut c_void, length: usize) -> Result<(), c_int> {
        let mut core = self.lock();
        let addr = memory.expose_provenance() as u64;
        let place = core.iomaps.mappings.iter().position(|mapping| {
            let region = mapping.region();
            region.addr == addr && region.length as usize == length
        });
        let mapping = core.iomaps.mappings.swap_remove(place.ok_or(libc::EINVAL)?);
        if let Some((index, _)) = mapping.entry {
            core.iomaps.untold.retain(|untold| *untold != index);
        }
        Ok(())
    }

    /// Writes to memory that the peer has mapped.
    ///
    /// # Safety
    ///
    /// `from` can be read for `length` bytes.
    pub(crate) unsafe fn write_mapped(
        &self,
        from: *const u8,
        length: usize,
        offset: i64,
        flags: c_int,
    ) -> Result<usize, c_int> {
        let _turn = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let nonblocking = self.nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let mut done = 0;
        while done < length {
            let at = (offset as u64).wrapping_add(done as u64);
            let left = length - done;
            let ready = self.wait(nonblocking, |core| core.mapped(at, left));
            let (pieces, buffer, to) = match ready {
                Ok(ready) => ready,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => return Ok(done),
            };
            // SAFETY: not more than is left.
            unsafe { buffer.copy_in(&pieces, from.add(done)) };
            let mut core = self.lock();
            if !core.writable {
                return Err(core.not_writable());
            }
            let connection = core.connection.as_mut().ok_or(libc::ENOTCONN)?;
            connection.write_direct(&pieces, to)?;
            done += pieces.total() as usize;
        }
        Ok(done)
    }
}

type Mapped = (
    crate::rsocket::flow::Pieces,
    std::sync::Arc<crate::rsocket::buffer::Buffer>,
    (u64, u32),
);

impl Core {
    /// Where in the ring bytes can wait for their way to an offset, and where that is.
    fn mapped(&mut self, offset: u64, left: usize) -> super::Waited<Mapped> {
        match self.phase {
            Phase::New | Phase::Listening => return Some(Err(libc::ENOTCONN)),
            Phase::Open if self.writable => {}
            Phase::Open | Phase::Closed => return Some(Err(self.not_writable())),
            _ => return None,
        }
        let connection = self.connection.as_ref()?;
        let Some((addr, key, length)) = connection.find_iomap(offset) else {
            return Some(Err(libc::EINVAL));
        };
        let pieces = connection.room(length.min(left.min(u32::MAX as usize) as u32))?;
        Some(Ok((pieces, connection.send.clone(), (addr, key))))
    }

    /// Tells the peer of new mappings: EAGAIN, if there is no room for that now.
    pub(super) fn announce_iomaps(&mut self) -> Result<(), c_int> {
        while let Some(index) = self.iomaps.untold.front().copied() {
            let connection = self.connection.as_mut().ok_or(libc::ENOTCONN)?;
            if let Some(entry) = self.iomaps.entry(index)
                && !connection.announce(index, &entry)?
            {
                return Err(libc::EAGAIN);
            }
            self.iomaps.untold.pop_front();
        }
        Ok(())
    }
}

impl Iomaps {
    fn free_index(&self, capacity: u32) -> Option<u32> {
        (0..capacity).find(|index| self.entry(*index).is_none())
    }

    fn entry(&self, index: u32) -> Option<IomapEntry> {
        self.mappings.iter().find_map(|mapping| {
            let (used, offset) = mapping.entry?;
            (used == index).then(|| IomapEntry {
                offset,
                region: mapping.region(),
            })
        })
    }
}
