//! Memory windows bound by work requests: host 1 binds them, host 0 accesses memory by them.

use std::sync::Arc;

use ferroce_roce::{
    Access, BindMw, MemRef, Mw, MwKind, QpState, SendOp, VerbsError, WcFlags, WcOpcode, WcStatus,
};

use crate::pair::{BASE, Knobs, Pair, SIZE, wr};
use crate::shorthand::{INBOX, REMOTE, first_match};

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlush;
const KINDS: [MwKind; 3] = [MwKind::Type1, MwKind::Type2A, MwKind::Type2B];

fn window(pair: &Pair, kind: MwKind) -> Arc<Mw> {
    let host = &pair.hosts[1];
    host.regions.alloc_mw(&host.pd, kind).unwrap()
}

/// Returns a bind of `length` bytes at [`REMOTE`], with all remote access allowed.
fn bind(pair: &Pair, mw: &Arc<Mw>, length: u64) -> BindMw {
    let host = &pair.hosts[1];
    let rkey = match mw.kind() {
        MwKind::Type1 => host.regions.next_type1_rkey(mw),
        _ => mw.rkey() & !0xff | mw.rkey().wrapping_add(1) & 0xff,
    };
    BindMw {
        mw: mw.clone(),
        rkey,
        mr: Some(host.mr.clone()),
        addr: REMOTE,
        length,
        access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
    }
}

fn post_bind(pair: &mut Pair, wr_id: u64, bind: BindMw) {
    pair.post(1, wr(wr_id, SendOp::BindMw(Box::new(bind)), &[]));
}

/// Returns a window of this kind, bound to 4096 bytes at [`REMOTE`].
fn bind_window(pair: &mut Pair, kind: MwKind) -> Arc<Mw> {
    let mw = window(pair, kind);
    let bind = bind(pair, &mw, 4096);
    post_bind(pair, 50, bind);
    pair.run();
    assert_eq!(pair.done(1), [(50, OK)]);
    mw
}

fn write_with_key(pair: &mut Pair, rkey: u32, length: u32) {
    let op = SendOp::Write {
        remote_addr: REMOTE,
        rkey,
        imm: None,
    };
    pair.post_op(1, op, 0, length);
    pair.run();
}

/// True if the peer may read at [`REMOTE`] with the key.
fn is_readable(pair: &Pair, rkey: u32) -> bool {
    let host = &pair.hosts[1];
    let regions = &host.regions;
    regions
        .remote(rkey, &host.pd, host.qpn, Access::REMOTE_READ, REMOTE, 8)
        .is_ok()
}

#[test]
fn bound_window_of_each_kind_gives_access_to_its_range() {
    for kind in KINDS {
        let mut pair = Pair::rc();
        let mw = window(&pair, kind);
        let before = mw.rkey();
        let bind = bind(&pair, &mw, 4096);
        let rkey = bind.rkey;
        post_bind(&mut pair, 50, bind);
        assert!(!is_readable(&pair, rkey), "not before the bind is executed");
        pair.run();
        let done = pair.hosts[1].completions();
        assert_eq!((done[0].wr_id, done[0].status), (50, OK));
        assert_eq!(done[0].opcode, WcOpcode::BindMw);
        assert_eq!(mw.rkey(), rkey);
        assert_ne!(rkey, before);
        assert_eq!(rkey >> 8, before >> 8, "only the low byte changes");
        write_with_key(&mut pair, rkey, 4096);
        pair.post_op(
            2,
            SendOp::Read {
                remote_addr: REMOTE,
                rkey,
            },
            INBOX,
            4096,
        );
        pair.run();
        assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
        assert!(pair.was_written(4096) && pair.was_read(4096));
    }
}

#[test]
fn access_beyond_a_window_is_a_remote_access_error() {
    for kind in KINDS {
        let mut pair = Pair::rc();
        let mw = bind_window(&mut pair, kind);
        write_with_key(&mut pair, mw.rkey(), 4097);
        assert_eq!(pair.done(0), [(1, WcStatus::RemoteAccess)]);
        let why = pair.hosts[1].failure_reason();
        assert!(why.contains("does not cover 0x140000+4097"), "{why}");
    }
}

#[test]
fn window_allows_only_the_access_of_its_bind() {
    let mut pair = Pair::rc();
    let mw = window(&pair, MwKind::Type2B);
    let mut bind = bind(&pair, &mw, 4096);
    bind.access = Access::REMOTE_READ;
    let rkey = bind.rkey;
    post_bind(&mut pair, 50, bind);
    pair.run();
    pair.post_op(
        1,
        SendOp::Read {
            remote_addr: REMOTE,
            rkey,
        },
        INBOX,
        10,
    );
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
    write_with_key(&mut pair, rkey, 10);
    assert_eq!(pair.done(0), [(1, WcStatus::RemoteAccess)]);
    assert!(
        pair.hosts[1]
            .failure_reason()
            .ends_with("does not allow REMOTE_WRITE")
    );
}

#[test]
fn bind_is_executed_in_send_queue_order() {
    let mut pair = Pair::rc();
    let mw = window(&pair, MwKind::Type2B);
    let bind = bind(&pair, &mw, 4096);
    let rkey = bind.rkey;
    pair.write_back(1, 100_000);
    post_bind(&mut pair, 2, bind);
    pair.flush_some(1, 3);
    assert!(!is_readable(&pair, rkey), "the WRITE is not sent yet");
    pair.run();
    assert!(is_readable(&pair, rkey));
    assert_eq!(pair.done(1), [(1, OK), (2, OK)]);
}

#[test]
fn retransmission_does_not_execute_a_bind_again() {
    let mut pair = Pair::rc();
    let mw = window(&pair, MwKind::Type2B);
    let bind = bind(&pair, &mw, 4096);
    let sges = [pair.hosts[1].sge(0, 1000)];
    let op = SendOp::Write {
        remote_addr: REMOTE,
        rkey: pair.hosts[0].mr.rkey(),
        imm: None,
    };
    pair.post(1, wr(1, op.clone(), &sges));
    post_bind(&mut pair, 2, bind);
    pair.post(1, wr(3, op, &sges));
    pair.run_losing(first_match(|sent| sent.psn() == 1000));
    assert_eq!(
        pair.done(1),
        [(1, OK), (2, OK), (3, OK)],
        "a second bind would fail"
    );
}

#[test]
fn invalid_bind_completes_with_mw_bind_error() {
    type Change = fn(&Pair, &mut BindMw);
    let cases: [(&str, MwKind, Change); 7] = [
        ("does not allow MW_BIND", MwKind::Type2B, |pair, bind| {
            let host = &pair.hosts[1];
            let access = Access::LOCAL_WRITE;
            let mr = host
                .regions
                .register(&host.pd, MemRef::host(BASE), SIZE as u64, BASE, access);
            bind.mr = Some(mr.unwrap());
        }),
        ("does not cover", MwKind::Type1, |_, bind| {
            bind.length = SIZE as u64
        }),
        ("only the low 8 bits", MwKind::Type2A, |_, bind| {
            bind.rkey ^= 0x100
        }),
        (
            "cannot be bound to zero bytes",
            MwKind::Type2B,
            |_, bind| bind.length = 0,
        ),
        ("bytes of no region", MwKind::Type2B, |_, bind| {
            bind.mr = None
        }),
        ("cannot be ZERO_BASED", MwKind::Type1, |_, bind| {
            bind.access |= Access::ZERO_BASED
        }),
        ("another protection domain", MwKind::Type2B, |pair, bind| {
            let regions = &pair.hosts[1].regions;
            let mw = regions
                .alloc_mw(&regions.alloc_pd(), MwKind::Type2B)
                .unwrap();
            bind.rkey = mw.rkey();
            bind.mw = mw;
        }),
    ];
    for (why, kind, change) in cases {
        let mut pair = Pair::rc();
        let mw = window(&pair, kind);
        let mut bind = bind(&pair, &mw, 4096);
        change(&pair, &mut bind);
        let rkey = bind.rkey;
        post_bind(&mut pair, 1, bind);
        let sge = pair.hosts[1].sge(0, 10);
        pair.post(1, wr(2, SendOp::Send { imm: None }, &[sge]));
        pair.run();
        assert_eq!(pair.done(1), [(1, WcStatus::MwBind), (2, FLUSHED)], "{why}");
        assert_eq!(pair.hosts[1].state(), QpState::Err);
        let said = pair.hosts[1].failure_reason();
        assert!(said.starts_with("bind: ") && said.contains(why), "{said}");
        assert!(!is_readable(&pair, rkey));
        assert_eq!(pair.trace(), [""; 0], "nothing behind it is sent");
    }
}

#[test]
fn bound_type_2_window_cannot_be_bound_again() {
    let mut pair = Pair::rc();
    let mw = bind_window(&mut pair, MwKind::Type2B);
    let again = bind(&pair, &mw, 4096);
    post_bind(&mut pair, 2, again);
    pair.run();
    assert_eq!(pair.done(1), [(2, WcStatus::MwBind)]);
    assert!(pair.hosts[1].failure_reason().ends_with("is already bound"));
}

#[test]
fn type_1_window_gets_a_new_rkey_with_every_bind() {
    let mut pair = Pair::rc();
    let mw = bind_window(&mut pair, MwKind::Type1);
    let old = mw.rkey();
    let again = bind(&pair, &mw, 4096);
    post_bind(&mut pair, 2, again);
    pair.run();
    assert_eq!(pair.done(1), [(2, OK)]);
    assert!(!is_readable(&pair, old) && is_readable(&pair, mw.rkey()));
    let nothing = bind(&pair, &mw, 0);
    post_bind(&mut pair, 3, nothing);
    pair.run();
    assert_eq!(pair.done(1), [(3, OK)]);
    assert!(!is_readable(&pair, mw.rkey()), "unbound");
}

#[test]
fn type_2_window_is_usable_only_through_the_queue_pair_that_bound_it() {
    for kind in KINDS {
        let mut pair = Pair::rc();
        let first = pair.hosts[1].qpn;
        let init = pair.hosts[1].qp_init(&Knobs::default());
        pair.hosts[1].qpn = pair.hosts[1].engine.create_qp(&init).unwrap().0;
        pair.bring_to_rtr(1, &Knobs::default());
        pair.bring_to_rts(1, &Knobs::default());
        let mw = bind_window(&mut pair, kind); // by the second queue pair
        pair.hosts[1].qpn = first;
        write_with_key(&mut pair, mw.rkey(), 10);
        if kind == MwKind::Type1 {
            assert_eq!(pair.done(0), [(1, OK)]);
        } else {
            assert_eq!(pair.done(0), [(1, WcStatus::RemoteAccess)]);
            assert!(
                pair.hosts[1]
                    .failure_reason()
                    .ends_with("is bound to another queue pair")
            );
        }
    }
}

#[test]
fn region_with_a_bound_window_cannot_be_deregistered() {
    let mut pair = Pair::rc();
    let mw = bind_window(&mut pair, MwKind::Type2B);
    let host = &pair.hosts[1];
    assert!(matches!(
        host.regions.deregister(&host.mr),
        Err(VerbsError::Invalid(_))
    ));
    host.regions.dealloc_mw(&mw).unwrap();
    host.regions.deregister(&host.mr).unwrap();
}

#[test]
fn local_invalidate_waits_for_all_earlier_work() {
    let mut pair = Pair::rc();
    let mw = bind_window(&mut pair, MwKind::Type2B);
    let key = mw.rkey();
    let sges = [pair.hosts[1].sge(0, 1000)];
    let op = SendOp::Write {
        remote_addr: REMOTE,
        rkey: pair.hosts[0].mr.rkey(),
        imm: None,
    };
    pair.post(1, wr(1, op.clone(), &sges));
    pair.post(1, wr(2, SendOp::LocalInvalidate { key }, &[]));
    pair.post(1, wr(3, op, &sges));
    pair.trace();
    pair.flush(1);
    assert_eq!(
        pair.trace(),
        ["WRITE_ONLY 1000"],
        "work requests behind the invalidate wait too"
    );
    assert!(is_readable(&pair, key));
    pair.run();
    assert!(!is_readable(&pair, key));
    let done = pair.hosts[1].completions();
    let opcodes: Vec<_> = done
        .iter()
        .map(|wc| (wc.wr_id, wc.status, wc.opcode))
        .collect();
    assert_eq!(opcodes[1], (2, OK, WcOpcode::LocalInvalidate));
    assert_eq!(opcodes.len(), 3);
    let again = bind(&pair, &mw, 100);
    post_bind(&mut pair, 4, again);
    pair.run();
    assert_eq!(pair.done(1), [(4, OK)], "it can be bound again");
}

#[test]
fn local_invalidate_of_another_key_is_a_local_qp_operation_error() {
    for n in 0..3 {
        let mut pair = Pair::rc();
        let key = match n {
            0 => pair.hosts[1].mr.rkey(),
            1 => bind_window(&mut pair, MwKind::Type1).rkey(),
            _ => 0x1234,
        };
        pair.post(1, wr(1, SendOp::LocalInvalidate { key }, &[]));
        pair.run();
        assert_eq!(pair.done(1), [(1, WcStatus::LocalQpOperation)]);
        assert_eq!(pair.hosts[1].state(), QpState::Err);
    }
}

#[test]
fn send_with_invalidate_invalidates_a_type_2_window() {
    for length in [0, 100, 3000] {
        let mut pair = Pair::rc();
        let mw = bind_window(&mut pair, MwKind::Type2B);
        let rkey = mw.rkey();
        write_with_key(&mut pair, rkey, 10);
        pair.recv(7, 5000);
        pair.post_op(2, SendOp::SendInvalidate { rkey }, 0, length);
        pair.run();
        let got = pair.hosts[1].completions()[0];
        assert_eq!((got.status, got.opcode), (OK, WcOpcode::Recv));
        assert_eq!(got.flags, WcFlags::GRH | WcFlags::WITH_INV);
        assert_eq!(got.imm, rkey);
        assert_eq!(got.byte_len, length);
        assert!(!is_readable(&pair, rkey));
        assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
        write_with_key(&mut pair, rkey, 10);
        assert_eq!(pair.done(0), [(1, WcStatus::RemoteAccess)]);
        assert!(pair.hosts[1].failure_reason().ends_with("is not bound"));
    }
}

#[test]
fn send_with_invalidate_of_another_key_is_a_remote_access_error() {
    for n in 0..3 {
        let mut pair = Pair::rc();
        let rkey = match n {
            0 => pair.rkey(),
            1 => bind_window(&mut pair, MwKind::Type1).rkey(),
            _ => 0x1234,
        };
        pair.recv(7, 5000);
        pair.recv(8, 5000);
        pair.post_op(1, SendOp::SendInvalidate { rkey }, 0, 100);
        pair.run();
        assert_eq!(pair.trace().last().unwrap(), "NAK 62 1000");
        assert_eq!(pair.done(0), [(1, WcStatus::RemoteAccess)]);
        assert_eq!(pair.done(1), [(7, WcStatus::RemoteAccess), (8, FLUSHED)]);
        assert_eq!(
            n < 2,
            pair.hosts[1]
                .failure_reason()
                .contains("cannot be invalidated")
        );
    }
}

#[test]
fn destroying_a_queue_pair_invalidates_its_type_2_windows() {
    let mut pair = Pair::rc();
    let mw = bind_window(&mut pair, MwKind::Type2A);
    assert!(is_readable(&pair, mw.rkey()));
    pair.hosts[1].engine.destroy_qp(pair.hosts[1].qpn).unwrap();
    assert!(!is_readable(&pair, mw.rkey()));
}
