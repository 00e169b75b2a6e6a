//! Who asks for acknowledgements: one for many messages, and none that is waited for in vain.

use ferroce_transport::{
    Access, AttrMask, BindMw, MwKind, QpAttr, QpEvent, QpState, SendOp, Sge, WcStatus,
};

use ferroce_wire::Operation;

use crate::pair::{BASE, Knobs, Pair, SIZE, Sent, wr};
use crate::shorthand::REMOTE;

const OK: WcStatus = WcStatus::Success;

/// Without timers: whatever is to be answered must have asked.
fn pair_without_timers(change: impl FnOnce(&mut Knobs)) -> Pair {
    Pair::with(|knobs| {
        knobs.attr.timeout = 0;
        knobs.config.initial_window = 1 << 20;
        change(knobs);
    })
}

fn ack_req_psns(packets: &[Sent]) -> Vec<u32> {
    let asks = |sent: &&Sent| sent.packet().ack_req();
    packets.iter().filter(asks).map(Sent::psn).collect()
}

/// Posts a WRITE of memory from `offset` on that has a hole `at` so many bytes.
fn write_with_hole(pair: &mut Pair, wr_id: u64, offset: u64, length: u32, at: u64) {
    let gone = BASE + offset + at;
    pair.hosts[0].ram.holes.borrow_mut().push(gone..gone + 1);
    let op = pair.write_op(None);
    pair.post_op(wr_id, op, offset, length);
}

#[test]
fn messages_that_leave_together_ask_once() {
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
fn a_stream_of_messages_asks_a_few_times_a_window() {
    let mut pair = pair_without_timers(|_| {});
    for wr_id in 1..=12 {
        pair.write(wr_id, 64 << 10);
    }
    while pair.flush_some(0, 256) {}
    let asked = ack_req_psns(&pair.take(0));
    let window = (1 << 20) / (1024 + 256);
    assert!((4..=8).contains(&asked.len()), "{asked:?}");
    let gaps = asked.windows(2).map(|two| two[1] - two[0]);
    assert!(gaps.max().unwrap() <= window / 4, "{asked:?}");
    pair.run();
}

#[test]
fn what_leaves_before_something_that_waits_is_answered() {
    // A fenced WRITE waits for the READ, a READ for its turn, an invalidation for all.
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
fn a_send_queue_is_drained_without_a_timer() {
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
    assert_eq!(pair.done(0), [(1, OK)], "the others have not begun");
    assert_eq!(pair.hosts[0].qp_events(), [QpEvent::SqDrained]);
}

#[test]
fn a_message_whose_memory_is_gone_does_not_keep_those_before_it_waiting() {
    // Any packet of the third message may be missing, that which asks among them.
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
fn of_several_messages_whose_memory_is_gone_the_first_counts() {
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
            assert!(turns < 10, "it never ends");
        }
        pair.run();
        let (failed, flushed) = (WcStatus::LocalProtection, WcStatus::WrFlush);
        let expected = [(1, OK), (2, failed), (3, flushed), (4, flushed)];
        assert_eq!(pair.done(0), expected);
    }
}

#[test]
fn nor_does_one_with_a_wrong_key_behind_its_first_packets() {
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
fn nor_if_something_that_is_not_sent_is_between_them() {
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
fn nothing_is_asked_for_again_for_a_message_that_never_began() {
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
fn a_read_before_a_message_whose_memory_is_gone_is_asked_for_once() {
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
fn a_message_that_reaches_beyond_its_region_fails_wherever_the_region_ends() {
    // By itself, and long enough that what is before its last packet leaves as one.
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
fn an_acknowledgement_does_not_wait_for_a_window_of_requests() {
    let mut pair = pair_without_timers(|_| {});
    pair.write(1, 8);
    for packet in pair.take(0) {
        pair.deliver(&packet);
    }
    // Host 1 has an answer to give, and more to ask for than a batch takes.
    pair.write_back(2, 500_000);
    pair.flush_some(1, 256);
    let answered = pair.wire.iter().any(|sent| sent.is(Operation::Acknowledge));
    assert!(answered);
    pair.run();
    assert_eq!(pair.done(1), [(2, OK)]);
}
