//! UC: a message is delivered whole or dropped, without ACKs.

use ferroce_roce::{Batch, Counter, Drop, Fault, QpState, QpType, Received, SendOp, WcStatus};
use ferroce_wire::Psn;

use crate::pair::{BASE, Pair, wr};
use crate::shorthand::{INBOX, REMOTE};

const OK: WcStatus = WcStatus::Success;

fn uc() -> Pair {
    Pair::with(|knobs| knobs.qp_type = QpType::Uc)
}

#[test]
fn uc_messages_are_delivered_without_acks() {
    let mut pair = uc();
    pair.recv(7, 5000);
    pair.recv(8, 5000);
    pair.post_op(1, SendOp::Send { imm: Some(3) }, 0, 3000);
    let op = pair.write_op(Some(4));
    pair.post_op(2, op, 0, 2000);
    pair.write(3, 2000);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK), (2, OK), (3, OK)]);
    let got = pair.hosts[1].completions();
    let seen: Vec<_> = got
        .iter()
        .map(|wc| (wc.wr_id, wc.byte_len, wc.imm))
        .collect();
    assert_eq!(seen, [(7, 3000, 3), (8, 2000, 4)]);
    assert!(pair.was_received(3000) && pair.was_written(2000));
    assert!(pair.log.iter().all(|sent| sent.from == 0));
    assert!(pair.log.iter().all(|sent| !sent.packet().ack_req()));
}

#[test]
fn uc_send_completes_when_its_batch_is_sent() {
    let mut pair = uc();
    pair.write(1, 3000);
    let host = &mut pair.hosts[0];
    let mut batch = Batch::new(64, ferroce_roce::RunLimits::NONE);
    host.engine.poll_transmit(pair.now, &mut batch);
    assert_eq!(batch.len(), 3);
    assert_eq!(host.completions(), []);
    host.engine.finish_transmit(pair.now, &mut batch);
    assert_eq!(pair.done(0), [(1, OK)]);
}

#[test]
fn fault_reported_before_the_batch_is_sent_fails_its_message_in_order() {
    let mut pair = uc();
    pair.write(1, 100);
    pair.write(2, 100);
    let host = &mut pair.hosts[0];
    let mut batch = Batch::new(64, ferroce_roce::RunLimits::NONE);
    host.engine.poll_transmit(pair.now, &mut batch);
    batch.fault(1, Fault::host(0));
    host.engine.fail_unreadable(pair.now, &mut batch);
    assert_eq!(host.completions(), [], "the first is not sent yet");
    host.engine.finish_transmit(pair.now, &mut batch);
    let failed = WcStatus::LocalProtection;
    assert_eq!(pair.done(0), [(1, OK), (2, failed)]);
    assert_eq!(pair.hosts[0].state(), QpState::Sqe);
}

#[test]
fn uc_send_in_several_batches_completes_with_the_last() {
    let mut pair = uc();
    pair.write(1, 3000);
    pair.write(2, 100);
    for done in [vec![], vec![], vec![(1, OK)], vec![(2, OK)]] {
        pair.flush_some(0, 1);
        assert_eq!(pair.done(0), done);
    }
}

#[test]
fn uc_message_with_a_lost_packet_is_dropped_and_its_receive_reused() {
    for lost in 0..3 {
        let mut pair = uc();
        pair.recv(7, 5000);
        pair.recv(8, 5000);
        pair.send(1, 3000);
        pair.post_op(2, SendOp::Send { imm: None }, 0x1000, 3000);
        pair.send(3, 10);
        pair.run_losing(|sent| sent.psn() == 1000 + lost);
        assert_eq!(pair.done(1), [(7, OK), (8, OK)], "{lost}");
        assert_eq!(pair.hosts[1].state(), QpState::Rts);
        let got = pair.hosts[1].ram.get(BASE + INBOX + 10, 2990);
        assert_eq!(got, pair.hosts[0].ram.get(BASE + 0x1000 + 10, 2990));
        assert_eq!(pair.hosts[1].query().attr.rq_psn, Psn::new(1007));
    }
}

#[test]
fn uc_packets_after_a_gap_are_dropped_until_a_message_starts() {
    let mut pair = uc();
    pair.recv(7, 5000);
    pair.send(1, 5000);
    let packets = pair.take(0);
    let dropped = Received::Dropped(Drop::OutOfSequence);
    assert_eq!(pair.deliver(&packets[0]), Received::Accepted);
    assert_eq!(pair.deliver(&packets[2]), dropped);
    assert_eq!(
        pair.deliver(&packets[3]),
        dropped,
        "although its PSN is the next"
    );
    assert_eq!(
        pair.deliver(&packets[1]),
        dropped,
        "a late packet is dropped too"
    );
    assert_eq!(pair.hosts[1].count(Counter::RxDropped), 3);
    assert_eq!(pair.done(1), []);
    pair.send(2, 10);
    pair.run();
    assert_eq!(pair.done(1), [(7, OK)]);
}

#[test]
fn partial_uc_write_completes_no_receive() {
    let mut pair = uc();
    pair.recv(7, 100);
    let op = pair.write_op(Some(1));
    pair.hosts[1].ram.put(REMOTE, &[0; 3000]);
    pair.post_op(1, op, 0, 3000);
    pair.run_losing(|sent| sent.psn() == 1001);
    assert_eq!(pair.done(1), []);
    assert!(pair.was_written(1024));
    assert_eq!(pair.hosts[1].ram.get(REMOTE + 1024, 1976), [0; 1976]);
    pair.send(2, 100);
    pair.run();
    assert_eq!(pair.done(1), [(7, OK)]);
}

#[test]
fn uc_message_without_a_receive_is_dropped_whole() {
    let mut pair = uc();
    pair.send(1, 3000);
    let packets = pair.take(0);
    let lacks = |pair: &Pair, n: usize| {
        let engine = &pair.hosts[1].engine;
        engine.lacks_receive(&packets[n].bytes)
    };
    assert!(lacks(&pair, 0), "no receive is posted");
    assert!(!lacks(&pair, 1), "the first packet takes the receive");
    assert_eq!(
        pair.deliver(&packets[0]),
        Received::Dropped(Drop::NoReceive)
    );
    assert_eq!(pair.hosts[1].count(Counter::RxNoReceive), 1);
    pair.recv(7, 5000);
    assert!(!lacks(&pair, 0));
    pair.deliver(&packets[1]);
    pair.deliver(&packets[2]);
    assert_eq!(
        pair.done(1),
        [],
        "a message is not received from its middle"
    );
    pair.send(2, 3000);
    pair.run();
    assert_eq!(pair.done(1), [(7, OK)]);
}

#[test]
fn uc_write_with_a_wrong_key_is_dropped_without_nak() {
    let mut pair = uc();
    let op = SendOp::Write {
        remote_addr: REMOTE,
        rkey: 1,
        imm: None,
    };
    let before = pair.hosts[1].ram.get(REMOTE, 3000);
    pair.post_op(1, op, 0, 3000);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)]);
    assert_eq!(pair.hosts[1].ram.get(REMOTE, 3000), before);
    assert_eq!(pair.hosts[1].state(), QpState::Rts);
    pair.write(2, 3000);
    pair.run();
    assert!(pair.was_written(3000));
}

#[test]
fn uc_message_longer_than_its_receive_moves_the_receiver_to_err() {
    let mut pair = uc();
    pair.recv(7, 2000);
    pair.send(1, 3000);
    pair.run();
    assert_eq!(pair.done(0), [(1, OK)], "the sender gets no error");
    assert_eq!(pair.done(1), [(7, WcStatus::LocalLength)]);
    assert_eq!(pair.states(), [QpState::Rts, QpState::Err]);
}

#[test]
fn read_atomic_and_send_with_invalidate_are_refused_on_uc() {
    let mut pair = uc();
    let (remote_addr, rkey) = (REMOTE, pair.rkey());
    for op in [
        SendOp::Read { remote_addr, rkey },
        SendOp::FetchAdd {
            remote_addr,
            rkey,
            add: 1,
        },
        SendOp::SendInvalidate { rkey },
        SendOp::AtomicWrite { remote_addr, rkey },
    ] {
        let host = &mut pair.hosts[0];
        let sges = [host.sge(0, 8)];
        let wr = crate::pair::wr(1, op, &sges);
        let refused = host.engine.post_send(pair.now, host.qpn, wr);
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains("is not for a Uc queue pair")
        );
    }
}

#[test]
fn uc_psns_wrap() {
    let mut pair = Pair::with(|knobs| {
        knobs.qp_type = QpType::Uc;
        knobs.attr.sq_psn = Psn::new(0xff_fffe);
        knobs.attr.rq_psn = Psn::new(0xff_fffe);
    });
    pair.recv(7, 5000);
    pair.send(1, 5000);
    pair.run();
    assert_eq!(pair.done(1), [(7, OK)]);
}

#[test]
fn uc_local_invalidate_waits_until_earlier_messages_are_sent() {
    let mut pair = uc();
    pair.write(1, 100);
    pair.post(0, wr(2, SendOp::LocalInvalidate { key: 0 }, &[]));
    pair.run();
    let done: Vec<u64> = pair.done(0).iter().map(|(wr_id, _)| *wr_id).collect();
    assert_eq!(done, [1, 2]);
}
