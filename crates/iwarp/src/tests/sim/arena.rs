//! The memory of a host, which checks each access when it happens.

use std::cell::RefCell;
use std::collections::BTreeMap;

use ferroce_objects::{Fault, MemRef, Memory, MemorySpace};

/// Start address of the memory.
pub(super) const BASE: u64 = 0x1000_0000;
/// Bytes of the memory, of which the first [`REGISTERED`] are registered.
const SIZE: usize = 8 << 20;
/// Bytes that the host's main region covers.
pub(super) const REGISTERED: u64 = 7 << 20;
/// Byte of memory that nothing was written to.
const UNTOUCHED: u8 = 0xa5;

/// The content of a range: bytes that follow from a number.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Pattern(pub(super) u64);

impl Pattern {
    pub(super) fn byte(self, offset: u64) -> u8 {
        let mixed = (self.0 << 32 | offset >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (8 * (offset & 7))) as u8
    }
}

/// A range that the engine may write to.
#[derive(Copy, Clone, Debug)]
struct Target {
    length: u64,
    /// Its content, if the writer is known.
    pattern: Option<Pattern>,
}

pub(super) struct Arena {
    bytes: RefCell<Vec<u8>>,
    next: u64,
    targets: BTreeMap<u64, Target>,
    /// Ranges whose regions have ended.
    dead: Vec<(u64, u64)>,
    violation: RefCell<Option<String>>,
}

impl Arena {
    pub(super) fn new() -> Arena {
        Arena {
            bytes: RefCell::new(vec![UNTOUCHED; SIZE]),
            next: BASE,
            targets: BTreeMap::new(),
            dead: Vec::new(),
            violation: RefCell::new(None),
        }
    }

    /// Allocates a range, with a gap before it.
    fn allocate(&mut self, length: u32) -> u64 {
        let start = self.next + 16;
        self.next = start + u64::from(length);
        assert!(self.next <= BASE + REGISTERED, "the arena is too small");
        start
    }

    /// Allocates a range with this content.
    pub(super) fn source(&mut self, length: u32, pattern: Pattern) -> u64 {
        let start = self.allocate(length);
        let at = (start - BASE) as usize;
        let bytes = &mut self.bytes.borrow_mut()[at..at + length as usize];
        for (offset, byte) in bytes.iter_mut().enumerate() {
            *byte = pattern.byte(offset as u64);
        }
        start
    }

    /// Allocates a range that the engine may write, with `pattern` if that is known.
    pub(super) fn target(&mut self, length: u32, pattern: Option<Pattern>) -> u64 {
        let start = self.allocate(length);
        self.allow(start, length, pattern);
        start
    }

    /// Allows writes to a range that is not allocated.
    pub(super) fn allow(&mut self, start: u64, length: u32, pattern: Option<Pattern>) {
        let length = length.into();
        self.targets.insert(start, Target { length, pattern });
    }

    /// Ends a range: from now on nothing may touch it.
    pub(super) fn bury(&mut self, start: u64, length: u32) {
        self.targets.remove(&start);
        self.dead.push((start, start + u64::from(length)));
    }

    /// Checks that a range holds the first bytes of a pattern and is untouched behind them.
    pub(super) fn check(
        &self,
        start: u64,
        length: u32,
        filled: u32,
        pattern: Pattern,
    ) -> Result<(), String> {
        let at = (start - BASE) as usize;
        let bytes = &self.bytes.borrow()[at..at + length as usize];
        for (offset, byte) in bytes.iter().enumerate() {
            let expected = match offset < filled as usize {
                true => pattern.byte(offset as u64),
                false => UNTOUCHED,
            };
            if *byte != expected {
                return Err(format!("wrong byte {offset} of {filled} at {start:#x}"));
            }
        }
        Ok(())
    }

    /// Returns the first access that was not allowed.
    pub(super) fn violation(&self) -> Result<(), String> {
        self.violation.borrow_mut().take().map_or(Ok(()), Err)
    }

    fn index(&self, at: MemRef, length: usize) -> Result<usize, Fault> {
        assert_eq!(at.space(), MemorySpace::Host);
        let end = at.addr().saturating_add(length as u64);
        if at.addr() < BASE || end > BASE + REGISTERED {
            self.complain(format!("{:#x}+{length} is not registered", at.addr()));
            return Err(Fault { at });
        }
        if self
            .dead
            .iter()
            .any(|(start, stop)| at.addr() < *stop && *start < end)
        {
            self.complain(format!("{:#x}+{length} is no longer registered", at.addr()));
        }
        Ok((at.addr() - BASE) as usize)
    }

    fn complain(&self, what: String) {
        self.violation.borrow_mut().get_or_insert(what);
    }

    fn check_write(&self, start: u64, data: &[u8]) {
        let end = start + data.len() as u64;
        let below = self.targets.range(..=start).next_back();
        let Some((base, target)) = below.filter(|(base, t)| end <= **base + t.length) else {
            self.complain(format!("a write to {start:#x}+{}", data.len()));
            return;
        };
        let Some(pattern) = target.pattern else {
            return;
        };
        let wrong = |(n, byte): (usize, &u8)| *byte != pattern.byte(start - base + n as u64);
        if data.iter().enumerate().any(wrong) {
            self.complain(format!("wrong bytes written to {start:#x}+{}", data.len()));
        }
    }
}

impl Memory for Arena {
    fn read(&self, at: MemRef, into: &mut [u8]) -> Result<(), Fault> {
        let start = self.index(at, into.len())?;
        into.copy_from_slice(&self.bytes.borrow()[start..start + into.len()]);
        Ok(())
    }

    fn write(&self, at: MemRef, data: &[u8]) -> Result<(), Fault> {
        let start = self.index(at, data.len())?;
        self.check_write(at.addr(), data);
        self.bytes.borrow_mut()[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn compare_swap(&self, at: MemRef, _: u64, _: u64) -> Result<u64, Fault> {
        Err(Fault { at })
    }

    fn fetch_add(&self, at: MemRef, _: u64) -> Result<u64, Fault> {
        Err(Fault { at })
    }

    fn store_release(&self, at: MemRef, _: [u8; 8]) -> Result<(), Fault> {
        Err(Fault { at })
    }

    fn flush(&self, at: MemRef, _: u64, _: bool) -> Result<(), Fault> {
        Err(Fault { at })
    }
}
