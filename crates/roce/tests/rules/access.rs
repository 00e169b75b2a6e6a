//! Remote access checks: keys, protection domains, permissions, ranges and alignment.

use std::sync::Arc;

use ferroce_roce::{Access, MemRef, Mr, QpEvent, QpState, SendOp, WcStatus};
use ferroce_wire::{AtomicEth, Operation, Reth};

use crate::pair::{BASE, Pair, SIZE, all_access, wr};
use crate::shorthand::{INBOX, REMOTE};

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlush;

/// Registers a second region of host 1.
fn region(pair: &Pair, length: u64, access: Access) -> Arc<Mr> {
    let host = &pair.hosts[1];
    let regions = &host.regions;
    regions
        .register(&host.pd, MemRef::host(REMOTE), length, REMOTE, access)
        .unwrap()
}

/// Returns the operations that access remote memory, the permission each needs, and a length.
pub fn operations(remote_addr: u64, rkey: u32) -> [(SendOp, Access, u32); 5] {
    let write = SendOp::Write {
        remote_addr,
        rkey,
        imm: None,
    };
    let add = SendOp::FetchAdd {
        remote_addr,
        rkey,
        add: 1,
    };
    let swap = SendOp::CompareSwap {
        remote_addr,
        rkey,
        compare: 0,
        swap: 1,
    };
    [
        (write, Access::REMOTE_WRITE, 100),
        (SendOp::Read { remote_addr, rkey }, Access::REMOTE_READ, 100),
        (add, Access::REMOTE_ATOMIC, 8),
        (swap, Access::REMOTE_ATOMIC, 8),
        (
            SendOp::AtomicWrite { remote_addr, rkey },
            Access::REMOTE_WRITE,
            8,
        ),
    ]
}

/// Posts a request that host 1 must refuse. Checks NAK, completions, states, event and
/// reason on both hosts, and that no memory changed.
fn assert_refused(pair: &mut Pair, op: SendOp, length: u32, nak: u8, why: &str) {
    let before = pair.hosts[1].ram.get(BASE, SIZE);
    let what = format!("{op:?}");
    pair.post_op(1, op, INBOX, length);
    pair.write(2, 10);
    pair.recv(7, 100);
    pair.run();
    let (status, event) = match nak {
        0x61 => (WcStatus::RemoteInvalidRequest, QpEvent::RequestError),
        0x62 => (WcStatus::RemoteAccess, QpEvent::AccessError),
        _ => (WcStatus::RemoteOperation, QpEvent::Fatal),
    };
    assert_eq!(pair.done(0), [(1, status), (2, FLUSHED)], "{what}");
    assert_eq!(pair.done(1), [(7, FLUSHED)], "{what}");
    assert_eq!(pair.states(), [QpState::Err; 2], "{what}");
    assert_eq!(pair.trace().last(), Some(&format!("NAK {nak:02x} 1000")));
    assert_eq!(pair.hosts[1].qp_events(), [event], "{what}");
    assert_eq!(pair.hosts[1].failure_reason(), why, "{what}");
    assert!(
        pair.hosts[0]
            .failure_reason()
            .starts_with("the peer answered ")
    );
    assert_eq!(pair.hosts[1].ram.get(BASE, SIZE), before, "{what}");
}

#[test]
fn an_unknown_key_is_a_remote_access_error() {
    for n in 0..5 {
        let mut pair = Pair::rc();
        let rkey = pair.rkey() ^ 0x55;
        let (op, _, length) = operations(REMOTE, rkey)[n].clone();
        assert_refused(
            &mut pair,
            op,
            length,
            0x62,
            &format!("rkey {rkey:#x} is unknown"),
        );
    }
}

#[test]
fn a_key_of_another_protection_domain_is_a_remote_access_error() {
    for n in 0..5 {
        let mut pair = Pair::rc();
        let regions = pair.hosts[1].regions.clone();
        let pd = regions.alloc_pd();
        let mr = regions
            .register(&pd, MemRef::host(REMOTE), 4096, REMOTE, all_access())
            .unwrap();
        let (op, _, length) = operations(REMOTE, mr.rkey())[n].clone();
        let why = format!("rkey {:#x} belongs to another protection domain", mr.rkey());
        assert_refused(&mut pair, op, length, 0x62, &why);
    }
}

#[test]
fn a_missing_permission_of_the_region_is_a_remote_access_error() {
    for n in 0..5 {
        let mut pair = Pair::rc();
        let need = operations(REMOTE, 0)[n].1;
        let mr = region(&pair, 4096, all_access() - need);
        let (op, _, length) = operations(REMOTE, mr.rkey())[n].clone();
        let name = need.iter_names().next().unwrap().0;
        let why = format!("rkey {:#x} does not allow {name}", mr.rkey());
        assert_refused(&mut pair, op, length, 0x62, &why);
    }
}

#[test]
fn a_range_outside_the_region_is_a_remote_access_error() {
    for n in 0..5 {
        for remote_addr in [
            REMOTE - 8,
            REMOTE + 4096,
            REMOTE + 4096 - 96,
            0,
            u64::MAX - 7,
        ] {
            let mut pair = Pair::rc();
            let mr = region(&pair, 4096 - 92, all_access());
            let (op, _, length) = operations(remote_addr, mr.rkey())[n].clone();
            let key = mr.rkey();
            let why = format!("rkey {key:#x} does not cover {remote_addr:#x}+{length}");
            if remote_addr == REMOTE + 4000 && length == 8 {
                continue; // this range is inside the region
            }
            assert_refused(&mut pair, op, length, 0x62, &why);
        }
    }
}

#[test]
fn a_missing_permission_of_the_queue_pair_is_an_invalid_request() {
    for n in 0..5 {
        let need = operations(0, 0)[n].1;
        let mut pair = Pair::with(|knobs| knobs.attr.access -= need);
        let (op, _, length) = operations(REMOTE, pair.rkey())[n].clone();
        pair.recv(7, 100);
        pair.post_op(1, op, INBOX, length);
        pair.run();
        assert_eq!(pair.done(0), [(1, WcStatus::RemoteInvalidRequest)]);
        assert_eq!(pair.done(1), [(7, FLUSHED)]);
        assert_eq!(pair.hosts[1].qp_events(), [QpEvent::RequestError]);
        let why = pair.hosts[1].failure_reason();
        assert!(why.contains("the queue pair does not allow"), "{why}");
    }
}

#[test]
fn read_or_atomic_with_max_dest_rd_atomic_0_is_an_invalid_request() {
    for n in [1, 2, 3, 4] {
        let mut pair = Pair::with(|knobs| knobs.attr.max_dest_rd_atomic = 0);
        let (op, _, length) = operations(REMOTE, pair.rkey())[n].clone();
        pair.post_op(1, op, INBOX, length);
        pair.run();
        assert_eq!(pair.done(0), [(1, WcStatus::RemoteInvalidRequest)]);
        assert!(
            pair.hosts[1]
                .failure_reason()
                .contains("beyond the 0 that may be outstanding")
        );
    }
}

#[test]
fn first_packet_of_a_write_is_checked_for_the_whole_length() {
    let mut pair = Pair::rc();
    let mr = region(&pair, 3000, all_access());
    let op = SendOp::Write {
        remote_addr: REMOTE,
        rkey: mr.rkey(),
        imm: None,
    };
    let before = pair.hosts[1].ram.get(REMOTE, 3000);
    pair.post_op(1, op, 0, 3001);
    pair.flush(0);
    let first = pair.wire[0].clone();
    pair.deliver(&first);
    pair.flush(1);
    assert_eq!(pair.trace().last().unwrap(), "NAK 62 1000");
    assert_eq!(pair.hosts[1].ram.get(REMOTE, 3000), before);
}

/// Returns the first response of host 1 to one packet.
fn response_to(pair: &mut Pair, operation: Operation, psn: u32, reth: Reth, data: &[u8]) -> String {
    let packet = pair.craft(
        0,
        operation,
        psn,
        |mut h| {
            h.reth(&reth);
            match operation {
                Operation::WriteOnlyImm => *h.immediate(&ferroce_wire::ImmDt(1)),
                _ => h,
            }
        },
        data,
    );
    pair.deliver(&packet);
    pair.flush(1);
    pair.trace().remove(0)
}

#[test]
fn responder_checks_psn_then_permission_then_length_then_receive_then_key() {
    let bad = Reth {
        va: REMOTE,
        rkey: 1,
        length: 8,
    };
    let long = Reth {
        length: 2000,
        ..bad
    };
    let no_writes = || Pair::with(|knobs| knobs.attr.access = Access::empty());
    // The PSN is checked first.
    let first = response_to(&mut no_writes(), Operation::WriteOnly, 1005, long, &[0; 8]);
    assert_eq!(first, "NAK 60 1000");
    // Permissions of the queue pair are checked before receives.
    let first = response_to(
        &mut no_writes(),
        Operation::WriteOnlyImm,
        1000,
        bad,
        &[0; 8],
    );
    assert_eq!(first, "NAK 61 1000");
    // Lengths are checked before keys.
    let first = response_to(&mut Pair::rc(), Operation::WriteOnly, 1000, long, &[0; 8]);
    assert_eq!(first, "NAK 61 1000");
    // Receives are checked before keys.
    let first = response_to(&mut Pair::rc(), Operation::WriteOnlyImm, 1000, bad, &[0; 8]);
    assert_eq!(first, "NAK 2c 1000");
    let first = response_to(&mut Pair::rc(), Operation::WriteOnly, 1000, bad, &[0; 8]);
    assert_eq!(first, "NAK 62 1000");
}

#[test]
fn refused_request_completes_its_receive_with_the_error() {
    let mut pair = Pair::rc();
    pair.recv(7, 100);
    pair.recv(8, 100);
    let op = SendOp::Write {
        remote_addr: REMOTE,
        rkey: 1,
        imm: Some(5),
    };
    pair.post_op(1, op, 0, 100);
    pair.run();
    assert_eq!(pair.done(1), [(7, WcStatus::RemoteAccess), (8, FLUSHED)]);
    assert_eq!(
        pair.hosts[1].qp_events(),
        [],
        "the completion reports the error"
    );
}

#[test]
fn zero_length_read_and_write_check_neither_key_nor_address() {
    let mut pair = Pair::rc();
    for n in 0..2 {
        let (op, ..) = operations(0xdead, 0xbeef)[n].clone();
        pair.post_op(n as u64, op, INBOX, 0);
    }
    pair.run();
    assert_eq!(pair.done(0), [(0, OK), (1, OK)]);
}

#[test]
fn a_misaligned_atomic_is_refused_when_posted() {
    let mut pair = Pair::rc();
    for (op, ..) in &operations(REMOTE + 4, pair.rkey())[2..] {
        let host = &mut pair.hosts[0];
        let sges = [host.sge(INBOX, 8)];
        let refused = host
            .engine
            .post_send(pair.now, host.qpn, wr(1, op.clone(), &sges));
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("not a multiple of 8"), "{why}");
    }
    pair.assert_connected();
}

#[test]
fn a_misaligned_atomic_on_the_wire_is_an_invalid_request() {
    let (va, rkey) = (REMOTE + 4, Pair::rc().rkey());
    let eth = AtomicEth {
        va,
        rkey,
        swap_or_add: 1,
        compare: 0,
    };
    let reth = Reth {
        va,
        rkey,
        length: 8,
    };
    for operation in [
        Operation::FetchAdd,
        Operation::CompareSwap,
        Operation::AtomicWrite,
    ] {
        let mut pair = Pair::rc();
        let before = pair.hosts[1].ram.get(REMOTE, 16);
        let packet = match operation {
            Operation::AtomicWrite => {
                pair.craft(0, operation, 1000, |mut h| *h.reth(&reth), &[7; 8])
            }
            _ => pair.craft(0, operation, 1000, |mut h| *h.atomic_eth(&eth), &[]),
        };
        pair.deliver(&packet);
        pair.flush(1);
        assert_eq!(pair.trace(), ["NAK 61 1000"]);
        assert_eq!(pair.hosts[1].ram.get(REMOTE, 16), before);
    }
}

#[test]
fn region_deregistered_during_a_write_fails_the_write() {
    let mut pair = Pair::rc();
    let mr = region(&pair, 4096, all_access());
    pair.hosts[1].ram.put(REMOTE, &[0; 4096]);
    let op = SendOp::Write {
        remote_addr: REMOTE,
        rkey: mr.rkey(),
        imm: None,
    };
    pair.post_op(1, op, 0, 3000);
    let packets = pair.take(0);
    pair.deliver(&packets[0]);
    pair.deliver(&packets[1]);
    pair.hosts[1].regions.deregister(&mr).unwrap();
    pair.deliver(&packets[2]);
    pair.run();
    assert_eq!(pair.trace().last().unwrap(), "NAK 62 1002");
    assert_eq!(pair.done(0), [(1, WcStatus::RemoteAccess)]);
    assert!(pair.was_written(2048));
    assert_eq!(pair.hosts[1].ram.get(REMOTE + 2048, 1000), [0; 1000]);
}

#[test]
fn region_deregistered_during_a_read_fails_the_read() {
    let mut pair = Pair::rc();
    let mr = region(&pair, 65536, all_access());
    let op = SendOp::Read {
        remote_addr: REMOTE,
        rkey: mr.rkey(),
    };
    pair.post_op(1, op, INBOX, 20_000);
    let request = pair.take(0);
    pair.deliver(&request[0]);
    assert!(pair.flush_some(1, 5));
    pair.hosts[1].regions.deregister(&mr).unwrap();
    pair.run();
    assert_eq!(pair.trace().last().unwrap(), "NAK 62 1005");
    assert_eq!(pair.done(0), [(1, WcStatus::RemoteAccess)]);
    assert_eq!(pair.hosts[1].qp_events(), [QpEvent::AccessError]);
    assert_eq!(pair.states(), [QpState::Err; 2]);
}
