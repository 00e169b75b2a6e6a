//! Tests of protection domains and regions. [`bind`] and [`window`] test windows.

use std::sync::atomic::Ordering;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::memory::NULL_MEMORY;
use crate::verbs::BindMw;

mod bind;
mod window;

const RW: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ);

const QPN: u32 = 0x01_0002;

struct Fixture {
    regions: Regions,
    pd: Arc<Pd>,
    other_pd: Arc<Pd>,
}

impl Fixture {
    fn new() -> Fixture {
        let regions = Regions::new([42; 32]);
        let (pd, other_pd) = (regions.alloc_pd(), regions.alloc_pd());
        Fixture {
            regions,
            pd,
            other_pd,
        }
    }

    /// 0x1000 bytes at 0x10000, which peers call 0x50000.
    fn mr(&self, access: Access) -> Arc<Mr> {
        let mr = self
            .regions
            .register(&self.pd, MemRef::host(0x1_0000), 0x1000, 0x5_0000, access);
        mr.expect("registered")
    }

    fn remote(&self, rkey: u32, need: Access, va: u64, len: u64) -> Result<MemRef, AccessError> {
        self.regions.remote(rkey, &self.pd, QPN, need, va, len)
    }

    fn local(&self, lkey: u32, need: Access, addr: u64, len: u32) -> Result<MemRef, AccessError> {
        self.regions.local(lkey, &self.pd, need, addr, len)
    }
}

fn words<T>(result: Result<T, AccessError>) -> String {
    result.err().expect("refused").to_string()
}

#[test]
fn domain_in_use_cannot_be_freed() {
    let Fixture { regions, pd, .. } = Fixture::new();
    let mr = regions.register(&pd, MemRef::host(0), 10, 0, RW).unwrap();
    let (pd, error) = regions.dealloc_pd(pd).unwrap_err();
    assert!(matches!(error, VerbsError::Busy(_)), "{error}");
    regions.deregister(&mr).unwrap();
    drop(mr);
    regions.dealloc_pd(pd).unwrap();
    assert_eq!(regions.counts().pds, 1);
}

#[test]
fn freed_domain_takes_its_regions_and_windows_along() {
    let f = Fixture::new();
    let mr = f.mr(RW | Access::MW_BIND);
    let kept = f.regions.alloc_mw(&f.other_pd, MwKind::Type1).unwrap();
    let mw = f.regions.alloc_mw(&f.pd, MwKind::Type1).unwrap();
    let bind = BindMw {
        mw: Arc::clone(&mw),
        rkey: f.regions.next_type1_rkey(&mw),
        mr: Some(Arc::clone(&mr)),
        addr: mr.iova(),
        length: 8,
        access: Access::REMOTE_READ,
    };
    f.regions.bind(&f.pd, QPN, &bind).unwrap();
    f.regions.free_pds(&BTreeSet::from([f.pd.id()]));
    let counts = f.regions.counts();
    assert_eq!((counts.mrs, counts.mws, counts.bound_mws), (0, 1, 0));
    assert!(f.local(mr.lkey(), Access::empty(), mr.iova(), 1).is_err());
    assert!(
        f.remote(mw.rkey(), Access::REMOTE_READ, mr.iova(), 1)
            .is_err()
    );
    let unknown = f.regions.deregister(&mr).unwrap_err();
    assert!(matches!(unknown, VerbsError::NotFound(_)), "{unknown}");
    assert!(f.regions.dealloc_mw(&mw).is_err());
    f.regions.dealloc_mw(&kept).unwrap();
}

#[test]
fn null_region_maps_every_local_address_and_no_remote_one() {
    let f = Fixture::new();
    let mr = f.regions.register_null(&f.pd).unwrap();
    let cache = KeyCache::default();
    for addr in [0, 0x1234, u64::MAX] {
        let need = Access::LOCAL_WRITE;
        assert_eq!(
            f.local(mr.lkey(), need, addr, 4096),
            Ok(MemRef::host(NULL_MEMORY))
        );
        for _ in 0..2 {
            let cached = cache.local(&f.regions, mr.lkey(), &f.pd, need, addr, 4096);
            assert_eq!(cached, Ok(MemRef::host(NULL_MEMORY)));
        }
    }
    assert!(f.remote(mr.rkey(), Access::REMOTE_READ, 0, 8).is_err());
    assert!(f.regions.reregister(&mr, &Rereg::default()).is_err());
    f.regions.deregister(&mr).unwrap();
    assert!(f.local(mr.lkey(), Access::empty(), 0, 1).is_err());
}

#[test]
fn region_without_handle_stays_registered() {
    let f = Fixture::new();
    let key = f.mr(RW).rkey();
    assert!(f.remote(key, Access::REMOTE_READ, 0x5_0000, 1).is_ok());
    assert!(f.regions.dealloc_pd(f.pd).is_err());
}

#[test]
fn domain_ids_in_use_are_skipped_when_numbers_wrap() {
    let f = Fixture::new();
    f.regions.control().next_pd = u32::MAX;
    let ids = [f.regions.alloc_pd().id(), f.regions.alloc_pd().id()];
    assert_eq!(ids, [u32::MAX, 3]);
}

#[test]
fn region_reports_its_properties() {
    let f = Fixture::new();
    let mr = f.mr(RW);
    assert_eq!(mr.lkey(), mr.rkey());
    assert_eq!(
        (mr.memory(), mr.length(), mr.iova()),
        (MemRef::host(0x1_0000), 0x1000, 0x5_0000)
    );
    assert_eq!((mr.access(), mr.pd().id()), (RW, f.pd.id()));
    assert_eq!(f.regions.mrs().len(), 1);
    assert_eq!(f.regions.counts().mrs, 1);
}

#[test]
fn remote_write_and_atomic_need_local_write() {
    let f = Fixture::new();
    let register = |access| f.regions.register(&f.pd, MemRef::host(0), 8, 0, access);
    for remote in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        assert!(matches!(register(remote), Err(VerbsError::Invalid(_))));
        assert!(register(remote | Access::LOCAL_WRITE).is_ok());
    }
    let error = register(Access::REMOTE_WRITE).unwrap_err();
    let expected = "invalid argument: REMOTE_WRITE without LOCAL_WRITE";
    assert_eq!(error.to_string(), expected);
    assert!(register(Access::REMOTE_READ).is_ok());
}

#[test]
fn unknown_access_bits_are_refused_unless_they_are_hints() {
    let f = Fixture::new();
    let register = |bits| {
        let access = Access::from_bits_retain(bits);
        f.regions.register(&f.pd, MemRef::host(0), 8, 0, access)
    };
    for bit in [10, 19, 30, 31] {
        assert!(matches!(register(1 << bit), Err(VerbsError::Invalid(_))));
    }
    assert_eq!(register(1 << 25).unwrap().access(), Access::empty());
}

#[test]
fn range_beyond_the_address_space_is_refused() {
    let f = Fixture::new();
    let register = |addr, length, iova| {
        f.regions
            .register(&f.pd, MemRef::host(addr), length, iova, RW)
    };
    assert!(register(u64::MAX, 1, 0).is_err());
    assert!(register(0, 1, u64::MAX).is_err());
    assert!(register(u64::MAX - 1, 1, u64::MAX - 1).is_ok());
    assert!(register(0, u64::MAX, 0).is_ok());
}

#[test]
fn zero_based_region_starts_at_address_0() {
    let f = Fixture::new();
    let mr = f.mr(RW | Access::ZERO_BASED);
    assert_eq!(mr.iova(), 0);
    assert_eq!(
        f.remote(mr.rkey(), RW, 0, 0x1000),
        Ok(MemRef::host(0x1_0000))
    );
    assert_eq!(f.local(mr.lkey(), RW, 0xfff, 1), Ok(MemRef::host(0x1_0fff)));
    assert!(f.remote(mr.rkey(), RW, 0x5_0000, 1).is_err());
}

#[test]
fn addresses_are_translated_and_ranges_checked() {
    let f = Fixture::new();
    let mr = f.mr(RW);
    let at = |va, len| f.remote(mr.rkey(), Access::REMOTE_READ, va, len);
    assert_eq!(at(0x5_0000, 0x1000), Ok(MemRef::host(0x1_0000)));
    assert_eq!(at(0x5_0123, 0xedd), Ok(MemRef::host(0x1_0123)));
    assert!(at(0x4_ffff, 1).is_err());
    assert!(at(0x5_0001, 0x1000).is_err());
    assert!(at(0x5_0000, u64::MAX).is_err());
    assert!(at(u64::MAX, 2).is_err());
    assert_eq!(
        words(at(0x5_0fff, 2)),
        format!("rkey {:#x} does not cover 0x50fff+2", mr.rkey())
    );
    assert_eq!(
        words(f.local(mr.lkey(), Access::empty(), 0x1_0000, 4096)),
        format!("lkey {:#x} does not cover 0x10000+4096", mr.lkey())
    );
}

#[test]
fn access_needs_all_permissions() {
    let f = Fixture::new();
    let mr = f.mr(Access::LOCAL_WRITE | Access::REMOTE_READ);
    let at = |need| f.remote(mr.rkey(), need, 0x5_0000, 8);
    assert!(at(Access::REMOTE_READ).is_ok());
    assert_eq!(
        words(at(RW | Access::REMOTE_ATOMIC)),
        format!(
            "rkey {:#x} does not allow REMOTE_WRITE | REMOTE_ATOMIC",
            mr.rkey()
        )
    );
    let read_only = f.mr(Access::empty());
    assert!(
        f.local(read_only.lkey(), Access::empty(), 0x5_0000, 8)
            .is_ok()
    );
    assert_eq!(
        words(f.local(read_only.lkey(), Access::LOCAL_WRITE, 0x5_0000, 8)),
        format!("lkey {:#x} does not allow LOCAL_WRITE", read_only.lkey())
    );
}

#[test]
fn key_of_another_domain_is_refused() {
    let f = Fixture::new();
    let key = f.mr(RW).rkey();
    let remote = f.regions.remote(key, &f.other_pd, QPN, RW, 0x5_0000, 8);
    let expected = format!("rkey {key:#x} belongs to another protection domain");
    assert_eq!(words(remote), expected);
    let local = f.regions.local(key, &f.other_pd, RW, 0x5_0000, 8);
    let expected = format!("lkey {key:#x} belongs to another protection domain");
    assert_eq!(words(local), expected);
}

#[test]
fn a_key_that_differs_in_one_bit_is_unknown() {
    let f = Fixture::new();
    let key = f.mr(RW).rkey();
    for bit in 0..32 {
        let wrong = key ^ 1 << bit;
        assert_eq!(
            words(f.remote(wrong, Access::empty(), 0x5_0000, 1)),
            format!("rkey {wrong:#x} is unknown")
        );
    }
}

#[test]
fn key_zero_is_unknown_although_free_slots_hold_it() {
    let f = Fixture::new();
    let index = f.regions.permutation.index(0);
    f.regions.table.make(index).unwrap();
    let slot = f.regions.table.get(index).unwrap();
    assert_eq!(slot.read().unwrap().key, 0);
    let got = f.remote(0, Access::empty(), 0, 0);
    assert_eq!(words(got), "rkey 0x0 is unknown");
}

#[test]
#[allow(clippy::disallowed_methods)] // a test may bring threads
fn lookup_waits_for_a_writer_that_is_not_scheduled() {
    let f = Fixture::new();
    let mr = f.mr(RW);
    let slot = f.regions.table.get(mr.index).unwrap();
    thread::scope(|scope| {
        let writer = f.regions.control();
        let version = slot.version.fetch_add(1, Ordering::Relaxed);
        let reader = scope.spawn(|| f.remote(mr.rkey(), RW, 0x5_0000, 8));
        for _ in 0..1000 {
            thread::yield_now();
        }
        assert!(!reader.is_finished());
        slot.version.store(version + 2, Ordering::Release);
        drop(writer);
        assert_eq!(reader.join().expect("no panic"), Ok(MemRef::host(0x1_0000)));
    });
}

#[test]
fn a_deregistered_key_is_unknown_and_cannot_be_deregistered_again() {
    let f = Fixture::new();
    let mr = f.mr(RW);
    f.regions.deregister(&mr).unwrap();
    assert_eq!(
        words(f.remote(mr.rkey(), RW, 0x5_0000, 8)),
        format!("rkey {:#x} is unknown", mr.rkey())
    );
    let again = f.regions.deregister(&mr);
    assert!(matches!(again, Err(VerbsError::NotFound(_))), "{again:?}");
    let rereg = f.regions.reregister(&mr, &Rereg::default());
    assert!(matches!(rereg, Err(VerbsError::NotFound(_))), "{rereg:?}");
    assert_eq!(f.regions.counts().mrs, 0);
}

#[test]
fn a_region_of_another_table_is_not_found() {
    let (f, stranger) = (Fixture::new(), Fixture::new());
    f.mr(RW);
    let got = f.regions.deregister(&stranger.mr(RW));
    assert!(matches!(got, Err(VerbsError::NotFound(_))), "{got:?}");
}

#[test]
fn reregistration_changes_properties_and_keeps_the_key() {
    let f = Fixture::new();
    let mr = f.mr(RW);
    let key = mr.rkey();
    let change = Rereg {
        translation: Some((MemRef::host(0x2_0000), 0x10, 0x9000)),
        pd: Some(Arc::clone(&f.other_pd)),
        access: Some(Access::REMOTE_READ),
    };
    f.regions.reregister(&mr, &change).unwrap();
    assert_eq!(mr.rkey(), key);
    assert_eq!(
        (mr.memory(), mr.length(), mr.iova()),
        (MemRef::host(0x2_0000), 0x10, 0x9000)
    );
    assert_eq!(mr.pd().id(), f.other_pd.id());
    let at = |need| f.regions.remote(key, &f.other_pd, QPN, need, 0x9000, 0x10);
    assert_eq!(at(Access::REMOTE_READ), Ok(MemRef::host(0x2_0000)));
    assert!(at(Access::REMOTE_WRITE).is_err());
    assert!(f.remote(key, Access::REMOTE_READ, 0x9000, 0x10).is_err());
}

#[test]
fn failed_reregistration_changes_nothing() {
    let f = Fixture::new();
    let mr = f.mr(RW);
    let change = Rereg {
        translation: Some((MemRef::host(0x2_0000), 0x10, 0x9000)),
        pd: Some(Arc::clone(&f.other_pd)),
        access: Some(Access::REMOTE_WRITE), // without LOCAL_WRITE
    };
    assert!(f.regions.reregister(&mr, &change).is_err());
    assert_eq!((mr.memory(), mr.access()), (MemRef::host(0x1_0000), RW));
    assert_eq!(
        f.remote(mr.rkey(), RW, 0x5_0000, 0x1000),
        Ok(MemRef::host(0x1_0000))
    );
}

#[test]
fn remote_whole_returns_the_whole_region() {
    let f = Fixture::new();
    let key = f.mr(Access::FLUSH_GLOBAL).rkey();
    let whole = |pd, need| f.regions.remote_whole(key, pd, QPN, need);
    let (global, persistent) = (Access::FLUSH_GLOBAL, Access::FLUSH_PERSISTENT);
    assert_eq!(whole(&f.pd, global), Ok((MemRef::host(0x1_0000), 0x1000)));
    assert!(whole(&f.pd, persistent).is_err());
    assert!(whole(&f.other_pd, global).is_err());
}

#[test]
fn maximum_numbers_of_regions_and_windows_fit_at_once() {
    let f = Fixture::new();
    for _ in 0..Regions::MAX_MR {
        f.mr(RW);
    }
    let one_more = f.regions.register(&f.pd, MemRef::host(0), 1, 0, RW);
    assert!(matches!(one_more, Err(VerbsError::NoMemory(_))));
    for _ in 0..Regions::MAX_MW {
        f.regions.alloc_mw(&f.pd, MwKind::Type2B).unwrap();
    }
    let one_more = f.regions.alloc_mw(&f.pd, MwKind::Type1);
    assert!(matches!(one_more, Err(VerbsError::NoMemory(_))));
    let last = f.regions.mrs().pop().unwrap();
    f.regions.deregister(&last).unwrap();
    assert_ne!(f.mr(RW).rkey(), last.rkey());
}

#[test]
#[allow(clippy::disallowed_methods)] // a test may bring threads
fn lookups_are_right_during_registrations() {
    let f = Fixture::new();
    let stable = f.mr(RW);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let mr = f.mr(RW);
                    let at = f.remote(mr.rkey(), RW, 0x5_0000, 8);
                    assert_eq!(at, Ok(MemRef::host(0x1_0000)));
                    f.regions.deregister(&mr).unwrap();
                    assert!(f.remote(mr.rkey(), RW, 0x5_0000, 8).is_err());
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..200_000 {
                let at = f.remote(stable.rkey(), RW, 0x5_0008, 8);
                assert_eq!(at, Ok(MemRef::host(0x1_0008)));
            }
        });
    });
    assert_eq!(f.regions.counts().mrs, 1);
}

/// Numbers near each other and near both ends of the address space.
fn tricky() -> impl Strategy<Value = u64> {
    let near = |base: u64| (0..16u64).prop_map(move |d| base.wrapping_add(d).wrapping_sub(8));
    prop_oneof![near(0), near(1 << 63), near(1 << 32), any::<u64>()]
}

proptest! {
    #[test]
    fn ranges_are_as_in_unbounded_arithmetic(
        addr in tricky(), length in tricky(), iova in tricky(),
        va in tricky(), asked in tricky(),
    ) {
        let f = Fixture::new();
        let wide = u128::from;
        let addr = MemRef::host(addr).addr();
        let fits = wide(addr) + wide(length) <= wide(u64::MAX)
            && wide(iova) + wide(length) <= wide(u64::MAX);
        let mr = f.regions.register(&f.pd, MemRef::host(addr), length, iova, RW);
        prop_assert_eq!(mr.is_ok(), fits);
        let Ok(mr) = mr else { return Ok(()) };
        // The memory of a process ends before 2^63.
        let length = length.min(((1u64 << 63) - 1).saturating_sub(addr));
        for va in [va, iova.wrapping_add(va % 16).wrapping_sub(8), iova + length] {
            let inside = wide(va) >= wide(iova)
                && wide(va) + wide(asked) <= wide(iova) + wide(length);
            let got = f.remote(mr.rkey(), RW, va, asked);
            prop_assert_eq!(got.is_ok(), inside);
            if let Ok(got) = got {
                prop_assert_eq!(wide(got.addr()), wide(addr) + wide(va) - wide(iova));
            }
            let asked = asked as u32;
            let inside = wide(va) >= wide(iova)
                && wide(va) + u128::from(asked) <= wide(iova) + wide(length);
            prop_assert_eq!(f.local(mr.lkey(), RW, va, asked).is_ok(), inside);
        }
    }
}

#[test]
fn region_of_all_memory_reaches_no_gpu() {
    let f = Fixture::new();
    let all = f.regions.register(&f.pd, MemRef::host(0), u64::MAX, 0, RW);
    let all = all.unwrap();
    let last = (1 << 63) - 9;
    assert_eq!(
        f.remote(all.rkey(), RW, last, 8),
        Ok(MemRef::host(last)),
        "the last bytes of a process"
    );
    assert!(f.remote(all.rkey(), RW, last, 9).is_err());
    assert!(f.remote(all.rkey(), RW, (1 << 63) + 0x1000, 8).is_err());
}

#[test]
fn keys_lead_to_memory_of_gpus() {
    let f = Fixture::new();
    let memory = MemRef::gpu(5, 0x7f00_0000_0000).unwrap();
    let mr = f.regions.register(&f.pd, memory, 4096, 0x1000, RW).unwrap();
    assert_eq!(mr.memory(), memory);
    assert_eq!(f.remote(mr.rkey(), RW, 0x1008, 8), Ok(memory.offset(8)));
    assert!(f.remote(mr.rkey(), RW, 0x1000, 4097).is_err());
    let most = MemRef::gpu(5, (1 << 56) - 4097).unwrap();
    assert!(f.regions.register(&f.pd, most, 4096, 0, RW).is_ok());
    assert!(f.regions.register(&f.pd, most, 4097, 0, RW).is_err());
}
