//! A host's memory, which checks every access of the adapter.
//!
//! Every access passes through [`Arena`]. A write is right if it lies in a slot
//! that expects exactly these bytes. Any other write is a violation, reported at
//! once, so no later search for changed bytes is needed.

use core::ops::Range;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use ferroce_roce::{Fault, MemRef, Memory, MemorySpace};

use crate::slot::{Atomic, Rule, Slot, wr_name};

/// The memory of one host.
pub(crate) struct Arena {
    base: u64,
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    bytes: Vec<u8>,
    slots: BTreeMap<u64, Slot>,
    /// Registered ranges. Any read outside them is a violation.
    registered: Vec<Range<u64>>,
    /// Ranges from which the adapter may read data of pending sends only.
    private: Vec<Range<u64>>,
    /// Ranges that are no longer mapped.
    unmapped: Vec<Range<u64>>,
    /// Flushed ranges: address, length, whether to persistence.
    flushed: BTreeSet<(u64, u64, bool)>,
    violation: Option<String>,
}

impl Arena {
    /// Creates memory of `len` bytes at address `base`.
    pub(crate) fn new(base: u64, len: u64) -> Arena {
        let inner = Inner {
            bytes: vec![0; len as usize],
            ..Inner::default()
        };
        Arena {
            base,
            inner: RefCell::new(inner),
        }
    }

    /// Returns the first violation since the last call.
    pub(crate) fn take_violation(&self) -> Option<String> {
        self.inner.borrow_mut().violation.take()
    }

    /// Marks a range as registered. Deregistration does not undo this.
    pub(crate) fn set_registered(&self, range: Range<u64>) {
        self.inner.borrow_mut().registered.push(range);
    }

    /// Restricts reads of a range to data of pending sends.
    pub(crate) fn set_private(&self, range: Range<u64>) {
        self.inner.borrow_mut().private.push(range);
    }

    /// Unmaps a range: every access faults from now on.
    pub(crate) fn unmap(&self, range: Range<u64>) {
        self.inner.borrow_mut().unmapped.push(range);
    }

    /// Adds a slot. It must not overlap another slot.
    pub(crate) fn add(&self, start: u64, len: u64, wr_id: u64, rule: Rule) {
        let slot = Slot {
            len,
            wr_id,
            rule,
            filled: 0,
        };
        let old = self.inner.borrow_mut().slots.insert(start, slot);
        assert!(old.is_none(), "slots do not overlap");
    }

    /// Removes a slot: any write there is a violation from now on.
    pub(crate) fn remove(&self, start: u64) {
        let old = self.inner.borrow_mut().slots.remove(&start);
        assert!(old.is_some(), "a slot is removed once");
    }

    /// Forbids all access to a slot, but keeps the slot.
    pub(crate) fn close(&self, start: u64) {
        if let Some(slot) = self.inner.borrow_mut().slots.get_mut(&start) {
            slot.rule = Rule::Closed;
        }
    }

    /// Returns the end offset of the bytes written to a slot so far.
    pub(crate) fn filled(&self, start: u64) -> u64 {
        self.inner.borrow().slots[&start].filled
    }

    /// Registers an expected atomic on the counter at `start`.
    pub(crate) fn expect_atomic(&self, start: u64, operand: u64, op: Atomic) {
        self.with_atomics(start, |ops| ops.insert(operand, op));
    }

    /// Returns the record of an atomic.
    pub(crate) fn atomic(&self, start: u64, operand: u64) -> Atomic {
        self.with_atomics(start, |ops| ops[&operand].clone())
    }

    /// Forbids the execution of an atomic from now on.
    pub(crate) fn close_atomic(&self, start: u64, operand: u64) {
        self.with_atomics(start, |ops| {
            if let Some(op) = ops.get_mut(&operand) {
                op.closed = true;
            }
        });
    }

    fn with_atomics<T>(&self, start: u64, f: impl FnOnce(&mut BTreeMap<u64, Atomic>) -> T) -> T {
        match self
            .inner
            .borrow_mut()
            .slots
            .get_mut(&start)
            .map(|s| &mut s.rule)
        {
            Some(Rule::Counter(ops)) => f(ops),
            other => panic!("{start:#x} is not a counter but {other:?}"),
        }
    }

    /// Returns true if exactly this range has been flushed.
    pub(crate) fn was_flushed(&self, start: u64, len: u64, persistent: bool) -> bool {
        self.inner
            .borrow()
            .flushed
            .contains(&(start, len, persistent))
    }

    /// Reads memory as the program does, without checks.
    pub(crate) fn peek(&self, start: u64, len: u64) -> Vec<u8> {
        let inner = self.inner.borrow();
        inner.bytes[self.span(start, len)].to_vec()
    }

    /// Writes memory as the program does, without checks.
    pub(crate) fn poke(&self, start: u64, data: &[u8]) {
        let span = self.span(start, data.len() as u64);
        self.inner.borrow_mut().bytes[span].copy_from_slice(data);
    }

    fn span(&self, start: u64, len: u64) -> Range<usize> {
        let from = (start - self.base) as usize;
        from..from + len as usize
    }

    /// Returns the byte range of `address`; a fault if any part is not mapped.
    fn mapped(&self, inner: &Inner, address: u64, len: usize) -> Result<Range<usize>, Fault> {
        let fault = Fault::host(address);
        let from = address.checked_sub(self.base).ok_or(fault)? as usize;
        let to = from.checked_add(len).ok_or(fault)?;
        let end = address + len as u64;
        let gone = |r: &Range<u64>| address < r.end && r.start < end;
        if to > inner.bytes.len() || inner.unmapped.iter().any(gone) {
            return Err(fault);
        }
        Ok(from..to)
    }

    fn atomic_access(
        &self,
        address: u64,
        operand: u64,
        compare: Option<u64>,
        new: impl FnOnce(u64) -> u64,
    ) -> Result<u64, Fault> {
        let mut inner = self.inner.borrow_mut();
        let span = self.mapped(&inner, address, 8)?;
        let mut word = [0; 8];
        word.copy_from_slice(&inner.bytes[span.clone()]);
        let original = u64::from_ne_bytes(word);
        let checked = match inner.slots.get_mut(&address) {
            Some(slot) => slot.atomic(operand, compare, original),
            None => Err("an atomic outside any counter".into()),
        };
        if let Err(why) = checked {
            inner.report(address, 8, &why);
        }
        inner.bytes[span].copy_from_slice(&new(original).to_ne_bytes());
        Ok(original)
    }
}

impl Inner {
    fn slot_at(&mut self, address: u64, len: u64) -> Option<(u64, &mut Slot)> {
        let (&start, slot) = self.slots.range_mut(..=address).next_back()?;
        (address + len <= start + slot.len).then_some((start, slot))
    }

    fn check_read(&mut self, address: u64, len: u64) {
        let end = address + len;
        let covers = |r: &Range<u64>| r.start <= address && end <= r.end;
        if !self.registered.iter().any(covers) {
            return self.report(address, len, "read, but it is not registered");
        }
        if !self.private.iter().any(covers) {
            return;
        }
        let why = match self.slot_at(address, len) {
            Some((_, slot)) if matches!(slot.rule, Rule::Source) => return,
            Some(_) => "read, but it is not data to be sent",
            None => "read, but no pending send has data there",
        };
        self.report(address, len, why);
    }

    fn check_write(&mut self, address: u64, data: &[u8]) {
        let checked = match self.slot_at(address, data.len() as u64) {
            Some((start, slot)) => slot.write(address - start, data),
            None => Err("written to, but no slot covers it".into()),
        };
        if let Err(why) = checked {
            self.report(address, data.len() as u64, &why);
        }
    }

    fn report(&mut self, address: u64, len: u64, why: &str) {
        let owner = match self.slots.range(..=address).next_back() {
            Some((start, slot)) if address < start + slot.len => {
                format!(
                    " (offset {} of {} bytes of {})",
                    address - start,
                    slot.len,
                    wr_name(slot.wr_id)
                )
            }
            _ => String::new(),
        };
        let text = format!("memory {address:#x}+{len}{owner}: {why}");
        self.violation.get_or_insert(text);
    }
}

/// Returns the address of memory of a simulated host.
fn host_address(at: MemRef) -> u64 {
    match at.space() {
        MemorySpace::Host => at.addr(),
        MemorySpace::Gpu(_) => unreachable!("simulated hosts have no GPU"),
    }
}

impl Memory for Arena {
    fn read(&self, at: MemRef, into: &mut [u8]) -> Result<(), Fault> {
        let address = host_address(at);
        if into.is_empty() {
            return Ok(());
        }
        let mut inner = self.inner.borrow_mut();
        let span = self.mapped(&inner, address, into.len())?;
        inner.check_read(address, into.len() as u64);
        into.copy_from_slice(&inner.bytes[span]);
        Ok(())
    }

    fn write(&self, at: MemRef, data: &[u8]) -> Result<(), Fault> {
        let address = host_address(at);
        if data.is_empty() {
            return Ok(());
        }
        let mut inner = self.inner.borrow_mut();
        let span = self.mapped(&inner, address, data.len())?;
        inner.check_write(address, data);
        inner.bytes[span].copy_from_slice(data);
        Ok(())
    }

    fn compare_swap(&self, at: MemRef, expected: u64, new: u64) -> Result<u64, Fault> {
        let address = host_address(at);
        let swap = |original| if original == expected { new } else { original };
        self.atomic_access(address, new, Some(expected), swap)
    }

    fn fetch_add(&self, at: MemRef, add: u64) -> Result<u64, Fault> {
        let address = host_address(at);
        self.atomic_access(address, add, None, |original| original.wrapping_add(add))
    }

    fn store_release(&self, at: MemRef, bytes: [u8; 8]) -> Result<(), Fault> {
        self.write(at, &bytes)
    }

    fn flush(&self, at: MemRef, length: u64, persistent: bool) -> Result<(), Fault> {
        let address = host_address(at);
        let mut inner = self.inner.borrow_mut();
        self.mapped(&inner, address, length as usize)?;
        inner.flushed.insert((address, length, persistent));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    const BASE: u64 = 0x1000;

    fn landing() -> Arena {
        let arena = Arena::new(BASE, 100);
        let rule = Rule::Landing {
            data: Rc::from([1, 2, 3, 4, 5]),
            at: 0,
            once: true,
        };
        arena.add(BASE + 10, 5, 0, rule);
        arena
    }

    #[test]
    fn expected_bytes_in_order_are_accepted() {
        let arena = landing();
        arena.write(MemRef::host(BASE + 10), &[1, 2]).unwrap();
        arena.write(MemRef::host(BASE + 12), &[3, 4, 5]).unwrap();
        assert_eq!(arena.take_violation(), None);
        assert_eq!(arena.filled(BASE + 10), 5);
    }

    #[test]
    fn wrong_repeated_or_misplaced_bytes_are_violations() {
        for (address, data) in [
            (BASE + 10, &[9][..]),
            (BASE + 11, &[2]),
            (BASE + 9, &[1]),
            (BASE + 14, &[5, 6]),
            (BASE + 50, &[0]),
        ] {
            let arena = landing();
            arena.write(MemRef::host(address), data).unwrap();
            assert!(arena.take_violation().is_some(), "{address:#x} {data:?}");
        }
        let arena = landing();
        arena.write(MemRef::host(BASE + 10), &[1]).unwrap();
        arena.write(MemRef::host(BASE + 10), &[1]).unwrap();
        assert!(arena.take_violation().is_some());
    }

    #[test]
    fn access_to_unmapped_memory_faults() {
        let arena = landing();
        arena.unmap(BASE + 20..BASE + 30);
        let mut byte = [0];
        assert!(arena.read(MemRef::host(BASE + 20), &mut byte).is_err());
        assert!(arena.read(MemRef::host(BASE + 30), &mut byte).is_ok());
        assert!(arena.read(MemRef::host(BASE - 1), &mut byte).is_err());
        assert!(arena.write(MemRef::host(BASE + 99), &[0, 0]).is_err());
    }

    #[test]
    fn private_memory_is_read_for_pending_sends_only() {
        let arena = Arena::new(BASE, 100);
        arena.set_registered(BASE..BASE + 100);
        arena.set_private(BASE..BASE + 50);
        arena.add(BASE, 10, 0, Rule::Source);
        let mut bytes = [0; 10];
        arena.read(MemRef::host(BASE), &mut bytes).unwrap();
        arena.read(MemRef::host(BASE + 60), &mut bytes).unwrap();
        assert_eq!(arena.take_violation(), None);
        arena.remove(BASE);
        arena.read(MemRef::host(BASE), &mut bytes).unwrap();
        assert!(arena.take_violation().is_some());
    }

    #[test]
    fn second_execution_of_an_atomic_is_a_violation() {
        let arena = Arena::new(BASE, 100);
        arena.add(BASE, 8, 0, Rule::Counter(BTreeMap::new()));
        let op = Atomic {
            wr_id: 0,
            compare: None,
            original: None,
            closed: false,
        };
        arena.expect_atomic(BASE, 7, op);
        assert_eq!(arena.fetch_add(MemRef::host(BASE), 7), Ok(0));
        assert_eq!(arena.take_violation(), None);
        assert_eq!(arena.atomic(BASE, 7).original, Some(0));
        assert_eq!(arena.fetch_add(MemRef::host(BASE), 7), Ok(7));
        assert!(arena.take_violation().is_some());
    }
}
