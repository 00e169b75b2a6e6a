//! Protection domains, memory regions and memory windows, as verbs see them.
//!
//! These are the handles. What the engine needs to check an access lies in the
//! [table](super::table); who uses what lies in [`Regions`](super::Regions).

use core::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::error::Names;
use super::table::{Users, View};
use crate::error::VerbsError;
use crate::memory::MemRef;
use crate::verbs::Access;

/// A protection domain: `ibv_pd`. Two are the same if their ids are.
#[derive(Debug)]
pub struct Pd {
    pub(super) id: u32,
}

impl Pd {
    /// Its number, of no meaning but to tell domains apart.
    #[inline]
    pub fn id(&self) -> u32 {
        self.id
    }
}

/// A memory region: `ibv_mr`.
#[derive(Debug)]
pub struct Mr {
    pub(super) index: u32,
    pub(super) key: u32,
    state: Mutex<MrState>,
}

/// What re-registration changes.
#[derive(Clone, Debug)]
pub(super) struct MrState {
    pub(super) pd: Arc<Pd>,
    pub(super) memory: MemRef,
    pub(super) length: u64,
    pub(super) iova: u64,
    pub(super) access: Access,
    /// Whether there is no memory at all.
    pub(super) null: bool,
}

impl MrState {
    pub(super) fn null(pd: &Arc<Pd>) -> MrState {
        MrState {
            pd: Arc::clone(pd),
            memory: MemRef::host(0),
            length: u64::MAX,
            iova: 0,
            access: Access::LOCAL_WRITE,
            null: true,
        }
    }

    /// What a region shall be, if it can be that.
    pub(super) fn checked(mut self) -> Result<MrState, VerbsError> {
        let unknown = unknown_access(self.access);
        if unknown != 0 {
            return Err(VerbsError::invalid(format!(
                "unknown access flags {unknown:#x}"
            )));
        }
        self.access = Access::from_bits_truncate(self.access.bits());
        let remote = self.access & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if !remote.is_empty() && !self.access.contains(Access::LOCAL_WRITE) {
            return Err(VerbsError::invalid(format!(
                "{} without LOCAL_WRITE",
                Names(remote)
            )));
        }
        if self.access.contains(Access::ZERO_BASED) {
            self.iova = 0;
        }
        for (what, start) in [("address", self.memory.addr), ("iova", self.iova)] {
            if start.checked_add(self.length).is_none() {
                return Err(VerbsError::invalid(format!(
                    "{} bytes from {what} {start:#x} exceed the address space",
                    self.length
                )));
            }
        }
        Ok(self)
    }

    /// What the slot of a region with this key says.
    pub(super) fn view(&self, key: u32) -> View {
        View {
            key,
            users: match self.null {
                true => Users::REGION.union(Users::NULL),
                false => Users::REGION,
            },
            pd: self.pd.id,
            qpn: 0,
            access: self.access,
            start: self.iova,
            length: self.length,
            delta: self.memory.addr.wrapping_sub(self.iova),
            space: self.memory.space,
        }
    }
}

/// Access bits that are neither known nor, as libibverbs declares some to be,
/// mere hints.
pub(crate) fn unknown_access(access: Access) -> u32 {
    const HINTS: u32 = 0x3ff0_0000;
    access.bits() & !(Access::all().bits() | HINTS)
}

impl Mr {
    pub(super) fn new(index: u32, key: u32, state: MrState) -> Mr {
        Mr {
            index,
            key,
            state: Mutex::new(state),
        }
    }

    /// The key for this side's own use.
    pub fn lkey(&self) -> u32 {
        self.key
    }

    /// The key for peers: the same.
    pub fn rkey(&self) -> u32 {
        self.key
    }

    /// Returns the start of the memory, as the program counts addresses.
    pub fn memory(&self) -> MemRef {
        self.state().memory
    }

    /// Its size in bytes.
    pub fn length(&self) -> u64 {
        self.state().length
    }

    /// Where the memory starts, as work requests and peers count addresses.
    pub fn iova(&self) -> u64 {
        self.state().iova
    }

    /// What may be done to it.
    pub fn access(&self) -> Access {
        self.state().access
    }

    /// Whether it is a null region, which has no memory.
    pub fn is_null(&self) -> bool {
        self.state().null
    }

    /// Its protection domain.
    pub fn pd(&self) -> Arc<Pd> {
        Arc::clone(&self.state().pd)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, MrState> {
        self.state
            .lock()
            .expect("no code panics while it holds a memory region")
    }
}

/// What to change about a region: `ibv_rereg_mr`. What is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct Rereg {
    /// Other memory: program address, length, and the address that work requests and peers use.
    pub translation: Option<(MemRef, u64, u64)>,
    /// Another protection domain.
    pub pd: Option<Arc<Pd>>,
    /// Other permissions.
    pub access: Option<Access>,
}

/// The kinds of memory windows, which differ in who may use them and how they
/// are bound and taken back.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum MwKind {
    /// For every queue pair of the protection domain. Bound by a verb, again and again.
    Type1,
    /// For the queue pair that bound it.
    Type2A,
    /// For the queue pair that bound it, as long as its protection domain is the window's.
    Type2B,
}

impl fmt::Display for MwKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MwKind::Type1 => "type 1",
            MwKind::Type2A => "type 2A",
            MwKind::Type2B => "type 2B",
        })
    }
}

/// A memory window: `ibv_mw`.
#[derive(Debug)]
pub struct Mw {
    pub(super) index: u32,
    kind: MwKind,
    pd: Arc<Pd>,
    key: AtomicU32,
    /// For type 1: the key that the last posted bind will give it.
    offered: AtomicU32,
}

impl Mw {
    pub(super) fn new(index: u32, key: u32, kind: MwKind, pd: Arc<Pd>) -> Mw {
        Mw {
            index,
            kind,
            pd,
            key: AtomicU32::new(key),
            offered: AtomicU32::new(key),
        }
    }

    /// Its kind.
    pub fn kind(&self) -> MwKind {
        self.kind
    }

    /// The key it has now: what the last executed bind gave it.
    pub fn rkey(&self) -> u32 {
        self.key.load(Ordering::Relaxed)
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    pub(super) fn set_key(&self, key: u32) {
        self.key.store(key, Ordering::Relaxed);
    }

    pub(super) fn offered(&self) -> u32 {
        self.offered.load(Ordering::Relaxed)
    }

    pub(super) fn offer(&self, key: u32) {
        self.offered.store(key, Ordering::Relaxed);
    }
}
