//! Protection domains, memory regions and memory windows.
//!
//! [`Regions`] knows all keys and their permissions. Verbs calls register regions and bind
//! windows. Engines check a key before every access to memory, and get a
//! [`MemRef`] in the program's memory. [`Memory`](crate::memory::Memory) finds out whether
//! memory is still mapped there.
//!
//! ```text
//!   verbs: register, bind ...        engines: local, remote
//!            |                                   |
//!            v                                   v
//!   Regions: Control (one lock)        key -> index -> slot
//!            all objects                         ^  (no lock)
//!            |                                   |
//!            +------ writes one slot ------> Table
//! ```
//!
//! One `Regions` serves all engines of a process, which run on several threads. Changes
//! take one lock; lookups take none.
//!
//! The result of a lookup can be outdated at once: another thread may deregister the key
//! while an engine copies bytes after its lookup. So a call that returns memory to the
//! program (deregistration, re-registration, freeing a window) afterwards takes and releases
//! the lock of every engine. Then no engine is in the middle of such a copy.

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
    /// Incremented at every change of the table.
    version: AtomicU64,
    control: Mutex<Control>,
}

/// All objects and their uses. The holder of its lock is the only writer of the table.
#[derive(Debug)]
struct Control {
    keys: KeyAllocator,
    next_pd: u32,
    pds: BTreeSet<u32>,
    mrs: BTreeMap<u32, MrEntry>,
    mws: BTreeMap<u32, MwEntry>,
    /// Bound type 2 windows: number of the queue pair and index of the window.
    by_qp: BTreeSet<(u32, u32)>,
}

#[derive(Debug)]
struct MrEntry {
    mr: Arc<Mr>,
    /// Number of windows that are bound to the region.
    windows: u32,
}

#[derive(Debug)]
struct MwEntry {
    mw: Arc<Mw>,
    bound: Option<Binding>,
}

/// The numbers of objects.
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
    /// Maximum number of memory regions.
    pub const MAX_MR: usize = (1 << 19) - 1;
    /// Maximum number of memory windows.
    pub const MAX_MW: usize = (1 << 19) - 1;

    /// Creates an empty set. All randomness of keys comes from `seed`.
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

    /// Creates a protection domain.
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

    /// Frees a protection domain. Fails while another object holds it.
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

    /// Frees protection domains that other objects may still hold, with all regions and
    /// windows in them. Their keys permit nothing afterwards.
    pub fn free_pds(&self, pds: &BTreeSet<u32>) {
        let mut control = self.control();
        let mws = control.mws.iter();
        let mws = mws.filter(|(_, entry)| pds.contains(&entry.mw.pd().id()));
        let mws: Vec<u32> = mws.map(|(index, _)| *index).collect();
        for index in mws {
            control.unbind(index);
            control.mws.remove(&index);
            self.free(&mut control, index);
        }
        // A window is in the domain of its region, so no region has windows now.
        let mrs = control.mrs.iter();
        let mrs = mrs.filter(|(_, entry)| pds.contains(&entry.mr.pd().id()));
        let mrs: Vec<u32> = mrs.map(|(index, _)| *index).collect();
        for index in mrs {
            control.mrs.remove(&index);
            self.free(&mut control, index);
        }
        control.pds.retain(|pd| !pds.contains(pd));
    }

    /// Registers memory. The addresses of work requests and peers start at `iova`, or at 0
    /// if `access` has [`Access::ZERO_BASED`].
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

    /// Registers a null region, for local use only: its key leads from every address to
    /// [`NULL_MEMORY`](crate::NULL_MEMORY).
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

    /// Changes a region. If the call fails, nothing has changed. The key stays.
    ///
    /// While windows are bound to the region, the properties that they depend on cannot
    /// change.
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

    /// Deregisters a region. Fails while windows are bound to the region.
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

    /// Checks a local key. Returns the memory behind `addr`.
    ///
    /// `need` is [`Access::LOCAL_WRITE`] for memory that will be written, else empty.
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

    /// Checks a peer's key. Returns the memory behind `va`.
    ///
    /// `pd` and `qpn` are those of the queue pair that received the request.
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

    /// Checks a peer's key. Returns the whole memory behind the key, and its length.
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

    /// Returns the numbers of objects.
    pub fn counts(&self) -> Counts {
        let control = self.control();
        Counts {
            pds: control.pds.len(),
            mrs: control.mrs.len(),
            mws: control.mws.len(),
            bound_mws: control.mws.values().filter(|e| e.bound.is_some()).count(),
        }
    }

    /// Returns the numbers of all protection domains.
    pub fn pds(&self) -> Vec<u32> {
        self.control().pds.iter().copied().collect()
    }

    /// Returns all memory regions with their slots. A slot number reveals no key.
    pub fn numbered_mrs(&self) -> Vec<(u32, Arc<Mr>)> {
        let control = self.control();
        let mrs = control.mrs.iter();
        mrs.map(|(slot, e)| (*slot, Arc::clone(&e.mr))).collect()
    }

    /// Returns all memory regions in the order of their slots.
    pub fn mrs(&self) -> Vec<Arc<Mr>> {
        let control = self.control();
        control.mrs.values().map(|e| Arc::clone(&e.mr)).collect()
    }

    /// Returns all memory windows in the order of their slots.
    pub fn mws(&self) -> Vec<Arc<Mw>> {
        let control = self.control();
        control.mws.values().map(|e| Arc::clone(&e.mw)).collect()
    }

    #[inline]
    fn find(&self, role: KeyRole, key: u32) -> Result<View, AccessError> {
        let slot = self.table.get(self.permutation.index(key));
        let view = slot.map(|slot| slot.read().unwrap_or_else(|| self.wait_and_read(slot)));
        match view {
            // The key of a free slot is 0, which a peer can send.
            Some(view) if view.key == key && !view.users.is_empty() => Ok(view),
            _ => Err(AccessError::Unknown { role, key }),
        }
    }

    /// Reads a slot after waiting for its writer, whose thread may not be running.
    #[cold]
    fn wait_and_read(&self, slot: &Slot) -> View {
        let _no_writer = self.control();
        slot.read()
            .expect("no thread writes while this one holds the writers' lock")
    }

    /// Writes a slot. The caller holds the writers' lock.
    fn put(&self, index: u32, view: &View) {
        let slot = self.table.get(index);
        slot.expect("a key is allocated together with its slot")
            .write(view);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns the version of the table. A copy of a slot with another version is invalid.
    #[inline]
    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Allocates a key, its slot and memory for its object.
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
    /// Returns the entry of a region that is registered in this set.
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
