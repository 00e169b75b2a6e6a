//! FLUSH: makes earlier writes visible or persistent. Includes rxe's different ICRC of FLUSH.

use ferroce_roce::{Access, MemRef, Received, SendOp, WcOpcode, WcStatus};
use ferroce_wire::icrc;

use crate::pair::{BASE, Pair, SIZE, Sent, all_access};
use crate::shorthand::REMOTE;

const OK: WcStatus = WcStatus::Success;

fn flush(pair: &Pair, placement: u8, selectivity: u8) -> SendOp {
    SendOp::Flush {
        remote_addr: REMOTE,
        rkey: pair.rkey(),
        length: 64,
        placement,
        selectivity,
    }
}

#[test]
fn a_flush_names_a_range_or_the_whole_region() {
    for (placement, persistent) in [(1, false), (2, true), (3, true)] {
        for (selectivity, range) in [(0, (REMOTE, 64)), (1, (BASE, SIZE as u64))] {
            let mut pair = Pair::rc();
            let op = flush(&pair, placement, selectivity);
            pair.post_op(1, op, 0, 0);
            pair.run();
            assert_eq!(pair.trace(), ["FLUSH 1000", "READ_RESPONSE_ONLY 1000"]);
            let done = pair.hosts[0].completions()[0];
            assert_eq!(
                (done.status, done.opcode, done.byte_len),
                (OK, WcOpcode::Flush, 0)
            );
            let flushed = pair.hosts[1].ram.flushes.borrow().clone();
            assert_eq!(flushed, [(range.0, range.1, persistent)]);
        }
    }
}

#[test]
fn flush_is_executed_after_the_writes_before_it() {
    let mut pair = Pair::rc();
    pair.write(1, 3000);
    let op = flush(&pair, 1, 0);
    pair.post_op(2, op, 0, 0);
    pair.run_losing(crate::shorthand::first_match(|sent| sent.psn() == 1001));
    assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
    assert!(pair.was_written(3000));
}

#[test]
fn a_flush_needs_permission_of_queue_pair_and_region() {
    for (placement, need) in [(1, Access::FLUSH_GLOBAL), (2, Access::FLUSH_PERSISTENT)] {
        let mut pair = Pair::with(|knobs| knobs.attr.access -= need);
        let op = flush(&pair, placement, 0);
        pair.post_op(1, op, 0, 0);
        pair.run();
        assert_eq!(pair.done(0), [(1, WcStatus::RemoteInvalidRequest)]);

        let mut pair = Pair::rc();
        let host = &mut pair.hosts[1];
        let access = all_access() - need;
        host.mr = host
            .regions
            .register(&host.pd, MemRef::host(REMOTE), 4096, REMOTE, access)
            .unwrap();
        for selectivity in [0, 1] {
            let op = flush(&pair, placement, selectivity);
            pair.post_op(1, op, 0, 0);
        }
        pair.run();
        assert_eq!(pair.done(0)[0], (1, WcStatus::RemoteAccess));
        assert!(pair.hosts[1].ram.flushes.borrow().is_empty());
    }
}

/// Returns whether the ICRC of a FLUSH is valid by the specification, and by rxe's rule.
fn icrc_kinds(sent: &Sent) -> (bool, bool) {
    let flow = &sent.path.flow;
    (
        icrc::verify(flow, sent.ip_id, &sent.bytes),
        icrc::verify_flush_quirk(flow, sent.ip_id, &sent.bytes),
    )
}

#[test]
fn a_flush_with_the_icrc_of_rxe_is_accepted() {
    let mut pair = Pair::rc();
    let op = flush(&pair, 1, 0);
    pair.post_op(1, op, 0, 0);
    let mut sent = pair.take(0).remove(0);
    assert_eq!(icrc_kinds(&sent), (true, false));
    let end = sent.bytes.len() - 4;
    let quirk = icrc::compute_flush_quirk(&sent.path.flow, sent.ip_id, &sent.bytes[..end]);
    sent.bytes[end..].copy_from_slice(&quirk);
    assert_eq!(pair.deliver(&sent), Received::Accepted);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
}

#[test]
fn unanswered_flush_is_retransmitted_with_the_icrc_of_rxe() {
    let mut pair = Pair::rc();
    let op = flush(&pair, 1, 0);
    pair.post_op(1, op, 0, 0);
    let mut kinds = Vec::new();
    for _ in 0..4 {
        let sent = pair.take(0).remove(0);
        kinds.push(icrc_kinds(&sent));
        pair.fire_next_timer();
    }
    let (plain, quirk) = ((true, false), (false, true));
    assert_eq!(kinds, [plain, quirk, plain, quirk]);
}

#[test]
fn icrc_kind_that_worked_is_used_for_the_next_flush() {
    let mut pair = Pair::rc();
    let op = flush(&pair, 1, 0);
    pair.post_op(1, op.clone(), 0, 0);
    pair.take(0); // lost, as with rxe
    pair.fire_next_timer();
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
    pair.post_op(2, op, 0, 0);
    let sent = pair.take(0).remove(0);
    assert_eq!(icrc_kinds(&sent), (false, true));
}
