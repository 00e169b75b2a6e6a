//! The memory of a side: one array with a range of addresses.

use std::cell::{Ref, RefCell, RefMut};

use ferroce_roce::{Fault, MemRef, Memory};

/// A range of addresses backed by an array.
#[derive(Debug)]
pub struct Arena {
    base: u64,
    bytes: RefCell<Vec<u8>>,
}

impl Arena {
    /// Creates `len` bytes at address `base`, filled with a pattern that depends on both.
    pub fn new(base: u64, len: usize) -> Arena {
        let seed = base >> 12;
        let bytes = (0..len as u64)
            .map(|i| (i.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
            .collect();
        Arena {
            base,
            bytes: RefCell::new(bytes),
        }
    }

    /// Returns the first address.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Returns all bytes.
    pub fn bytes(&self) -> Ref<'_, [u8]> {
        Ref::map(self.bytes.borrow(), Vec::as_slice)
    }

    /// Returns all bytes, mutably.
    pub fn bytes_mut(&self) -> RefMut<'_, [u8]> {
        RefMut::map(self.bytes.borrow_mut(), Vec::as_mut_slice)
    }

    /// Returns the index of a byte; one outside the arena is too large.
    #[inline]
    fn index(&self, at: MemRef) -> usize {
        debug_assert!(at.is_host());
        at.addr().wrapping_sub(self.base) as usize
    }

    fn update(&self, at: MemRef, change: impl FnOnce(u64) -> u64) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        let old = u64::from_ne_bytes(bytes);
        self.write(at, &change(old).to_ne_bytes())?;
        Ok(old)
    }
}

impl Memory for Arena {
    #[inline]
    fn read(&self, at: MemRef, into: &mut [u8]) -> Result<(), Fault> {
        let bytes = self.bytes.borrow();
        let start = self.index(at);
        let end = start.checked_add(into.len()).ok_or(Fault { at })?;
        into.copy_from_slice(bytes.get(start..end).ok_or(Fault { at })?);
        Ok(())
    }

    #[inline]
    fn write(&self, at: MemRef, data: &[u8]) -> Result<(), Fault> {
        let mut bytes = self.bytes.borrow_mut();
        let start = self.index(at);
        let end = start.checked_add(data.len()).ok_or(Fault { at })?;
        let into = bytes.get_mut(start..end).ok_or(Fault { at })?;
        into.copy_from_slice(data);
        Ok(())
    }

    fn compare_swap(&self, at: MemRef, expected: u64, new: u64) -> Result<u64, Fault> {
        self.update(at, |old| if old == expected { new } else { old })
    }

    fn fetch_add(&self, at: MemRef, add: u64) -> Result<u64, Fault> {
        self.update(at, |old| old.wrapping_add(add))
    }

    fn store_release(&self, at: MemRef, bytes: [u8; 8]) -> Result<(), Fault> {
        self.write(at, &bytes)
    }

    fn flush(&self, _: MemRef, _: u64, _: bool) -> Result<(), Fault> {
        Ok(())
    }
}
