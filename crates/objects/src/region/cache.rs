//! An engine's cache of the regions that it used last.
//!
//! Most packets use the same few regions. An engine keeps copies of their table slots. A
//! copy is valid as long as the table's version is the one it was made under. So a check
//! loads one number that rarely changes; it neither inverts the key's permutation nor reads
//! the slot.

use std::cell::Cell;

use super::Regions;
use super::error::{AccessError, KeyRole};
use super::object::Pd;
use super::table::{Users, View};
use crate::memory::MemRef;
use crate::verbs::Access;

const ENTRIES: usize = 16;

/// Copies of table slots. Each engine has its own cache.
#[derive(Debug, Default)]
pub struct KeyCache {
    entries: [Cell<Entry>; ENTRIES],
}

#[derive(Copy, Clone, Debug, Default)]
struct Entry {
    version: u64,
    view: View,
}

impl KeyCache {
    /// Does the same as [`Regions::local`].
    #[inline]
    pub fn local(
        &self,
        regions: &Regions,
        lkey: u32,
        pd: &Pd,
        need: Access,
        addr: u64,
        length: u32,
    ) -> Result<MemRef, AccessError> {
        let entry = self.entry(lkey).get();
        let length = u64::from(length);
        match entry.allows(regions, lkey, pd, Users::REGION, need, addr, length) {
            true => Ok(entry.view.place(addr)),
            false => self.look_up_local(regions, lkey, pd, need, addr, length),
        }
    }

    /// Does the same as [`Regions::remote`].
    #[inline]
    #[allow(clippy::too_many_arguments)] // those of `Regions::remote`
    pub fn remote(
        &self,
        regions: &Regions,
        rkey: u32,
        pd: &Pd,
        qpn: u32,
        need: Access,
        va: u64,
        length: u64,
    ) -> Result<MemRef, AccessError> {
        let entry = self.entry(rkey).get();
        match entry.allows(regions, rkey, pd, Users::REGION, need, va, length) {
            true => Ok(entry.view.place(va)),
            false => self.look_up_remote(regions, rkey, pd, qpn, need, va, length),
        }
    }

    /// Checks the key against the table, and caches the slot.
    #[inline(never)]
    fn look_up_local(
        &self,
        regions: &Regions,
        lkey: u32,
        pd: &Pd,
        need: Access,
        addr: u64,
        length: u64,
    ) -> Result<MemRef, AccessError> {
        let view = self.find(regions, KeyRole::Lkey, lkey)?;
        if !view.users.contains(Users::LOCAL) {
            return Err(AccessError::WindowAsLkey { key: lkey });
        }
        view.permit(KeyRole::Lkey, pd, 0, need)?;
        view.translate(KeyRole::Lkey, addr, length)
    }

    /// Checks the key against the table, and caches the slot.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)] // those of `Regions::remote`
    fn look_up_remote(
        &self,
        regions: &Regions,
        rkey: u32,
        pd: &Pd,
        qpn: u32,
        need: Access,
        va: u64,
        length: u64,
    ) -> Result<MemRef, AccessError> {
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
        // The upper 24 bits of a key are pseudorandom, so they spread the keys evenly.
        &self.entries[(key >> 8) as usize % ENTRIES]
    }
}

impl Entry {
    /// True if this is a valid copy of the key's slot and the slot allows the access. Keys
    /// of windows need more checks and are always looked up in the table.
    #[inline]
    #[allow(clippy::too_many_arguments)] // all inputs of one check
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
    fn deregistration_invalidates_the_cached_slot() {
        let regions = Regions::new([7; 32]);
        let cache = KeyCache::default();
        let pd = regions.alloc_pd();
        let mr = regions
            .register(
                &pd,
                MemRef::host(0x1000),
                0x1000,
                0x1000,
                Access::LOCAL_WRITE,
            )
            .unwrap();
        let local = |lkey| cache.local(&regions, lkey, &pd, Access::LOCAL_WRITE, 0x1800, 8);
        for _ in 0..3 {
            assert_eq!(local(mr.lkey()), Ok(MemRef::host(0x1800)));
        }
        regions.deregister(&mr).unwrap();
        assert!(local(mr.lkey()).is_err());
    }

    #[test]
    fn reregistration_invalidates_the_cached_slot() {
        let regions = Regions::new([7; 32]);
        let cache = KeyCache::default();
        let pd = regions.alloc_pd();
        let mr = regions
            .register(
                &pd,
                MemRef::host(0x1000),
                0x1000,
                0x1000,
                Access::LOCAL_WRITE,
            )
            .unwrap();
        let local = || cache.local(&regions, mr.lkey(), &pd, Access::LOCAL_WRITE, 0x1800, 8);
        assert_eq!(local(), Ok(MemRef::host(0x1800)));
        let change = super::super::Rereg {
            access: Some(Access::empty()),
            ..Default::default()
        };
        regions.reregister(&mr, &change).unwrap();
        assert!(local().is_err());
    }
}
