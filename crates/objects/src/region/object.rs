//! Protection domains, memory regions and memory windows: the handles of verbs.
//!
//! The [table](super::table) holds the data for checks of accesses.
//! [`Regions`](super::Regions) holds the relations between objects.

use core::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::error::Names;
use super::table::{Users, View};
use crate::error::VerbsError;
use crate::memory::MemRef;
use crate::verbs::Access;

/// A protection domain: `ibv_pd`. Domains are equal if their ids are.
#[derive(Debug)]
pub struct Pd {
    pub(super) id: u32,
}

impl Pd {
    /// Returns the number, which only distinguishes domains.
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

/// The properties of a region that re-registration can change.
#[derive(Clone, Debug)]
pub(super) struct MrState {
    pub(super) pd: Arc<Pd>,
    pub(super) memory: MemRef,
    pub(super) length: u64,
    pub(super) iova: u64,
    pub(super) access: Access,
    /// True for a null region.
    pub(super) null: bool,
}

impl MrState {
    /// Returns the properties of a null region.
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

    /// Checks and normalises the requested properties.
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
        let end_of_gpu = match self.memory.is_host() {
            true => u64::MAX,
            false => self.memory.addr() + self.memory.room(),
        };
        let ends = [
            ("address", self.memory.addr(), end_of_gpu),
            ("iova", self.iova, u64::MAX),
        ];
        for (what, start, most) in ends {
            if start.checked_add(self.length).is_none_or(|end| end > most) {
                return Err(VerbsError::invalid(format!(
                    "{} bytes from {what} {start:#x} exceed the address space",
                    self.length
                )));
            }
        }
        Ok(self)
    }

    /// Returns the slot content of a region with this key.
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
            // A region of all memory ends where the memory of a process ends.
            length: match self.null {
                true => self.length,
                false => self.length.min(self.memory.room()),
            },
            delta: self.memory.bits().wrapping_sub(self.iova),
        }
    }
}

/// Returns the unknown bits of access flags. Bits 20 to 29 are hints by the definition of
/// libibverbs, so they are never unknown.
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

    /// Returns the local key.
    pub fn lkey(&self) -> u32 {
        self.key
    }

    /// Returns the remote key, which equals the local key.
    pub fn rkey(&self) -> u32 {
        self.key
    }

    /// Returns the start of the memory, as the program counts addresses.
    pub fn memory(&self) -> MemRef {
        self.state().memory
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> u64 {
        self.state().length
    }

    /// Returns the start address, as work requests and peers count addresses.
    pub fn iova(&self) -> u64 {
        self.state().iova
    }

    /// Returns the permitted accesses.
    pub fn access(&self) -> Access {
        self.state().access
    }

    /// True if this is a null region, which has no memory.
    pub fn is_null(&self) -> bool {
        self.state().null
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> Arc<Pd> {
        Arc::clone(&self.state().pd)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, MrState> {
        self.state
            .lock()
            .expect("no code panics while it holds a memory region")
    }
}

/// The changes of a re-registration: `ibv_rereg_mr`. A field of `None` changes nothing.
#[derive(Clone, Debug, Default)]
pub struct Rereg {
    /// New memory, its length, and its start address for work requests and peers.
    pub translation: Option<(MemRef, u64, u64)>,
    /// New protection domain.
    pub pd: Option<Arc<Pd>>,
    /// New permissions.
    pub access: Option<Access>,
}

/// The kinds of memory windows. They differ in the queue pairs that may use them, and in the
/// ways to bind and invalidate them.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum MwKind {
    /// Usable by every queue pair of the protection domain. A verb binds it, any number of
    /// times.
    Type1,
    /// Usable by the queue pair that bound it.
    Type2A,
    /// Usable by the queue pair that bound it, if that is in the window's protection domain.
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
    /// Type 1: the key of the last posted bind.
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

    /// Returns the kind.
    pub fn kind(&self) -> MwKind {
        self.kind
    }

    /// Returns the present key: that of the last executed bind.
    pub fn rkey(&self) -> u32 {
        self.key.load(Ordering::Relaxed)
    }

    /// Returns the protection domain.
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
