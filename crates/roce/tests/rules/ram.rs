//! The memory of a test host.

use std::cell::RefCell;
use std::ops::Range;

use ferroce_roce::{Fault, MemRef, Memory, MemorySpace};

/// Start address of a host's memory.
pub const BASE: u64 = 0x10_0000;
/// Size of a host's memory in bytes.
pub const SIZE: usize = 1 << 20;

/// Memory of a host from [`BASE`] on. Ranges in `holes` fault like unmapped memory.
pub struct Ram {
    bytes: RefCell<Vec<u8>>,
    /// Ranges that fault.
    pub holes: RefCell<Vec<Range<u64>>>,
    /// Flushed ranges: address, length, and whether to persistence.
    pub flushes: RefCell<Vec<(u64, u64, bool)>>,
}

impl Ram {
    /// Returns memory whose content differs between addresses and between hosts.
    pub fn new(host: u8) -> Ram {
        let byte = |n: usize| (n ^ n >> 8) as u8 ^ host << 6;
        Ram {
            bytes: RefCell::new((0..SIZE).map(byte).collect()),
            holes: RefCell::default(),
            flushes: RefCell::default(),
        }
    }

    fn index(&self, address: u64, length: usize) -> Result<usize, Fault> {
        let end = address + length as u64;
        let hole = self
            .holes
            .borrow()
            .iter()
            .any(|hole| address < hole.end && hole.start < end);
        if hole || address < BASE || end > BASE + SIZE as u64 {
            return Err(Fault::host(address));
        }
        Ok((address - BASE) as usize)
    }

    pub fn get(&self, address: u64, length: usize) -> Vec<u8> {
        let mut out = vec![0; length];
        self.read(MemRef::host(address), &mut out).unwrap();
        out
    }

    pub fn put(&self, address: u64, data: &[u8]) {
        self.write(MemRef::host(address), data).unwrap();
    }

    pub fn word(&self, address: u64) -> u64 {
        u64::from_ne_bytes(self.get(address, 8).try_into().unwrap())
    }

    pub fn put_word(&self, address: u64, value: u64) {
        self.put(address, &value.to_ne_bytes());
    }
}

fn host_address(at: MemRef) -> u64 {
    assert_eq!(at.space(), MemorySpace::Host);
    at.addr()
}

impl Memory for Ram {
    fn read(&self, at: MemRef, into: &mut [u8]) -> Result<(), Fault> {
        let address = host_address(at);
        let start = self.index(address, into.len())?;
        into.copy_from_slice(&self.bytes.borrow()[start..start + into.len()]);
        Ok(())
    }

    fn write(&self, at: MemRef, data: &[u8]) -> Result<(), Fault> {
        let address = host_address(at);
        let start = self.index(address, data.len())?;
        self.bytes.borrow_mut()[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn compare_swap(&self, at: MemRef, expected: u64, new: u64) -> Result<u64, Fault> {
        let address = host_address(at);
        self.index(address, 8)?;
        let old = self.word(address);
        if old == expected {
            self.put_word(address, new);
        }
        Ok(old)
    }

    fn fetch_add(&self, at: MemRef, add: u64) -> Result<u64, Fault> {
        let address = host_address(at);
        self.index(address, 8)?;
        let old = self.word(address);
        self.put_word(address, old.wrapping_add(add));
        Ok(old)
    }

    fn store_release(&self, at: MemRef, bytes: [u8; 8]) -> Result<(), Fault> {
        self.write(at, &bytes)
    }

    fn flush(&self, at: MemRef, length: u64, persistent: bool) -> Result<(), Fault> {
        let address = host_address(at);
        self.index(address, length as usize)?;
        self.flushes
            .borrow_mut()
            .push((address, length, persistent));
        Ok(())
    }
}
