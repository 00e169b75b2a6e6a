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
        let view = self.find(regions, KeyRole::Lkey, lkey)?;
        if !view.users.contains(Users::LOCAL) {
            return Err(AccessError::WindowAsLkey { key: lkey });
        }
        view.permit(KeyRole::Lkey, pd, 0, need)?;
        view.translate(KeyRole::Lkey, addr, u64::from(length))
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
        let view = self.find(regions, KeyRole::Rkey, rkey)?;
        view.permit(KeyRole::Rkey, pd, qpn, need)?;
        view.translate(KeyRole::Rkey, va, length)
    }

    #[inline]
    fn find(&self, regions: &Regions, role: KeyRole, key: u32) -> Result<View, AccessError> {
        let version = regions.version();
        // The upper bits of a key are as good as random.
        let slot = &self.entries[(key >> 8) as usize % ENTRIES];
        let entry = slot.get();
        if entry.version == version && entry.view.key == key {
            return Ok(entry.view);
        }
        let view = regions.find(role, key)?;
        slot.set(Entry { version, view });
        Ok(view)
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
