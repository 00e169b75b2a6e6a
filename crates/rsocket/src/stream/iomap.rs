//! Iomaps: memory of the program that the peer writes to with `riowrite`.

use core::ffi::c_void;
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use ferroce_device::Buffer;
use ferroce_device::transport::Access;
use rustix::net::SendFlags;

use super::state::{Phase, State};
use super::{Stream, Waited};
use crate::buffer::copy_in;
use crate::flow::Pieces;
use crate::mapping::Mapping;
use crate::wire::IomapEntry;
use crate::{Errno, Result};

/// The iomaps of a socket.
#[derive(Debug, Default)]
pub(crate) struct Iomaps {
    mapped: Vec<Iomap>,
    /// Entries of the peer's table that the peer does not know yet.
    unannounced: VecDeque<u32>,
    /// True after the socket is closed: nothing can be mapped any more.
    is_closed: bool,
}

/// A registered part of the program's memory.
#[derive(Debug)]
struct Iomap {
    mapping: Mapping,
    /// The entry of the peer's table and the offset; `None` if the peer may not write.
    entry: Option<(u32, u64)>,
}

impl Stream {
    /// Maps memory at an offset for the peer; at its address if the offset is `None`. If it
    /// is `writable`, the peer may write to it. Returns the offset.
    ///
    /// # Errors
    ///
    /// EINVAL if the socket is not connected or the length exceeds 32 bits; ENOMEM if the
    /// peer's table is full; EBADF if the socket is closed.
    ///
    /// # Safety
    ///
    /// The memory stays allocated until [`Stream::unmap`] or [`Stream::close`] has returned,
    /// or the socket is dropped. Until then the peer may write to it at any time, so there
    /// are no Rust references to it.
    pub unsafe fn map(
        &self,
        memory: *mut c_void,
        length: usize,
        writable: bool,
        offset: Option<u64>,
    ) -> Result<u64> {
        let mut state = self.lock();
        if state.iomaps.is_closed {
            return Err(Errno::BADF);
        }
        let length = u32::try_from(length).map_err(|_| Errno::INVAL)?;
        let connection = state.connection.as_ref().ok_or(Errno::INVAL)?;
        let capacity = connection.peer_iomaps();
        let (index, access) = match writable {
            true => (
                Some(state.iomaps.free_index(capacity).ok_or(Errno::NOMEM)?),
                Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            ),
            false => (None, Access::LOCAL_WRITE),
        };
        let addr = memory.expose_provenance() as u64;
        let (device, pd) = connection.queue.device();
        // SAFETY: the caller keeps the memory until `unmap`, `close` or `drop`, and each of
        // them drops the mapping.
        let mapping = unsafe { Mapping::new(device, pd, (addr, length), access)? };
        let offset = offset.unwrap_or(addr);
        state.iomaps.mapped.push(Iomap {
            mapping,
            entry: index.map(|index| (index, offset)),
        });
        state.iomaps.unannounced.extend(index);
        Ok(offset)
    }

    /// Unmaps memory. When this returns, the peer does not write to it any more.
    ///
    /// # Errors
    ///
    /// EINVAL if nothing is mapped with this address and length.
    pub fn unmap(&self, memory: *mut c_void, length: usize) -> Result<()> {
        let mut state = self.lock();
        let addr = memory.expose_provenance() as u64;
        let place = state.iomaps.mapped.iter().position(|iomap| {
            let region = iomap.mapping.region();
            region.addr == addr && region.length as usize == length
        });
        let iomap = state.iomaps.mapped.swap_remove(place.ok_or(Errno::INVAL)?);
        if let Some((index, _)) = iomap.entry {
            state.iomaps.unannounced.retain(|known| *known != index);
        }
        Ok(())
    }

    /// Writes to memory that the peer has mapped at an offset, and returns how many bytes.
    /// Knows the flag DONTWAIT.
    ///
    /// # Errors
    ///
    /// EINVAL if the peer has mapped nothing at the offset; as [`Stream::send`].
    pub fn write_mapped(&self, bytes: &[u8], offset: u64, flags: SendFlags) -> Result<usize> {
        let _turn = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let nonblocking = self.nonblocking() || flags.contains(SendFlags::DONTWAIT);
        let mut done = 0;
        while done < bytes.len() {
            let at = offset.wrapping_add(done as u64);
            let left = &bytes[done..];
            let ready = self.wait(nonblocking, |state| state.mapped(at, left.len()));
            let (pieces, buffer, to) = match ready {
                Ok(ready) => ready,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => return Ok(done),
            };
            // Without the lock: only the sender whose turn it is writes to this range.
            copy_in(&buffer, &pieces, left);
            let mut state = self.lock();
            if !state.writable {
                return Err(state.not_writable());
            }
            let connection = state.connection.as_mut().ok_or(Errno::NOTCONN)?;
            connection.write_direct(&pieces, to)?;
            done += pieces.total() as usize;
        }
        Ok(done)
    }
}

/// Room in the send ring, the send ring, and the destination: address and key.
type Mapped = (Pieces, Arc<Buffer>, (u64, u32));

impl State {
    /// Returns room in the send ring for up to `left` bytes, and the address of the offset.
    fn mapped(&mut self, offset: u64, left: usize) -> Waited<Mapped> {
        match self.phase {
            Phase::New | Phase::Listening => return Some(Err(Errno::NOTCONN)),
            Phase::Open if self.writable => {}
            Phase::Open | Phase::Closed => return Some(Err(self.not_writable())),
            _ => return None,
        }
        let connection = self.connection.as_ref()?;
        let Some((addr, key, length)) = connection.find_iomap(offset) else {
            return Some(Err(Errno::INVAL));
        };
        let pieces = connection.room(length.min(left.min(u32::MAX as usize) as u32))?;
        Some(Ok((pieces, connection.send.clone(), (addr, key))))
    }

    /// Announces new iomaps to the peer; EAGAIN if there is no credit for that now.
    pub(super) fn announce_iomaps(&mut self) -> Result<()> {
        while let Some(index) = self.iomaps.unannounced.front().copied() {
            let connection = self.connection.as_mut().ok_or(Errno::NOTCONN)?;
            if let Some(entry) = self.iomaps.entry(index)
                && !connection.announce(index, &entry)?
            {
                return Err(Errno::AGAIN);
            }
            self.iomaps.unannounced.pop_front();
        }
        Ok(())
    }
}

impl Iomaps {
    /// Deregisters all memory. Later calls of [`Stream::map`] fail.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.unannounced.clear();
        // The drop of a mapping waits until the device has left the memory.
        self.mapped.clear();
    }

    fn free_index(&self, capacity: u32) -> Option<u32> {
        (0..capacity).find(|index| self.entry(*index).is_none())
    }

    fn entry(&self, index: u32) -> Option<IomapEntry> {
        self.mapped.iter().find_map(|iomap| {
            let (used, offset) = iomap.entry?;
            (used == index).then(|| IomapEntry {
                offset,
                region: iomap.mapping.region(),
            })
        })
    }
}
