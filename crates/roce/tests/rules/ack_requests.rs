//! Which packets set AckReq: few, and always enough that every message is acknowledged.

use ferroce_roce::{
    Access, AttrMask, BindMw, MwKind, QpAttr, QpEvent, QpState, SendOp, Sge, WcStatus,
};

use ferroce_wire::Operation;

use crate::pair::{BASE, Knobs, Pair, SIZE, Sent, wr};
use crate::shorthand::REMOTE;

const OK: WcStatus = WcStatus::Success;

/// Returns a pair without timers. A message completes only if a packet sets AckReq.
fn pair_without_timers(change: impl FnOnce(&mut Knobs)) -> Pair {
    Pair::with(|knobs| {
        knobs.attr.timeout = 0;
        knobs.config.initial_window = 1 << 20;
        change(knobs);
    })
}

/// Returns the PSNs of the packets with AckReq.
fn ack_req_psns(packets: &[Sent]) -> Vec<u32> {
    let sets_ack_req = |sent: &&Sent| sent.packet().ack_req();
    packets.iter().filter(sets_ack_req).map(Sent::psn).collect()
}

/// Posts a WRITE of memory from `offset` on that faults `at` bytes behind its start.
fn write_with_hole(pair: &mut Pair, wr_id: u64, offset: u64, length: u32, at: u64) {
    let fault = BASE + offset + at;
    pair.hosts[0].ram.holes.borrow_mut().push(fault..fault + 1);
    let op = pair.write_op(None);
    pair.post_op(wr_id, op, offset, length);
}

#[test]
fn messages_sent_together_set_ack_req_once() {
    let mut pair = pair_without_timers(|_| {});
    for wr_id in 1..=5 {
        pair.write(wr_id, 3000);
    }
    let packets = pair.take(0);
    assert_eq!(packets.len(), 15);
    assert_eq!(ack_req_psns(&packets), [1014]);
    for packet in &packets {
        pair.deliver(packet);
    }
    pair.run();
    assert_eq!(pair.trace().last().unwrap(), "ACK 1014");
    assert_eq!(pair.done(0).len(), 5);
}

#[test]
fn stream_of_messages_sets_ack_req_several_times_per_window() {
    let mut pair = pair_without_timers(|_| {});
    for wr_id in 1..=12 {
        pair.write(wr_id, 64 << 10);
    }
    while pair.flush_some(0, 256) {}
    let psns = ack_req_psns(&pair.take(0));
    let window = (1 << 20) / (1024 + 256);
    assert!((4..=8).contains(&psns.len()), "{psns:?}");
    let gaps = psns.windows(2).map(|two| two[1] - two[0]);
    assert!(gaps.max().unwrap() <= window / 4, "{psns:?}");
    pair.run();
}

#[test]
fn messages_before_a_blocked_work_request_are_acknowledged() {
    // Round 1: the second READ waits for the first, because max_rd_atomic is 1.
    // Round 2: the local invalidate waits for all earlier work.
    let mut pair = pair_without_timers(|knobs| knobs.attr.max_rd_atomic = 1);
    let key = pair.hosts[0].mr.rkey();
    for round in 0..3 {
        pair.write(1, 100);
        pair.write(2, 100);
        match round {
            0 => pair.read(3, 100),
            1 => {
                pair.read(3, 100);
                pair.read(3, 100);
            }
            _ => pair.post(0, wr(3, SendOp::LocalInvalidate { key: key ^ 1 }, &[])),
        }
        pair.run();
        let done = pair.done(0);
        assert!(done.starts_with(&[(1, OK), (2, OK)]), "{round}: {done:?}");
        assert!(done.len() > 2, "{round}: {done:?}");
    }
}

#[test]
fn send_queue_drains_without_a_timer() {
    let mut pair = pair_without_timers(|_| {});
    for wr_id in 1..=4 {
        pair.write(wr_id, 5000);
    }
    pair.flush_some(0, 3);
    let attr = QpAttr {
        state: QpState::Sqd,
        en_sqd_async_notify: true,
        ..QpAttr::default()
    };
    pair.modify(0, &attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)], "the others were not started");
    assert_eq!(pair.hosts[0].qp_events(), [QpEvent::SqDrained]);
}

#[test]
fn fault_in_a_message_does_not_delay_completions_before_it() {
    // The fault is in each packet of the third message in turn, including its last, which
    // would set AckReq.
    for packet in 0..4 {
        let mut pair = pair_without_timers(|_| {});
        pair.write(1, 100);
        pair.write(2, 2000);
        write_with_hole(&mut pair, 3, 0x1000, 4096, packet * 1024);
        pair.run();
        let expected = [(1, OK), (2, OK), (3, WcStatus::LocalProtection)];
        assert_eq!(pair.done(0), expected, "packet {packet}");
    }
}

#[test]
fn first_of_several_faulting_messages_fails_and_the_rest_are_flushed() {
    for length in [1024, 4096] {
        let mut pair = pair_without_timers(|_| {});
        pair.write(1, 2000);
        for wr_id in 2..=4 {
            let last = u64::from(length) - 1;
            write_with_hole(&mut pair, wr_id, wr_id * 0x2000, length, last);
        }
        let mut turns = 0;
        while pair.flush_some(0, 64) {
            turns += 1;
            assert!(turns < 10, "still sending after {turns} turns");
        }
        pair.run();
        let (failed, flushed) = (WcStatus::LocalProtection, WcStatus::WrFlush);
        let expected = [(1, OK), (2, failed), (3, flushed), (4, flushed)];
        assert_eq!(pair.done(0), expected);
    }
}

#[test]
fn wrong_key_in_a_later_sge_does_not_delay_completions_before_it() {
    for good in [0, 1024, 5 * 1024] {
        let mut pair = pair_without_timers(|_| {});
        pair.write(1, 100);
        pair.write(2, 2000);
        let right = pair.hosts[0].sge(0, good);
        let wrong = Sge {
            lkey: 1,
            ..pair.hosts[0].sge(0, 3000)
        };
        let op = SendOp::Write {
            remote_addr: REMOTE,
            rkey: pair.rkey(),
            imm: None,
        };
        pair.post(0, wr(3, op, &[right, wrong]));
        pair.run();
        let expected = [(1, OK), (2, OK), (3, WcStatus::LocalProtection)];
        assert_eq!(pair.done(0), expected, "behind {good} bytes");
    }
}

#[test]
fn fault_behind_a_local_operation_does_not_delay_completions_before_it() {
    let mut pair = pair_without_timers(|_| {});
    pair.write(1, 2000);
    let host = &pair.hosts[0];
    let mw = host.regions.alloc_mw(&host.pd, MwKind::Type2B).unwrap();
    let bind = BindMw {
        rkey: mw.rkey() & !0xff | mw.rkey().wrapping_add(1) & 0xff,
        mw,
        mr: Some(host.mr.clone()),
        addr: BASE,
        length: 4096,
        access: Access::REMOTE_READ,
    };
    pair.post(0, wr(2, SendOp::BindMw(Box::new(bind)), &[]));
    write_with_hole(&mut pair, 3, 0x1000, 4096, 3072);
    pair.run();
    let expected = [(1, OK), (2, OK), (3, WcStatus::LocalProtection)];
    assert_eq!(pair.done(0), expected);
}

#[test]
fn message_that_fails_at_its_first_packet_causes_no_retransmission() {
    let mut pair = pair_without_timers(|_| {});
    pair.read(1, 3000);
    pair.write(2, 100);
    let wrong = Sge {
        lkey: 1,
        ..pair.hosts[0].sge(0, 3000)
    };
    let op = pair.write_op(None);
    pair.post(0, wr(3, op, &[wrong]));
    pair.run();
    let expected = [(1, OK), (2, OK), (3, WcStatus::LocalProtection)];
    assert_eq!(pair.done(0), expected);
    let requests = pair.log.iter().filter(|sent| sent.from == 0);
    assert_eq!(requests.count(), 2);
}

#[test]
fn read_before_a_faulting_message_is_requested_once() {
    let mut pair = pair_without_timers(|_| {});
    pair.read(1, 3000);
    pair.write(2, 2000);
    write_with_hole(&mut pair, 3, 0x1000, 4096, 2048);
    pair.run();
    let expected = [(1, OK), (2, OK), (3, WcStatus::LocalProtection)];
    assert_eq!(pair.done(0), expected);
    let reads = pair
        .log
        .iter()
        .filter(|sent| sent.is(Operation::ReadRequest));
    assert_eq!(reads.count(), 1);
}

#[test]
fn message_beyond_its_region_fails_wherever_the_region_ends() {
    // Lengths of one packet, and of several whose middle packets are sent as a uniform run.
    for length in [1024, 4096, 8000, 300_000] {
        let mut pair = pair_without_timers(|_| {});
        let op = pair.write_op(None);
        let sge = Sge {
            addr: BASE + SIZE as u64 - u64::from(length),
            ..pair.hosts[0].sge(0, length + 100)
        };
        pair.post(0, wr(1, op, &[sge]));
        pair.run();
        assert_eq!(pair.done(0), [(1, WcStatus::LocalProtection)], "{length}");
    }
}

#[test]
fn ack_is_sent_even_if_requests_fill_the_batch() {
    let mut pair = pair_without_timers(|_| {});
    pair.write(1, 8);
    for packet in pair.take(0) {
        pair.deliver(&packet);
    }
    // Host 1 has an ACK to send, and more request packets than a batch holds.
    pair.write_back(2, 500_000);
    pair.flush_some(1, 256);
    let has_ack = pair.wire.iter().any(|sent| sent.is(Operation::Acknowledge));
    assert!(has_ack);
    pair.run();
    assert_eq!(pair.done(1), [(2, OK)]);
}
