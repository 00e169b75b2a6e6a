//! What an engine remembers of the regions it used last.
//!
//! Most packets touch the same few regions over and over. An engine keeps
//! copies of their slots, each valid only as long as nothing in the table has
//! changed since: one load of a number that hardly ever changes, instead of
//! undoing the key's permutation and reading the slot.

use std::cell::Cell;

use super::Regions;
use super::error::{AccessError, KeyRole};
use super::object::Pd;
use super::table::{Users, View};
use crate::verbs::Access;

const ENTRIES: usize = 16;

/// An engine's copies. Not shared: each engine has its own.
#[derive(Default)]
pub(crate) struct KeyCache {
    entries: [Cell<Entry>; ENTRIES],
}

#[derive(Copy, Clone, Default)]
struct Entry {
    version: u64,
    view: View,
}

impl KeyCache {
    /// As [`Regions::local`].
    #[inline]
    pub(crate) fn local(
        &self,
        regions: &Regions,
        lkey: u32,
        pd: &Pd,
        need: Access,
        addr: u64,
        length: u32,
    ) -> Result<u64, AccessError> {
        let entry = self.entry(lkey).get();
        let length = u64::from(length);
        match entry.allows(regions, lkey, pd, Users::REGION, need, addr, length) {
            true => Ok(addr.wrapping_add(entry.view.delta)),
            false => self.local_anew(regions, lkey, pd, need, addr, length),
        }
    }

    /// As [`Regions::remote`].
    #[inline]
    #[allow(clippy::too_many_arguments)] // the same as there, and the table
    pub(crate) fn remote(
        &self,
        regions: &Regions,
        rkey: u32,
        pd: &Pd,
        qpn: u32,
        need: Access,
        va: u64,
        length: u64,
    ) -> Result<u64, AccessError> {
        let entry = self.entry(rkey).get();
        match entry.allows(regions, rkey, pd, Users::REGION, need, va, length) {
            true => Ok(va.wrapping_add(entry.view.delta)),
            false => self.remote_anew(regions, rkey, pd, qpn, need, va, length),
        }
    }

    /// What the table says, and why not.
    #[inline(never)]
    fn local_anew(
        &self,
        regions: &Regions,
        lkey: u32,
        pd: &Pd,
        need: Access,
        addr: u64,
        length: u64,
    ) -> Result<u64, AccessError> {
        let view = self.find(regions, KeyRole::Lkey, lkey)?;
        if !view.users.contains(Users::LOCAL) {
            return Err(AccessError::WindowAsLkey { key: lkey });
        }
        view.permit(KeyRole::Lkey, pd, 0, need)?;
        view.translate(KeyRole::Lkey, addr, length)
    }

    #[inline(never)]
    #[allow(clippy::too_many_arguments)] // the same as `remote`
    fn remote_anew(
        &self,
        regions: &Regions,
        rkey: u32,
        pd: &Pd,
        qpn: u32,
        need: Access,
        va: u64,
        length: u64,
    ) -> Result<u64, AccessError> {
        let view = self.find(regions, KeyRole::Rkey, rkey)?;
        view.permit(KeyRole::Rkey, pd, qpn, need)?;
        view.translate(KeyRole::Rkey, va, length)
    }

    fn find(&self, regions: &Regions, role: KeyRole, key: u32) -> Result<View, AccessError> {
        let version = regions.version();
        let view = regions.find(role, key)?;
        self.entry(key).set(Entry { version, view });
        Ok(view)
    }

    #[inline]
    fn entry(&self, key: u32) -> &Cell<Entry> {
        // The upper bits of a key are as good as random.
        &self.entries[(key >> 8) as usize % ENTRIES]
    }
}

impl Entry {
    /// Whether this is a copy of the key's slot that is still right, and says yes.
    /// Windows, which ask for more, are always looked up.
    #[inline]
    #[allow(clippy::too_many_arguments)] // one question
    fn allows(
        &self,
        regions: &Regions,
        key: u32,
        pd: &Pd,
        users: Users,
        need: Access,
        address: u64,
        length: u64,
    ) -> bool {
        let offset = address.wrapping_sub(self.view.start);
        self.view.key == key
            && self.version == regions.version()
            && self.view.users == users
            && self.view.pd == pd.id()
            && self.view.access.contains(need)
            && offset <= self.view.length
            && length <= self.view.length - offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_region_is_gone_as_soon_as_it_is_deregistered() {
        let regions = Regions::new([7; 32]);
        let cache = KeyCache::default();
        let pd = regions.alloc_pd();
        let mr = regions
            .register(&pd, 0x1000, 0x1000, 0x1000, Access::LOCAL_WRITE)
            .unwrap();
        let local = |lkey| cache.local(&regions, lkey, &pd, Access::LOCAL_WRITE, 0x1800, 8);
        for _ in 0..3 {
            assert_eq!(local(mr.lkey()), Ok(0x1800));
        }
        regions.deregister(&mr).unwrap();
        assert!(local(mr.lkey()).is_err());
    }

    #[test]
    fn a_cached_region_changes_as_soon_as_it_is_reregistered() {
        let regions = Regions::new([7; 32]);
        let cache = KeyCache::default();
        let pd = regions.alloc_pd();
        let mr = regions
            .register(&pd, 0x1000, 0x1000, 0x1000, Access::LOCAL_WRITE)
            .unwrap();
        let local = || cache.local(&regions, mr.lkey(), &pd, Access::LOCAL_WRITE, 0x1800, 8);
        assert_eq!(local(), Ok(0x1800));
        let change = super::super::Rereg {
            access: Some(Access::empty()),
            ..Default::default()
        };
        regions.reregister(&mr, &change).unwrap();
        assert!(local().is_err());
    }
}
