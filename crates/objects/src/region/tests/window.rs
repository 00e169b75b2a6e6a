//! Tests of accesses through windows, and of their invalidation.

use std::sync::Arc;

use super::{Fixture, QPN, RW, words};
use crate::error::VerbsError;
use crate::memory::MemRef;
use crate::region::{AccessError, Mr, Mw, MwKind, Rereg};
use crate::verbs::{Access, BindMw};

pub(super) const BINDABLE: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);
pub(super) const TYPE2: [MwKind; 2] = [MwKind::Type2A, MwKind::Type2B];
pub(super) const KINDS: [MwKind; 3] = [MwKind::Type1, MwKind::Type2A, MwKind::Type2B];
/// Permissions of a window of [`bind_wr`].
pub(super) const ALLOWED: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

impl Fixture {
    pub(super) fn mw(&self, kind: MwKind) -> Arc<Mw> {
        self.regions.alloc_mw(&self.pd, kind).expect("allocated")
    }

    /// A bind of 0x100 bytes at 0x50400, which the program calls 0x10400.
    pub(super) fn bind_wr(&self, mw: &Arc<Mw>, mr: &Arc<Mr>) -> BindMw {
        BindMw {
            mw: Arc::clone(mw),
            rkey: self.regions.next_type1_rkey(mw),
            mr: Some(Arc::clone(mr)),
            addr: 0x5_0400,
            length: 0x100,
            access: ALLOWED,
        }
    }

    pub(super) fn bind(&self, wr: &BindMw) -> Result<u32, AccessError> {
        self.regions.bind(&self.pd, QPN, wr)
    }

    pub(super) fn bound(&self, kind: MwKind) -> (Arc<Mr>, Arc<Mw>) {
        let (mr, mw) = (self.mr(BINDABLE), self.mw(kind));
        self.bind(&self.bind_wr(&mw, &mr)).expect("bound");
        (mr, mw)
    }

    pub(super) fn invalidate(&self, key: u32) -> Result<(), AccessError> {
        self.regions.invalidate(key, &self.pd, QPN, false)
    }
}

#[test]
fn window_covers_exactly_its_part_of_the_region() {
    let f = Fixture::new();
    for kind in KINDS {
        let (_, mw) = f.bound(kind);
        let at = |va, len| f.remote(mw.rkey(), ALLOWED, va, len);
        assert_eq!(at(0x5_0400, 0x100), Ok(MemRef::host(0x1_0400)));
        assert_eq!(at(0x5_04ff, 1), Ok(MemRef::host(0x1_04ff)));
        assert!(at(0x5_03ff, 1).is_err());
        assert!(at(0x5_0400, 0x101).is_err());
        assert!(
            f.remote(mw.rkey(), Access::REMOTE_ATOMIC, 0x5_0400, 8)
                .is_err()
        );
        assert_eq!(
            f.regions.remote_whole(mw.rkey(), &f.pd, QPN, ALLOWED),
            Ok((MemRef::host(0x1_0400), 0x100))
        );
    }
    assert_eq!(f.regions.counts().bound_mws, 3);
    assert_eq!(f.regions.mws().len(), 3);
}

#[test]
fn unbound_window_permits_nothing() {
    let f = Fixture::new();
    for kind in KINDS {
        let key = f.mw(kind).rkey();
        let expected = format!("window {key:#x} is not bound");
        assert_eq!(words(f.remote(key, Access::empty(), 0, 0)), expected);
        let whole = f.regions.remote_whole(key, &f.pd, QPN, Access::empty());
        assert_eq!(words(whole), expected);
    }
}

#[test]
fn window_key_is_refused_as_lkey() {
    let f = Fixture::new();
    let (_, mw) = f.bound(MwKind::Type1);
    let got = f.local(mw.rkey(), Access::empty(), 0x5_0400, 1);
    assert_eq!(got, Err(AccessError::WindowAsLkey { key: mw.rkey() }));
}

#[test]
fn window_kinds_check_domain_and_queue_pair() {
    let f = Fixture::new();
    for (kind, other_domain, other_qp) in [
        (MwKind::Type1, false, true),
        (MwKind::Type2A, true, false),
        (MwKind::Type2B, false, false),
    ] {
        let key = f.bound(kind).1.rkey();
        let at = |pd, qpn| f.regions.remote(key, pd, qpn, ALLOWED, 0x5_0400, 1);
        assert!(at(&f.pd, QPN).is_ok());
        assert_eq!(at(&f.other_pd, QPN).is_ok(), other_domain, "{kind}");
        assert_eq!(at(&f.pd, QPN + 1).is_ok(), other_qp, "{kind}");
        if !other_qp {
            let expected = format!("window {key:#x} is bound to another queue pair");
            assert_eq!(words(at(&f.pd, QPN + 1)), expected);
        }
    }
}

#[test]
fn a_region_with_bound_windows_cannot_be_deregistered() {
    let f = Fixture::new();
    for kind in KINDS {
        let (mr, mw) = f.bound(kind);
        let got = f.regions.deregister(&mr);
        assert!(matches!(got, Err(VerbsError::Invalid(_))), "{got:?}");
        f.regions.dealloc_mw(&mw).unwrap();
        f.regions.deregister(&mr).unwrap();
    }
}

#[test]
fn reregistration_is_refused_if_bound_windows_depend_on_it() {
    let f = Fixture::new();
    let (mr, mw) = f.bound(MwKind::Type2B);
    let translation = Some((MemRef::host(0x1_0000), 0x1000, 0x5_0000));
    let access = |access| Rereg {
        access: Some(access),
        ..Rereg::default()
    };
    for (change, allowed) in [
        (
            Rereg {
                translation,
                ..Rereg::default()
            },
            false,
        ),
        (
            Rereg {
                pd: Some(f.other_pd.clone()),
                ..Rereg::default()
            },
            false,
        ),
        (access(Access::LOCAL_WRITE), false),
        (access(Access::MW_BIND), false),
        (access(BINDABLE | Access::ZERO_BASED), false),
        (access(BINDABLE | RW), true),
    ] {
        match f.regions.reregister(&mr, &change) {
            Ok(()) => assert!(allowed, "{change:?}"),
            Err(VerbsError::Busy(_)) => assert!(!allowed, "{change:?}"),
            Err(other) => panic!("{other:?}"),
        }
    }
    f.regions.dealloc_mw(&mw).unwrap();
    let change = Rereg {
        translation,
        ..Rereg::default()
    };
    f.regions.reregister(&mr, &change).unwrap();
}

#[test]
fn a_window_is_freed_once_and_its_key_is_unknown() {
    let f = Fixture::new();
    for kind in KINDS {
        let (_, mw) = f.bound(kind);
        f.regions.dealloc_mw(&mw).unwrap();
        let expected = format!("rkey {:#x} is unknown", mw.rkey());
        assert_eq!(words(f.remote(mw.rkey(), ALLOWED, 0x5_0400, 1)), expected);
        let again = f.regions.dealloc_mw(&mw);
        assert!(matches!(again, Err(VerbsError::NotFound(_))), "{again:?}");
        let bind = f.bind(&f.bind_wr(&mw, &f.mr(BINDABLE)));
        assert_eq!(words(bind), format!("window {:#x} is unknown", mw.rkey()));
    }
}

#[test]
fn invalidated_type_2_window_keeps_its_key_and_can_be_bound() {
    let f = Fixture::new();
    for kind in TYPE2 {
        for remote in [false, true] {
            let (mr, mw) = f.bound(kind);
            let key = mw.rkey();
            f.regions.invalidate(key, &f.pd, QPN, remote).unwrap();
            assert_eq!(mw.rkey(), key);
            let expected = format!("window {key:#x} is not bound");
            assert_eq!(words(f.remote(key, ALLOWED, 0x5_0400, 1)), expected);
            let again = f.regions.invalidate(key, &f.pd, QPN, remote);
            assert_eq!(words(again), expected);
            f.regions.deregister(&mr).unwrap();
        }
    }
}

#[test]
fn regions_and_type_1_windows_cannot_be_invalidated() {
    let f = Fixture::new();
    let (mr, mw) = f.bound(MwKind::Type1);
    for (key, owner) in [(mr.rkey(), "memory region"), (mw.rkey(), "type 1 window")] {
        for remote in [false, true] {
            let got = f.regions.invalidate(key, &f.pd, QPN, remote);
            assert_eq!(got, Err(AccessError::NotInvalidatable { key, owner }));
        }
    }
    assert!(f.remote(mw.rkey(), ALLOWED, 0x5_0400, 1).is_ok());
}

#[test]
fn only_the_queue_pair_that_bound_a_window_can_invalidate_it() {
    let f = Fixture::new();
    for kind in TYPE2 {
        let key = f.bound(kind).1.rkey();
        let by = |pd, qpn| f.regions.invalidate(key, pd, qpn, true);
        assert_eq!(by(&f.pd, QPN + 1), Err(AccessError::OtherQueuePair { key }));
        // Type 2A checks the queue pair, not the domain.
        let other_domain = by(&f.other_pd, QPN).is_ok();
        assert_eq!(other_domain, kind == MwKind::Type2A);
    }
    let got = f.regions.invalidate(0xdead_beef, &f.pd, QPN, false);
    assert_eq!(words(got), "lkey 0xdeadbeef is unknown");
}

#[test]
fn windows_of_a_destroyed_queue_pair_are_unbound() {
    let f = Fixture::new();
    let gone: Vec<_> = TYPE2.map(|kind| f.bound(kind)).into();
    let (mr, stays) = (f.mr(BINDABLE), f.mw(MwKind::Type2B));
    let wr = f.bind_wr(&stays, &mr);
    f.regions.bind(&f.pd, QPN + 1, &wr).unwrap();
    let (_, type1) = f.bound(MwKind::Type1);
    assert_eq!(f.regions.release_windows_of(QPN), 2);
    assert_eq!(f.regions.release_windows_of(QPN), 0);
    for (mr, mw) in gone {
        assert!(f.remote(mw.rkey(), ALLOWED, 0x5_0400, 1).is_err());
        f.regions.deregister(&mr).unwrap();
    }
    assert!(f.remote(type1.rkey(), ALLOWED, 0x5_0400, 1).is_ok());
    assert_eq!(f.regions.counts().bound_mws, 2);
}
