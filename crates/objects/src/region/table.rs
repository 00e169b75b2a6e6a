//! The table of slots: the permissions and the memory of each key, by index.
//!
//! Every packet that accesses memory needs a lookup, in any engine of the process. So a
//! lookup must be cheap and must not write to shared memory. A slot is one cache line with
//! all data of a check. Its fields are atomics under a version number (a seqlock). A reader
//! copies the fields and starts again if the version was odd or has changed. So readers take
//! no lock, and see a slot before or after a change, never in between.
//!
//! Slots are allocated in chunks when first needed. Chunks never move, so finding a slot
//! takes no lock either.
//!
//! There is one writer at a time: the holder of the lock of [`Regions`](super::Regions).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use bitflags::bitflags;

use super::error::{AccessError, KeyRole};
use super::object::{MwKind, Pd};
use crate::error::VerbsError;
use crate::key::INDICES;
use crate::memory::{MemRef, NULL_MEMORY};
use crate::room;
use crate::verbs::Access;

const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;
/// Number of attempts of a reader before it waits for the writer.
const TRIES: usize = 64;

bitflags! {
    /// The permitted users of a slot, and its kind. Zero means that the slot is free.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub(super) struct Users: u32 {
        /// Work requests of this process, as local key: a region, not a window.
        const LOCAL = 1 << 0;
        /// Only queue pairs of the same protection domain.
        const SAME_DOMAIN = 1 << 1;
        /// Only the queue pair that bound the window.
        const SAME_QP = 1 << 2;
        /// The slot is that of a window.
        const WINDOW = 1 << 3;
        /// The slot is that of a null region.
        const NULL = 1 << 4;
    }
}

impl Users {
    pub(super) const REGION: Users = Users::LOCAL.union(Users::SAME_DOMAIN);

    pub(super) const fn of(kind: MwKind) -> Users {
        Users::WINDOW.union(match kind {
            MwKind::Type1 => Users::SAME_DOMAIN,
            MwKind::Type2A => Users::SAME_QP,
            MwKind::Type2B => Users::SAME_QP.union(Users::SAME_DOMAIN),
        })
    }
}

/// The content of a slot. The default is that of a free slot: no key is 0.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct View {
    pub(super) key: u32,
    pub(super) users: Users,
    pub(super) pd: u32,
    pub(super) qpn: u32,
    pub(super) access: Access,
    /// Start address, as work requests and peers count addresses.
    pub(super) start: u64,
    /// Length in bytes; `start + length` does not overflow. 0 for a window that is not bound.
    pub(super) length: u64,
    /// Distance from such an address to the bits of its [`MemRef`], modulo 2^64.
    pub(super) delta: u64,
}

impl View {
    /// Checks that a queue pair may use the key for `need`. The range is not checked.
    #[inline]
    pub(super) fn permit(
        &self,
        role: KeyRole,
        pd: &Pd,
        qpn: u32,
        need: Access,
    ) -> Result<(), AccessError> {
        let ok = (!self.users.contains(Users::SAME_DOMAIN) || self.pd == pd.id())
            && (!self.users.contains(Users::SAME_QP) || self.qpn == qpn)
            && (!self.users.contains(Users::WINDOW) || self.length != 0)
            && self.access.contains(need);
        if ok {
            return Ok(());
        }
        Err(self.refusal(role, pd, qpn, need))
    }

    /// Checks that a range is inside. Returns its memory.
    #[inline]
    pub(super) fn translate(
        &self,
        role: KeyRole,
        address: u64,
        length: u64,
    ) -> Result<MemRef, AccessError> {
        if self.users.contains(Users::NULL) {
            return Ok(MemRef::host(NULL_MEMORY));
        }
        // An address before the start wraps to an offset beyond any length,
        // because start + length does not overflow.
        let offset = address.wrapping_sub(self.start);
        if offset <= self.length && length <= self.length - offset {
            return Ok(self.place(address));
        }
        Err(self.out_of_range(role, address, length))
    }

    /// Returns the memory behind an address that has been checked.
    #[inline]
    pub(super) fn place(&self, address: u64) -> MemRef {
        MemRef::from_bits(address.wrapping_add(self.delta))
    }

    #[cold]
    fn refusal(&self, role: KeyRole, pd: &Pd, qpn: u32, need: Access) -> AccessError {
        let key = self.key;
        if self.users.contains(Users::WINDOW) && self.length == 0 {
            AccessError::NotBound { key }
        } else if self.users.contains(Users::SAME_DOMAIN) && self.pd != pd.id() {
            AccessError::OtherDomain { role, key }
        } else if self.users.contains(Users::SAME_QP) && self.qpn != qpn {
            AccessError::OtherQueuePair { key }
        } else {
            let missing = need.difference(self.access);
            AccessError::Denied { role, key, missing }
        }
    }

    #[cold]
    fn out_of_range(&self, role: KeyRole, address: u64, length: u64) -> AccessError {
        AccessError::OutOfRange {
            role,
            key: self.key,
            address,
            length,
        }
    }
}

/// A region or window, in one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Slot {
    /// Odd while a writer changes the other fields.
    pub(super) version: AtomicU32,
    key: AtomicU32,
    users: AtomicU32,
    pd: AtomicU32,
    qpn: AtomicU32,
    access: AtomicU32,
    start: AtomicU64,
    length: AtomicU64,
    delta: AtomicU64,
}

impl Slot {
    /// Returns the content. Returns `None` if the slot changed in all attempts: the caller
    /// then waits for the writer.
    #[inline]
    pub(super) fn read(&self) -> Option<View> {
        for _ in 0..TRIES {
            let before = self.version.load(Ordering::Acquire);
            let view = View {
                key: self.key.load(Ordering::Relaxed),
                users: Users::from_bits_retain(self.users.load(Ordering::Relaxed)),
                pd: self.pd.load(Ordering::Relaxed),
                qpn: self.qpn.load(Ordering::Relaxed),
                access: Access::from_bits_retain(self.access.load(Ordering::Relaxed)),
                start: self.start.load(Ordering::Relaxed),
                length: self.length.load(Ordering::Relaxed),
                delta: self.delta.load(Ordering::Relaxed),
            };
            // Pairs with the fence in `write`: a reader that has seen one of its
            // stores also sees the odd version before it.
            fence(Ordering::Acquire);
            let after = self.version.load(Ordering::Relaxed);
            if before == after && before & 1 == 0 {
                return Some(view);
            }
            core::hint::spin_loop();
        }
        None
    }

    /// Writes the content. The caller is the only writer: see the module's documentation.
    pub(super) fn write(&self, view: &View) {
        let version = self.version.load(Ordering::Relaxed);
        debug_assert!(version & 1 == 0, "two writers");
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.key.store(view.key, Ordering::Relaxed);
        self.users.store(view.users.bits(), Ordering::Relaxed);
        self.pd.store(view.pd, Ordering::Relaxed);
        self.qpn.store(view.qpn, Ordering::Relaxed);
        self.access.store(view.access.bits(), Ordering::Relaxed);
        self.start.store(view.start, Ordering::Relaxed);
        self.length.store(view.length, Ordering::Relaxed);
        self.delta.store(view.delta, Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }
}

/// All slots.
#[derive(Debug)]
pub(super) struct Table {
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
}

impl Table {
    pub(super) fn new() -> Table {
        let chunks = INDICES >> CHUNK_BITS;
        Table {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Returns the slot of an index, or `None` if its chunk was never needed.
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&Slot> {
        let chunk = self.chunks.get(index as usize >> CHUNK_BITS)?.get()?;
        chunk.get(index as usize % CHUNK)
    }

    /// Allocates the chunk of an index, unless it exists.
    pub(super) fn make(&self, index: u32) -> Result<(), VerbsError> {
        let chunk = &self.chunks[index as usize >> CHUNK_BITS];
        if chunk.get().is_none() {
            let mut slots = room::vec(CHUNK, "keys")?;
            slots.extend((0..CHUNK).map(|_| Slot::default()));
            let _set_by_another_thread = chunk.set(slots.into_boxed_slice());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[test]
    fn slot_is_one_cache_line() {
        assert_eq!(size_of::<Slot>(), 64);
    }

    #[test]
    #[allow(clippy::disallowed_methods)] // tests may start threads
    fn readers_see_a_change_completely_or_not_at_all() {
        let slot = Slot::default();
        let view = |n: u32| View {
            key: n,
            users: Users::from_bits_retain(n),
            pd: n,
            qpn: n,
            access: Access::from_bits_retain(n),
            start: u64::from(n),
            length: u64::from(n),
            delta: u64::from(n),
        };
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let (mut last, mut changes) = (0, 0u64);
                    while !done.load(Ordering::Relaxed) || changes == 0 {
                        let Some(seen) = slot.read() else { continue };
                        assert_eq!(seen, view(seen.key));
                        assert!(seen.key >= last, "an older content was read");
                        changes += u64::from(seen.key != last);
                        last = seen.key;
                    }
                });
            }
            for n in 1..=1_000_000 {
                slot.write(&view(n));
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn reader_gives_up_on_a_slot_that_stays_odd() {
        let slot = Slot::default();
        slot.version.store(1, Ordering::Relaxed);
        assert_eq!(slot.read(), None);
    }

    #[test]
    fn chunks_are_allocated_when_first_needed() {
        let table = Table::new();
        assert!(table.get(5).is_none());
        table.make(5).unwrap();
        table.get(5).unwrap().write(&View {
            key: 1,
            ..View::default()
        });
        assert_eq!(table.get(5).unwrap().read().unwrap().key, 1);
        assert_eq!(table.get(6).unwrap().read(), Some(View::default()));
        assert!(table.get(CHUNK as u32).is_none());
        assert!(table.get(INDICES - 1).is_none());
        assert!(table.get(INDICES).is_none());
    }
}
