//! Tests of binds: their conditions, and the keys that they produce.

use proptest::prelude::*;

use super::window::{ALLOWED, BINDABLE, KINDS, TYPE2};
use super::{Fixture, QPN, words};
use crate::key;
use crate::memory::MemRef;
use crate::region::{AccessError, MwKind, Rereg};
use crate::verbs::{Access, BindMw};

#[test]
fn bind_changes_the_low_byte_and_invalidates_the_old_key() {
    let f = Fixture::new();
    for kind in KINDS {
        let (mr, mw) = (f.mr(BINDABLE), f.mw(kind));
        let old = mw.rkey();
        let mut wr = f.bind_wr(&mw, &mr);
        wr.rkey = key::upper(old) | (old + 1) & 0xff;
        assert_eq!(f.bind(&wr), Ok(wr.rkey));
        assert_eq!(mw.rkey(), wr.rkey);
        assert!(f.remote(wr.rkey, ALLOWED, 0x5_0400, 1).is_ok());
        assert_eq!(
            words(f.remote(old, ALLOWED, 0x5_0400, 1)),
            format!("rkey {old:#x} is unknown")
        );
    }
}

#[test]
fn upper_bits_of_a_new_key_must_match_the_window() {
    let f = Fixture::new();
    for kind in KINDS {
        let mut wr = f.bind_wr(&f.mw(kind), &f.mr(BINDABLE));
        wr.rkey ^= 0x100;
        let key = wr.mw.rkey();
        let asked = wr.rkey;
        assert_eq!(f.bind(&wr), Err(AccessError::WrongNewKey { key, asked }));
    }
}

#[test]
fn next_type1_rkey_differs_at_every_call() {
    let f = Fixture::new();
    let mw = f.mw(MwKind::Type1);
    let mut last = mw.rkey();
    for _ in 0..1000 {
        let next = f.regions.next_type1_rkey(&mw);
        assert_eq!(key::upper(next), key::upper(mw.rkey()));
        assert_ne!(next, last);
        last = next;
    }
}

#[test]
fn type_1_window_is_rebound_and_unbound_by_length_zero() {
    let f = Fixture::new();
    let (mr, mw) = f.bound(MwKind::Type1);
    let mut wr = f.bind_wr(&mw, &mr);
    wr.addr = 0x5_0800;
    let key = f.bind(&wr).unwrap();
    assert_eq!(
        f.remote(key, ALLOWED, 0x5_0800, 1),
        Ok(MemRef::host(0x1_0800))
    );
    assert!(f.remote(key, ALLOWED, 0x5_0400, 1).is_err());
    for unbind_mr in [Some(mr.clone()), None] {
        let wr = BindMw {
            rkey: f.regions.next_type1_rkey(&mw),
            mr: unbind_mr,
            length: 0,
            ..wr.clone()
        };
        let key = f.bind(&wr).unwrap();
        let expected = format!("window {key:#x} is not bound");
        assert_eq!(words(f.remote(key, ALLOWED, 0x5_0800, 1)), expected);
    }
    f.regions.deregister(&mr).unwrap();
}

#[test]
fn a_type_1_window_cannot_be_zero_based() {
    let f = Fixture::new();
    let mut wr = f.bind_wr(&f.mw(MwKind::Type1), &f.mr(BINDABLE));
    wr.access |= Access::ZERO_BASED;
    let key = wr.mw.rkey();
    assert_eq!(f.bind(&wr), Err(AccessError::ZeroBasedType1 { key }));
}

#[test]
fn a_zero_based_type_2_window_counts_from_zero() {
    let f = Fixture::new();
    for kind in TYPE2 {
        let mut wr = f.bind_wr(&f.mw(kind), &f.mr(BINDABLE));
        wr.access |= Access::ZERO_BASED;
        let key = f.bind(&wr).unwrap();
        assert_eq!(f.remote(key, ALLOWED, 0, 0x100), Ok(MemRef::host(0x1_0400)));
        assert!(f.remote(key, ALLOWED, 1, 0x100).is_err());
        assert!(f.remote(key, ALLOWED, 0x5_0400, 1).is_err());
    }
}

#[test]
fn window_on_a_zero_based_region_starts_at_an_offset() {
    let f = Fixture::new();
    let mr = f.mr(BINDABLE | Access::ZERO_BASED);
    let mut wr = f.bind_wr(&f.mw(MwKind::Type2B), &mr);
    wr.addr = 0x400;
    let key = f.bind(&wr).unwrap();
    assert_eq!(f.remote(key, ALLOWED, 0x4ff, 1), Ok(MemRef::host(0x1_04ff)));
}

#[test]
fn a_type_2_window_must_be_free_and_its_bind_not_empty() {
    let f = Fixture::new();
    for kind in TYPE2 {
        let (mr, mw) = f.bound(kind);
        let key = mw.rkey();
        let again = f.bind(&f.bind_wr(&mw, &mr));
        assert_eq!(again, Err(AccessError::AlreadyBound { key }));
        f.invalidate(key).unwrap();
        let mut wr = f.bind_wr(&mw, &mr);
        wr.length = 0;
        assert_eq!(f.bind(&wr), Err(AccessError::NothingToBind { key }));
        wr.length = 1;
        f.bind(&wr).unwrap();
    }
}

#[test]
fn a_bind_needs_a_region_that_is_registered() {
    let f = Fixture::new();
    for kind in KINDS {
        let mr = f.mr(BINDABLE);
        let wr = f.bind_wr(&f.mw(kind), &mr);
        let none = BindMw {
            mr: None,
            ..wr.clone()
        };
        let (key, length) = (wr.mw.rkey(), wr.length);
        assert_eq!(f.bind(&none), Err(AccessError::NoRegion { key, length }));
        f.regions.deregister(&mr).unwrap();
        let expected = format!("lkey {:#x} is unknown", mr.lkey());
        assert_eq!(words(f.bind(&wr)), expected);
    }
}

#[test]
fn a_bind_needs_a_region_of_the_same_table() {
    let (f, stranger) = (Fixture::new(), Fixture::new());
    let (ours, theirs) = (f.mr(BINDABLE), stranger.mr(BINDABLE));
    assert_eq!(ours.lkey(), theirs.lkey(), "the seeds are the same");
    let wr = f.bind_wr(&f.mw(MwKind::Type2B), &theirs);
    let expected = format!("lkey {:#x} is unknown", theirs.lkey());
    assert_eq!(words(f.bind(&wr)), expected);
}

#[test]
fn a_window_grants_remote_permissions_only() {
    let f = Fixture::new();
    let mut wr = f.bind_wr(&f.mw(MwKind::Type2B), &f.mr(BINDABLE));
    wr.access |= BINDABLE;
    let key = f.bind(&wr).unwrap();
    assert!(f.remote(key, ALLOWED, 0x5_0400, 1).is_ok());
    assert!(f.remote(key, BINDABLE, 0x5_0400, 1).is_err());
}

#[test]
fn bind_needs_mw_bind_and_the_permissions_of_the_window() {
    let f = Fixture::new();
    let (read, write) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
    let (atomic, flush) = (Access::REMOTE_ATOMIC, Access::FLUSH_PERSISTENT);
    for (region, window, missing) in [
        (Access::LOCAL_WRITE, read, Some(Access::MW_BIND)),
        (Access::MW_BIND, read, None),
        (Access::MW_BIND, write, Some(Access::LOCAL_WRITE)),
        (Access::MW_BIND, atomic, Some(Access::LOCAL_WRITE)),
        (BINDABLE, write | atomic, None),
        (BINDABLE, flush, Some(flush)),
        (BINDABLE | flush, flush, None),
    ] {
        for kind in KINDS {
            let mr = f.mr(region);
            let mut wr = f.bind_wr(&f.mw(kind), &mr);
            wr.access = window;
            match (f.bind(&wr), missing) {
                (Ok(_), None) => {}
                (Err(AccessError::Denied { key, missing, .. }), Some(expected)) => {
                    assert_eq!((key, missing), (mr.lkey(), expected));
                }
                (got, _) => panic!("{region:?} {window:?}: {got:?}"),
            }
        }
    }
}

#[test]
fn a_bind_with_unknown_access_bits_is_refused() {
    let f = Fixture::new();
    let mut wr = f.bind_wr(&f.mw(MwKind::Type2B), &f.mr(BINDABLE));
    wr.access |= Access::from_bits_retain(1 << 15);
    let (key, unknown) = (wr.mw.rkey(), 1 << 15);
    assert_eq!(f.bind(&wr), Err(AccessError::UnknownFlags { key, unknown }));
}

#[test]
fn queue_pair_window_and_region_must_be_of_one_domain() {
    let f = Fixture::new();
    for kind in KINDS {
        let (mr, mw) = (f.mr(BINDABLE), f.mw(kind));
        let other_qp = f.regions.bind(&f.other_pd, QPN, &f.bind_wr(&mw, &mr));
        let expected = "belongs to another protection domain";
        assert_eq!(
            words(other_qp),
            format!("window {:#x} {expected}", mw.rkey())
        );
        let change = Rereg {
            pd: Some(f.other_pd.clone()),
            ..Rereg::default()
        };
        f.regions.reregister(&mr, &change).unwrap();
        let other_mr = f.bind(&f.bind_wr(&mw, &mr));
        assert_eq!(words(other_mr), format!("lkey {:#x} {expected}", mr.lkey()));
    }
}

#[test]
fn failed_bind_changes_nothing() {
    let f = Fixture::new();
    let (mr, mw) = f.bound(MwKind::Type1);
    let key = mw.rkey();
    let mut wr = f.bind_wr(&mw, &mr);
    wr.length = 0x1000;
    assert!(f.bind(&wr).is_err());
    assert_eq!(mw.rkey(), key);
    assert_eq!(
        f.remote(key, ALLOWED, 0x5_0400, 0x100),
        Ok(MemRef::host(0x1_0400))
    );
}

proptest! {
    #[test]
    fn a_window_lies_inside_its_region(
        addr in 0x4_fff0..0x5_1010u64, length in 1..0x1010u64, far in any::<bool>(),
        va in 0x4_fff0..0x5_1010u64, asked in 0..0x1010u64,
    ) {
        let f = Fixture::new();
        let mut wr = f.bind_wr(&f.mw(MwKind::Type2B), &f.mr(BINDABLE));
        (wr.addr, wr.length) = (addr, if far { u64::MAX - length } else { length });
        let inside = addr >= 0x5_0000
            && u128::from(addr) + u128::from(wr.length) <= 0x5_1000;
        let bound = f.bind(&wr);
        prop_assert_eq!(bound.is_ok(), inside);
        if let Ok(key) = bound {
            let allowed = va >= addr && va + asked <= addr + length;
            let got = f.remote(key, ALLOWED, va, asked);
            prop_assert_eq!(got.is_ok(), allowed);
            prop_assert!(!allowed || got == Ok(MemRef::host(va - 0x5_0000 + 0x1_0000)));
        }
    }
}
