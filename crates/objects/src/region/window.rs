//! Memory windows: keys that give a peer access to part of a region.
//!
//! Work requests bind and invalidate windows. The engine calls [`Regions::bind`] and
//! [`Regions::invalidate`] when it executes such a work request.
//!
//! A bind gives the window a new key: the upper 24 bits stay, the low 8 bits are those of
//! [`BindMw::rkey`]. The program chooses them for a type 2 window. The adapter chooses them
//! for a type 1 window, and `ibv_bind_mw` reports the new key when it posts the bind. So the
//! caller that posts takes the key from [`Regions::next_type1_rkey`]. The window has the key
//! of the work request once the bind is executed. Until then, and if the bind fails, the
//! window keeps its old key and memory.

use std::sync::Arc;

use super::error::{AccessError, KeyRole};
use super::object::{Mw, MwKind, Pd};
use super::table::{Users, View};
use super::{Control, MwEntry, NewKey, Regions, unknown_access};
use crate::error::VerbsError;
use crate::key;
use crate::verbs::{Access, BindMw};

/// Permissions of a region that bound windows can depend on.
pub(super) const NEEDED: Access = Access::MW_BIND.union(Access::LOCAL_WRITE).union(FLUSH);

const WRITING: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);
const FLUSH: Access = Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT);
/// Permissions that a window can grant.
const GRANTED: Access = WRITING.union(Access::REMOTE_READ).union(FLUSH);

/// The region that a window is bound to and, for type 2, the queue pair.
#[derive(Debug)]
pub(super) struct Binding {
    mr: u32,
    qpn: Option<u32>,
}

impl Regions {
    /// Creates a window that is not bound.
    pub fn alloc_mw(&self, pd: &Arc<Pd>, kind: MwKind) -> Result<Arc<Mw>, VerbsError> {
        let mut control = self.control();
        if control.mws.len() >= Regions::MAX_MW {
            let why = format!("{} memory windows exist", control.mws.len());
            return Err(VerbsError::NoMemory(why));
        }
        let NewKey { index, key } = self.new_key(&mut control)?;
        let mw = Arc::new(Mw::new(index, key, kind, Arc::clone(pd)));
        self.put(index, &unbound(&mw, key));
        let entry = MwEntry {
            mw: Arc::clone(&mw),
            bound: None,
        };
        control.mws.insert(index, entry);
        Ok(mw)
    }

    /// Frees a window, bound or not.
    pub fn dealloc_mw(&self, mw: &Arc<Mw>) -> Result<(), VerbsError> {
        let mut control = self.control();
        if control.mw(mw).is_none() {
            return Err(VerbsError::NotFound(format!(
                "memory window {:#x} is not allocated",
                mw.rkey()
            )));
        }
        control.unbind(mw.index);
        control.mws.remove(&mw.index);
        self.free(&mut control, mw.index);
        Ok(())
    }

    /// Returns the key for [`BindMw::rkey`] of the next bind of a type 1 window. It differs
    /// from the results of the last 255 calls.
    pub fn next_type1_rkey(&self, mw: &Mw) -> u32 {
        let control = self.control();
        let key = control.keys.next_low_byte(mw.offered());
        mw.offer(key);
        key
    }

    /// Binds a window on a queue pair with the given domain and number. Returns the window's
    /// new key. If the bind fails, nothing has changed.
    pub fn bind(&self, pd: &Pd, qpn: u32, bind: &BindMw) -> Result<u32, AccessError> {
        let mut control = self.control();
        let mw = &bind.mw;
        control.check_window(pd, bind)?;
        let view = if bind.length == 0 {
            unbound(mw, bind.rkey)
        } else {
            self.bound_view(&control, qpn, bind)?
        };
        control.unbind(mw.index);
        if let Some(mr) = bind.mr.as_ref().filter(|_| bind.length > 0) {
            let qpn = (mw.kind() != MwKind::Type1).then_some(qpn);
            control.bind(mw.index, Binding { mr: mr.index, qpn });
        }
        self.put(mw.index, &view);
        mw.set_key(bind.rkey);
        Ok(bind.rkey)
    }

    /// Invalidates a key for a queue pair with the given domain and number: a local
    /// invalidate, or (`remote`) a peer's SEND with invalidate. Only a bound type 2 window
    /// can be invalidated. It keeps its key, which permits nothing until the next bind.
    pub fn invalidate(&self, key: u32, pd: &Pd, qpn: u32, remote: bool) -> Result<(), AccessError> {
        let role = if remote { KeyRole::Rkey } else { KeyRole::Lkey };
        // No thread writes while this one holds the lock, so `find` does not wait for it.
        let mut control = self.control();
        let view = self.find(role, key)?;
        if !view.users.contains(Users::SAME_QP) {
            let owner = match view.users.contains(Users::WINDOW) {
                true => "type 1 window",
                false => "memory region",
            };
            return Err(AccessError::NotInvalidatable { key, owner });
        }
        view.permit(role, pd, qpn, Access::empty())?;
        self.unbind(&mut control, self.permutation.index(key));
        Ok(())
    }

    /// Unbinds all type 2 windows of a destroyed queue pair, so that the next queue pair with
    /// its number does not inherit them. Returns the number of windows.
    pub fn release_windows_of(&self, qpn: u32) -> usize {
        let mut control = self.control();
        let bound = control.by_qp.range((qpn, 0)..=(qpn, u32::MAX));
        let indices: Vec<u32> = bound.map(|&(_, index)| index).collect();
        for &index in &indices {
            self.unbind(&mut control, index);
        }
        indices.len()
    }

    /// Returns the slot content of a window after the bind.
    fn bound_view(&self, control: &Control, qpn: u32, bind: &BindMw) -> Result<View, AccessError> {
        let (mw, length) = (&bind.mw, bind.length);
        let Some(mr) = &bind.mr else {
            let key = mw.rkey();
            return Err(AccessError::NoRegion { key, length });
        };
        let (role, key) = (KeyRole::Lkey, mr.key);
        if control.mr(mr).is_err() {
            return Err(AccessError::Unknown { role, key });
        }
        let region = self.find(role, key)?;
        region.permit(role, mw.pd(), 0, needed(bind.access))?;
        let program = region.translate(role, bind.addr, length)?;
        let start = match bind.access.contains(Access::ZERO_BASED) {
            true => 0,
            false => bind.addr,
        };
        Ok(View {
            qpn,
            access: bind.access.intersection(GRANTED),
            start,
            length,
            delta: program.bits().wrapping_sub(start),
            ..unbound(mw, bind.rkey)
        })
    }

    /// Unbinds a window. Its key stays known and permits nothing.
    fn unbind(&self, control: &mut Control, index: u32) {
        control.unbind(index);
        if let Some(entry) = control.mws.get(&index) {
            let view = unbound(&entry.mw, entry.mw.rkey());
            self.put(index, &view);
        }
    }
}

impl Control {
    /// Returns the entry of a window that is allocated in this set.
    fn mw(&self, mw: &Arc<Mw>) -> Option<&MwEntry> {
        let entry = self.mws.get(&mw.index);
        entry.filter(|e| Arc::ptr_eq(&e.mw, mw))
    }

    /// Checks a bind without its region.
    fn check_window(&self, pd: &Pd, bind: &BindMw) -> Result<(), AccessError> {
        let (mw, asked) = (&bind.mw, bind.rkey);
        let (role, key) = (KeyRole::Window, mw.rkey());
        let entry = self.mw(mw).ok_or(AccessError::Unknown { role, key })?;
        if mw.pd().id() != pd.id() {
            return Err(AccessError::OtherDomain { role, key });
        }
        if key::upper(asked) != key::upper(key) {
            return Err(AccessError::WrongNewKey { key, asked });
        }
        let unknown = unknown_access(bind.access);
        if unknown != 0 {
            return Err(AccessError::UnknownFlags { key, unknown });
        }
        if mw.kind() == MwKind::Type1 {
            if bind.access.contains(Access::ZERO_BASED) {
                return Err(AccessError::ZeroBasedType1 { key });
            }
        } else if entry.bound.is_some() {
            return Err(AccessError::AlreadyBound { key });
        } else if bind.length == 0 {
            return Err(AccessError::NothingToBind { key });
        }
        Ok(())
    }

    fn bind(&mut self, index: u32, binding: Binding) {
        if let Some(mr) = self.mrs.get_mut(&binding.mr) {
            mr.windows += 1;
        }
        if let Some(qpn) = binding.qpn {
            self.by_qp.insert((qpn, index));
        }
        if let Some(mw) = self.mws.get_mut(&index) {
            mw.bound = Some(binding);
        }
    }

    pub(super) fn unbind(&mut self, index: u32) {
        let entry = self.mws.get_mut(&index);
        let Some(binding) = entry.and_then(|entry| entry.bound.take()) else {
            return;
        };
        if let Some(mr) = self.mrs.get_mut(&binding.mr) {
            mr.windows -= 1;
        }
        if let Some(qpn) = binding.qpn {
            self.by_qp.remove(&(qpn, index));
        }
    }
}

/// Returns the slot content of a window that is not bound.
fn unbound(mw: &Mw, key: u32) -> View {
    View {
        key,
        users: Users::of(mw.kind()),
        pd: mw.pd().id(),
        ..View::default()
    }
}

/// Returns the permissions that a region needs for a window with the permissions `asked`.
fn needed(asked: Access) -> Access {
    let mut needed = Access::MW_BIND | asked.intersection(FLUSH);
    if asked.intersects(WRITING) {
        needed |= Access::LOCAL_WRITE;
    }
    needed
}
