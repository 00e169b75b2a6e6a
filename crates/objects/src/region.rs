//! Protection domains, memory regions and memory windows.
//!
//! [`Regions`] knows which keys exist and what each allows. Verbs calls register
//! and bind; engines ask, for every piece of memory they are about to touch,
//! whether the key allows it, and get the program's address. Whether there still
//! is memory at that address is for [`Memory`](crate::memory::Memory) to find out.
//!
//! ```text
//!   verbs: register, bind ...        engines: local, remote
//!            |                                   |
//!            v                                   v
//!   Regions: Control (one lock)        key -> index -> slot
//!            who uses what                       ^  (no lock)
//!            |                                   |
//!            +------ writes one slot ------> Table
//! ```
//!
//! One `Regions` serves all engines of a process, which may run on several
//! threads. What changes goes through one lock; lookups take none.
//!
//! A lookup says what holds at that moment. A key that is taken back is unknown
//! to lookups from then on, but an engine may be about to move bytes after a
//! lookup it made just before. Whoever hands memory back to the program
//! (deregistration, re-registration, freeing a window) must afterwards pass once
//! through the lock of every engine: then none is in the middle of such a copy.

mod cache;
mod error;
mod object;
mod table;
#[cfg(test)]
mod tests;
mod window;

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

pub use cache::KeyCache;
pub use error::{AccessError, KeyRole};
use object::MrState;
pub(crate) use object::unknown_access;
pub use object::{Mr, Mw, MwKind, Pd, Rereg};
use table::{Slot, Table, Users, View};
use window::Binding;

use crate::error::VerbsError;
use crate::key::{KeyAllocator, NewKey, Permutation};
use crate::memory::MemRef;
use crate::room;
use crate::verbs::Access;

/// All protection domains, regions and windows of a process.
pub struct Regions {
    permutation: Permutation,
    table: Table,
    /// Changes with every change of the table.
    version: AtomicU64,
    control: Mutex<Control>,
}

/// Who uses what. Its lock also makes its holder the table's only writer.
#[derive(Debug)]
struct Control {
    keys: KeyAllocator,
    next_pd: u32,
    pds: BTreeSet<u32>,
    mrs: BTreeMap<u32, MrEntry>,
    mws: BTreeMap<u32, MwEntry>,
    /// Bound type 2 windows: queue pair number and window index.
    by_qp: BTreeSet<(u32, u32)>,
}

#[derive(Debug)]
struct MrEntry {
    mr: Arc<Mr>,
    /// How many windows are bound to it.
    windows: u32,
}

#[derive(Debug)]
struct MwEntry {
    mw: Arc<Mw>,
    bound: Option<Binding>,
}

/// How many objects there are.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Protection domains.
    pub pds: usize,
    /// Memory regions.
    pub mrs: usize,
    /// Memory windows.
    pub mws: usize,
    /// Memory windows that are bound.
    pub bound_mws: usize,
}

impl Regions {
    /// Most memory regions at a time.
    pub const MAX_MR: usize = (1 << 19) - 1;
    /// Most memory windows at a time.
    pub const MAX_MW: usize = (1 << 19) - 1;

    /// No regions yet. All randomness in keys comes from `seed`.
    pub fn new(seed: [u8; 32]) -> Regions {
        let (permutation, keys) = KeyAllocator::new(seed);
        Regions {
            permutation,
            table: Table::new(),
            version: AtomicU64::new(1),
            control: Mutex::new(Control {
                keys,
                next_pd: 1,
                pds: BTreeSet::new(),
                mrs: BTreeMap::new(),
                mws: BTreeMap::new(),
                by_qp: BTreeSet::new(),
            }),
        }
    }

    /// A new protection domain.
    pub fn alloc_pd(&self) -> Arc<Pd> {
        let mut control = self.control();
        let id = loop {
            let id = control.next_pd;
            control.next_pd = id.checked_add(1).unwrap_or(1);
            if control.pds.insert(id) {
                break id;
            }
        };
        Arc::new(Pd { id })
    }

    /// Gives a protection domain back; refused while anybody else holds it.
    pub fn dealloc_pd(&self, pd: Arc<Pd>) -> Result<(), (Arc<Pd>, VerbsError)> {
        match Arc::try_unwrap(pd) {
            Ok(pd) => {
                self.control().pds.remove(&pd.id);
                Ok(())
            }
            Err(pd) => {
                let others = Arc::strong_count(&pd) - 1;
                let why = format!("protection domain {} is used by {others} others", pd.id);
                Err((pd, VerbsError::Busy(why)))
            }
        }
    }

    /// Registers memory. Work requests and peers count its addresses from
    /// `iova`, or from zero if it is [`Access::ZERO_BASED`].
    pub fn register(
        &self,
        pd: &Arc<Pd>,
        memory: MemRef,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>, VerbsError> {
        let state = MrState {
            pd: Arc::clone(pd),
            memory,
            length,
            iova,
            access,
            null: false,
        };
        self.add(state.checked()?)
    }

    /// A region of no memory, for this side's own use: its only key leads from
    /// every address to [`NULL_MEMORY`](crate::NULL_MEMORY).
    pub fn register_null(&self, pd: &Arc<Pd>) -> Result<Arc<Mr>, VerbsError> {
        self.add(MrState::null(pd))
    }

    fn add(&self, state: MrState) -> Result<Arc<Mr>, VerbsError> {
        let mut control = self.control();
        if control.mrs.len() >= Regions::MAX_MR {
            let why = format!("{} memory regions exist", control.mrs.len());
            return Err(VerbsError::NoMemory(why));
        }
        let NewKey { index, key } = self.new_key(&mut control)?;
        self.put(index, &state.view(key));
        let mr = Arc::new(Mr::new(index, key, state));
        let entry = MrEntry {
            mr: Arc::clone(&mr),
            windows: 0,
        };
        control.mrs.insert(index, entry);
        Ok(mr)
    }

    /// Changes a region: all that is asked, or nothing. Its key stays.
    ///
    /// What bound windows rest on cannot change under them.
    pub fn reregister(&self, mr: &Arc<Mr>, change: &Rereg) -> Result<(), VerbsError> {
        let control = self.control();
        let windows = control.mr(mr)?.windows;
        let old = mr.state().clone();
        if old.null {
            let why = format!("null memory region {:#x} cannot change", mr.key);
            return Err(VerbsError::Invalid(why));
        }
        let (memory, length, iova) = change
            .translation
            .unwrap_or((old.memory, old.length, old.iova));
        let new = MrState {
            pd: Arc::clone(change.pd.as_ref().unwrap_or(&old.pd)),
            memory,
            length,
            iova,
            access: change.access.unwrap_or(old.access),
            null: false,
        }
        .checked()?;
        let moved = change.translation.is_some() || new.iova != old.iova;
        let needed = window::NEEDED.intersection(old.access);
        if windows > 0 && (moved || change.pd.is_some() || !new.access.contains(needed)) {
            return Err(VerbsError::Busy(format!(
                "{windows} windows are bound to memory region {:#x}",
                mr.key
            )));
        }
        self.put(mr.index, &new.view(mr.key));
        *mr.state() = new;
        Ok(())
    }

    /// Takes a region's key back; refused while windows are bound to it.
    pub fn deregister(&self, mr: &Arc<Mr>) -> Result<(), VerbsError> {
        let mut control = self.control();
        let windows = control.mr(mr)?.windows;
        if windows > 0 {
            return Err(VerbsError::Invalid(format!(
                "{windows} windows are bound to memory region {:#x}",
                mr.key
            )));
        }
        control.mrs.remove(&mr.index);
        self.free(&mut control, mr.index);
        Ok(())
    }

    /// The program's address of local memory that a work request names.
    /// `need` is [`Access::LOCAL_WRITE`] if it will be written to, else empty.
    #[inline]
    pub fn local(
        &self,
        lkey: u32,
        pd: &Pd,
        need: Access,
        addr: u64,
        length: u32,
    ) -> Result<MemRef, AccessError> {
        let view = self.find(KeyRole::Lkey, lkey)?;
        if !view.users.contains(Users::LOCAL) {
            return Err(AccessError::WindowAsLkey { key: lkey });
        }
        view.permit(KeyRole::Lkey, pd, 0, need)?;
        view.translate(KeyRole::Lkey, addr, u64::from(length))
    }

    /// The program's address of memory that a peer names. `pd` and `qpn` are
    /// those of the queue pair that it talks to.
    #[inline]
    pub fn remote(
        &self,
        rkey: u32,
        pd: &Pd,
        qpn: u32,
        need: Access,
        va: u64,
        length: u64,
    ) -> Result<MemRef, AccessError> {
        let view = self.find(KeyRole::Rkey, rkey)?;
        view.permit(KeyRole::Rkey, pd, qpn, need)?;
        view.translate(KeyRole::Rkey, va, length)
    }

    /// All that a peer's key covers: the program's address, and the length.
    pub fn remote_whole(
        &self,
        rkey: u32,
        pd: &Pd,
        qpn: u32,
        need: Access,
    ) -> Result<(MemRef, u64), AccessError> {
        let view = self.find(KeyRole::Rkey, rkey)?;
        view.permit(KeyRole::Rkey, pd, qpn, need)?;
        Ok((view.place(view.start), view.length))
    }

    /// How many objects there are.
    pub fn counts(&self) -> Counts {
        let control = self.control();
        Counts {
            pds: control.pds.len(),
            mrs: control.mrs.len(),
            mws: control.mws.len(),
            bound_mws: control.mws.values().filter(|e| e.bound.is_some()).count(),
        }
    }

    /// The numbers of all protection domains.
    pub fn pds(&self) -> Vec<u32> {
        self.control().pds.iter().copied().collect()
    }

    /// All memory regions and the slots they are in, which say nothing of their keys.
    pub fn numbered_mrs(&self) -> Vec<(u32, Arc<Mr>)> {
        let control = self.control();
        let mrs = control.mrs.iter();
        mrs.map(|(slot, e)| (*slot, Arc::clone(&e.mr))).collect()
    }

    /// All memory regions, oldest slot first.
    pub fn mrs(&self) -> Vec<Arc<Mr>> {
        let control = self.control();
        control.mrs.values().map(|e| Arc::clone(&e.mr)).collect()
    }

    /// All memory windows, oldest slot first.
    pub fn mws(&self) -> Vec<Arc<Mw>> {
        let control = self.control();
        control.mws.values().map(|e| Arc::clone(&e.mw)).collect()
    }

    #[inline]
    fn find(&self, role: KeyRole, key: u32) -> Result<View, AccessError> {
        let slot = self.table.get(self.permutation.index(key));
        let view = slot.map(|slot| slot.read().unwrap_or_else(|| self.wait_and_read(slot)));
        match view {
            // A free slot's key is 0, which a peer may well send.
            Some(view) if view.key == key && !view.users.is_empty() => Ok(view),
            _ => Err(AccessError::Unknown { role, key }),
        }
    }

    /// For a reader that has met a writer, perhaps one whose thread does not run.
    #[cold]
    fn wait_and_read(&self, slot: &Slot) -> View {
        let _no_writer = self.control();
        slot.read()
            .expect("nobody writes while we hold the writers' lock")
    }

    /// Changes a slot. The caller holds the writers' lock.
    fn put(&self, index: u32, view: &View) {
        let slot = self.table.get(index);
        slot.expect("a key's slot is made with it").write(view);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// What copies of slots were made under: they are stale once it differs.
    #[inline]
    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// A new key, with its slot and room for the object that it is for.
    fn new_key(&self, control: &mut Control) -> Result<NewKey, VerbsError> {
        room::for_an_object("bytes of a memory region or window")?;
        control.keys.reserve()?;
        let new = control
            .keys
            .allocate(&self.permutation)
            .ok_or_else(|| VerbsError::NoMemory("all memory keys are in use".into()))?;
        if let Err(error) = self.table.make(new.index) {
            control.keys.release(new.index);
            return Err(error);
        }
        Ok(new)
    }

    fn free(&self, control: &mut Control, index: u32) {
        self.put(index, &View::default());
        control.keys.release(index);
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control
            .lock()
            .expect("no code panics while it holds the regions")
    }
}

impl Control {
    /// The entry of a region that is registered, and here.
    fn mr(&self, mr: &Arc<Mr>) -> Result<&MrEntry, VerbsError> {
        let entry = self.mrs.get(&mr.index);
        entry.filter(|e| Arc::ptr_eq(&e.mr, mr)).ok_or_else(|| {
            VerbsError::NotFound(format!("memory region {:#x} is not registered", mr.key))
        })
    }
}

impl fmt::Debug for Regions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Regions").finish_non_exhaustive()
    }
}
