//! Runs: packets are sent in groups that UDP generic segmentation offload accepts.

use ferroce_roce::{Batch, Path, QpType, RunLimits, SendOp, Trailer};
use ferroce_wire::{Flow, Mtu, icrc};

use crate::pair::{BASE, Knobs, Pair, wr};
use crate::shorthand::INBOX;

/// The limits of a UDP socket that steers by the top byte of the destination QPN.
const LIMITS: RunLimits = RunLimits {
    packets: 64,
    bytes: 65_000,
    qpn_mask: 0xff_0000,
};

/// Returns a pair whose window does not limit sending.
fn pair_with_large_window(change: impl FnOnce(&mut Knobs)) -> Pair {
    Pair::with(|knobs| {
        knobs.config.initial_window = 1 << 20;
        change(knobs);
    })
}

/// Returns the first batch of host 0.
fn batch(pair: &mut Pair) -> Batch {
    let mut batch = Batch::new(256, LIMITS);
    pair.hosts[0].engine.poll_transmit(pair.now, &mut batch);
    batch
}

/// Delivers a WRITE of host 0: host 1 has an ACK to send.
fn leave_ack_pending(pair: &mut Pair) {
    pair.write(1, 8);
    pair.flush(0);
    let request = pair.wire.pop_front().unwrap();
    pair.deliver(&request);
}

/// Checks what the kernel demands of a segmented send.
fn check(batch: &Batch) {
    let mut next = 0;
    for run in batch.runs() {
        assert_eq!(run.packets.start, next, "in order, without a gap");
        next = run.packets.end;
        assert!((1..=LIMITS.packets).contains(&run.packets.len()));
        let lengths: Vec<usize> = run
            .packets
            .clone()
            .map(|n| batch.packet(n).wire_len())
            .collect();
        let (last, others) = lengths.split_last().unwrap();
        assert!(others.iter().all(|&length| length == run.segment));
        assert!(*last <= run.segment);
        assert!(lengths.iter().sum::<usize>() <= LIMITS.bytes);
    }
    assert_eq!(next, batch.len());
}

#[test]
fn a_send_is_one_run() {
    for (mtu, length) in [
        (Mtu::Mtu1024, 60_000),
        (Mtu::Mtu1024, 62 * 1024),
        (Mtu::Mtu4096, 61_440),
    ] {
        for qp_type in [QpType::Rc, QpType::Uc] {
            let mut pair = pair_with_large_window(|knobs| {
                knobs.attr.path_mtu = mtu;
                knobs.qp_type = qp_type;
            });
            pair.send(1, length);
            let batch = batch(&mut pair);
            check(&batch);
            assert_eq!(batch.runs().len(), 1);
            assert_eq!(batch.len(), (length as usize).div_ceil(mtu.bytes()));
        }
    }
}

#[test]
fn send_of_64_kib_takes_two_runs() {
    for mtu in [Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096] {
        let mut pair = pair_with_large_window(|knobs| knobs.attr.path_mtu = mtu);
        pair.send(1, 65_536);
        let batch = batch(&mut pair);
        check(&batch);
        assert_eq!(
            batch.runs().len(),
            2,
            "with headers it exceeds the kernel's limit for one send"
        );
    }
}

#[test]
fn a_write_is_two_runs_because_its_first_packet_is_longer() {
    let mut pair = pair_with_large_window(|_| {});
    pair.write(1, 60_000);
    let batch = batch(&mut pair);
    check(&batch);
    assert_eq!(batch.runs().len(), 2);
}

#[test]
fn batch_limit_does_not_split_a_run() {
    for read in [false, true] {
        let mut pair = pair_with_large_window(|knobs| knobs.attr.max_rd_atomic = 8);
        for wr_id in 0..6 {
            match read {
                true => pair.read(wr_id, 100 * 1024),
                false => pair.write(wr_id, 100 * 1024),
            }
        }
        if read {
            for request in pair.take(0) {
                pair.deliver(&request);
            }
        }
        let sender = &mut pair.hosts[usize::from(read)];
        let (mut runs, mut packets) = (0, 0);
        let mut batch = Batch::new(256, LIMITS);
        while sender.engine.poll_transmit(pair.now, &mut batch) || !batch.is_empty() {
            check(&batch);
            assert!(batch.len() < 256 + LIMITS.packets);
            runs += batch.runs().len();
            packets += batch.len();
            sender.engine.finish_transmit(pair.now, &mut batch);
        }
        assert_eq!(packets, 600);
        let most = if read { 6 * 4 } else { 6 * 3 };
        assert!(
            runs <= most,
            "{runs} runs; FIRST has a longer header, and a run has 62 packets"
        );
    }
}

#[test]
fn read_responses_form_runs() {
    let mut pair = pair_with_large_window(|_| {});
    pair.read(1, 40_000);
    for packet in pair.take(0) {
        pair.deliver(&packet);
    }
    let mut batch = Batch::new(256, LIMITS);
    pair.hosts[1].engine.poll_transmit(pair.now, &mut batch);
    check(&batch);
    assert_eq!(batch.len(), 40);
    assert!(
        batch.runs().len() <= 3,
        "FIRST and LAST have a longer header"
    );
}

#[test]
fn all_segments_of_a_run_but_the_last_have_one_length() {
    for size in [1, 5, 64, 256] {
        let mut pair = pair_with_large_window(|_| {});
        for wr_id in 0..4 {
            pair.send(wr_id, 10 + 1000 * wr_id as u32);
            pair.read(wr_id, 2000);
            pair.write(wr_id, 5000);
            pair.fetch_add(wr_id, 1);
            let op = SendOp::Send { imm: Some(1) };
            pair.post_op(wr_id, op, INBOX, 1024 * wr_id as u32);
        }
        loop {
            let mut batch = Batch::new(size, LIMITS);
            let host = &mut pair.hosts[0];
            host.engine.poll_transmit(pair.now, &mut batch);
            check(&batch);
            assert!(batch.len() <= size);
            if batch.is_empty() {
                break;
            }
            host.engine.finish_transmit(pair.now, &mut batch);
        }
    }
}

#[test]
fn a_run_has_one_destination() {
    let mut pair = pair_with_large_window(|knobs| knobs.qp_type = QpType::Ud);
    let other = std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 77));
    for wr_id in 0..6 {
        let to = if wr_id % 3 == 2 {
            other
        } else {
            pair.hosts[1].address
        };
        let target = pair.target(to, 16);
        pair.datagram_to(wr_id, 100, target);
    }
    let batch = batch(&mut pair);
    check(&batch);
    let runs: Vec<_> = batch
        .runs()
        .iter()
        .map(|run| (run.path.flow.destination == other, run.packets.len()))
        .collect();
    assert_eq!(runs, [(false, 2), (true, 1), (false, 2), (true, 1)]);
}

#[test]
fn queue_pairs_share_a_run_if_the_qpn_mask_permits() {
    for (limits, expected) in [(LIMITS, vec![2, 1, 3]), (RunLimits::NONE, vec![6])] {
        let mut pair = pair_with_large_window(|knobs| knobs.qp_type = QpType::Ud);
        let peer = pair.hosts[1].address;
        let qpns = [
            0x01_0016, 0x01_ffff, 0x02_0016, 0x03_0000, 0x03_0001, 0x03_0002,
        ];
        for qpn in qpns {
            let target = pair.target(peer, qpn);
            pair.datagram_to(1, 100, target);
        }
        let mut batch = Batch::new(256, limits);
        pair.hosts[0].engine.poll_transmit(pair.now, &mut batch);
        let runs: Vec<_> = batch.runs().iter().map(|run| run.packets.len()).collect();
        assert_eq!(runs, expected);
        for run in batch.runs() {
            assert_eq!(run.dest_qpn(), qpns[run.packets.start]);
        }
    }
}

#[test]
fn path_clears_the_ip_id_of_ipv4_trailers_only() {
    for (source, renumbers) in [("192.0.2.1", true), ("2001:db8::1", false)] {
        let address = source.parse().unwrap();
        let flow = Flow {
            source: address,
            destination: address,
            source_port: 0xc000,
        };
        let path = Path::new(flow, 0, 64);
        let body = [7; 32];
        let packet = [&body[..], &icrc::compute(&flow, 3, &body)].concat();
        let expected = renumbers.then(|| (&body[..], icrc::compute(&flow, 0, &body)));
        assert_eq!(path.clear_ip_id(3, &packet), expected);
        assert_eq!(path.clear_ip_id(0, &packet), None, "nothing to change");
    }
}

#[test]
fn ack_shares_a_run_with_the_request_before_it() {
    let mut pair = Pair::rc();
    leave_ack_pending(&mut pair);
    // Host 1 has a request of its own, too.
    pair.write_back(2, 8);
    let mut batch = Batch::new(256, LIMITS);
    pair.hosts[1].engine.poll_transmit(pair.now, &mut batch);
    check(&batch);
    assert_eq!(batch.runs().len(), 1, "one system call");
    assert_eq!(batch.len(), 2);
    assert_eq!(batch.runs()[0].segment, batch.packet(0).wire_len());
    let opcodes = [0, 1].map(|n| batch.packet(n).header()[0]);
    assert_eq!(opcodes, [0x0a, 0x11], "WRITE ONLY, then ACKNOWLEDGE");
}

/// Posts answers of these lengths to a request that is not acknowledged. Returns the place of the ACK among
/// the packets, and the number of runs.
fn place_of_ack(lengths: &[u32], peer_is_here: bool) -> (usize, usize) {
    const ACK: u8 = 0x11;
    let mut pair = pair_with_large_window(|knobs| knobs.cap.max_send_wr = 128);
    if peer_is_here {
        let qpn = pair.hosts[1].qpn;
        let engine = &mut pair.hosts[1].engine;
        engine.set_local_peer(qpn, 1, false).unwrap();
    }
    leave_ack_pending(&mut pair);
    for &length in lengths {
        let sges = [pair.hosts[1].sge(0, length)];
        pair.post(1, wr(2, SendOp::Send { imm: None }, &sges));
    }
    let mut batch = Batch::new(256, LIMITS);
    pair.hosts[1].engine.poll_transmit(pair.now, &mut batch);
    check(&batch);
    let mut opcodes = (0..batch.len()).map(|n| batch.packet(n).header()[0]);
    let place = opcodes.position(|opcode| opcode == ACK).unwrap();
    (place, batch.runs().len())
}

/// A program may answer a request before its ACK has left. The answer must not complete at the peer before
/// the request does.
#[test]
fn ack_precedes_answers_that_form_several_runs() {
    // A peer on the same host finds an ACK at the end of a run.
    for lengths in [&[8][..], &[8, 8, 8]] {
        assert_eq!(place_of_ack(lengths, true), (lengths.len(), 1));
    }
    for lengths in [&[8, 600][..], &[0], &[3000], &[8; 70]] {
        assert_eq!(place_of_ack(lengths, true).0, 0, "{lengths:?}");
    }
}

/// A network separates the packets of a run. A peer that gets the answer first completes its receive before
/// the request.
#[test]
fn ack_precedes_answers_to_another_host() {
    for lengths in [&[8][..], &[8, 8, 8], &[8, 600], &[0]] {
        assert_eq!(place_of_ack(lengths, false).0, 0, "{lengths:?}");
    }
}

/// Both ends send the first ACKs twice, before and behind the answer. Once the peer's runs have arrived whole, the ACK
/// goes behind the answer; after a separated one, before it.
#[test]
fn ack_goes_behind_answers_while_runs_arrive_whole() {
    const SEND: u8 = 0x04;
    const ACK: u8 = 0x11;
    for (whole, separated, expected) in [
        (0, false, &[&[ACK][..], &[SEND, ACK]][..]),
        (63, false, &[&[ACK], &[SEND, ACK]]),
        (64, false, &[&[SEND, ACK]]),
        (64, true, &[&[ACK], &[SEND]]),
        (0, true, &[&[ACK], &[SEND]]),
    ] {
        let mut pair = Pair::rc();
        let qpn = pair.hosts[1].qpn;
        let engine = &mut pair.hosts[1].engine;
        let psn = engine.query_qp(qpn).unwrap().attr.sq_psn;
        let mut ack = [0; 20];
        ack[0] = ACK;
        ack[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
        ack[9..12].copy_from_slice(&psn.prev().value().to_be_bytes()[1..]);
        (0..whole).for_each(|_| engine.note_ack_arrival(&ack, false));
        if separated {
            engine.note_ack_arrival(&ack, true);
        }
        leave_ack_pending(&mut pair);
        let sges = [pair.hosts[1].sge(0, 8)];
        pair.post(1, wr(2, SendOp::Send { imm: None }, &sges));
        let mut batch = Batch::new(256, LIMITS);
        pair.hosts[1].engine.poll_transmit(pair.now, &mut batch);
        check(&batch);
        let opcode = |n| batch.packet(n).header()[0];
        let runs = batch.runs().iter().map(|run| run.packets.clone());
        let opcodes: Vec<Vec<u8>> = runs.map(|run| run.map(opcode).collect()).collect();
        assert_eq!(opcodes, expected, "{whole} whole runs");
    }
}

#[test]
fn ack_follows_writes_that_form_several_runs() {
    let mut pair = Pair::rc();
    leave_ack_pending(&mut pair);
    pair.write_back(2, 8);
    pair.write_back(3, 600);
    let mut batch = Batch::new(256, LIMITS);
    pair.hosts[1].engine.poll_transmit(pair.now, &mut batch);
    assert_eq!(batch.packet(batch.len() - 1).header()[0], 0x11);
}

#[test]
fn responses_are_sent_in_psn_order() {
    let mut pair = Pair::rc();
    pair.write(1, 8);
    pair.read(2, 600);
    pair.flush(0);
    while let Some(request) = pair.wire.pop_front() {
        pair.deliver(&request);
    }
    let mut batch = Batch::new(256, LIMITS);
    pair.hosts[1].engine.poll_transmit(pair.now, &mut batch);
    check(&batch);
    let psns: Vec<u8> = (0..batch.len())
        .map(|n| batch.packet(n).header()[11])
        .collect();
    assert!(psns.is_sorted(), "{psns:?}");
}

#[test]
fn uniform_packets_equal_packets_built_one_by_one() {
    // Windows that hold the whole message, and windows that do not.
    for (qp_type, window) in [
        (QpType::Rc, 1 << 20),
        (QpType::Rc, 30_000),
        (QpType::Rc, 9_000),
        (QpType::Uc, 1 << 20),
    ] {
        // With one SGE the middle packets are a uniform run; with two they are built one by one.
        let [whole, halves] = [vec![100_000], vec![50_001, 49_999]].map(|pieces| {
            let mut pair = Pair::with(|knobs| {
                knobs.qp_type = qp_type;
                knobs.config.initial_window = window;
                knobs.config.max_window = window;
            });
            let bytes: Vec<u8> = (0..100_000).map(|i| (i % 251) as u8).collect();
            pair.hosts[0].ram.put(BASE, &bytes);
            let mut offset = 0;
            let sges: Vec<_> = pieces
                .into_iter()
                .map(|length| {
                    let sge = pair.hosts[0].sge(offset, length);
                    offset += u64::from(length);
                    sge
                })
                .collect();
            let op = pair.write_op(None);
            pair.post(0, wr(1, op, &sges));
            pair.run_until_idle();
            pair.log
        });
        assert_eq!(whole.len(), halves.len());
        for (a, b) in whole.iter().zip(&halves) {
            assert_eq!((a.from, a.ip_id, &a.bytes), (b.from, b.ip_id, &b.bytes));
        }
    }
}

#[test]
fn uniform_read_responses_equal_responses_built_one_by_one() {
    let [together, one_by_one] = [64, 1].map(|limit| {
        let mut pair = pair_with_large_window(|_| {});
        pair.read(1, 50_000);
        pair.flush(0);
        let request = pair.wire.pop_front().unwrap();
        pair.deliver(&request);
        while pair.flush_some(1, limit) {}
        let packets = pair.wire.iter();
        // IP identifications differ, and so do the ICRCs: compare the rest.
        packets
            .map(|sent| sent.bytes[..sent.bytes.len() - 4].to_vec())
            .collect::<Vec<_>>()
    });
    assert_eq!(together.len(), 49);
    assert!(together == one_by_one);
}

#[test]
fn assembled_run_equals_its_assembled_packets() {
    for hole in [None, Some(20_000)] {
        let mut pair = pair_with_large_window(|_| {});
        // The ACK is sent behind the message.
        leave_ack_pending(&mut pair);
        let bytes: Vec<u8> = (0..100_000).map(|i| (i % 251) as u8).collect();
        let host = &pair.hosts[1];
        host.ram.put(BASE, &bytes);
        host.ram
            .holes
            .borrow_mut()
            .extend(hole.map(|at| BASE + at..BASE + at + 1));
        pair.write_back(2, 60_000);
        let mut batch = Batch::new(256, LIMITS);
        let host = &mut pair.hosts[1];
        host.engine.poll_transmit(pair.now, &mut batch);
        check(&batch);
        let (mut faults, mut others) = (Vec::new(), Vec::new());
        for run in batch.runs() {
            let mut bytes = vec![0; LIMITS.bytes + 100];
            let trailer = Trailer::Numbered;
            let length = batch.assemble_run(run, trailer, &host.ram, &mut bytes, &mut faults);
            let (mut end, mut id) = (0, 0);
            let mut expected = vec![0; LIMITS.bytes + 100];
            for number in run.packets.clone() {
                match batch.assemble(number, &run.path, id, &host.ram, &mut expected[end..]) {
                    Ok(length) => {
                        end += length;
                        id += 1;
                    }
                    Err(fault) => others.push((number, fault)),
                }
            }
            assert!(bytes[..length] == expected[..end]);
        }
        assert_eq!(faults, others);
        let gone: Vec<usize> = faults.iter().map(|&(number, _)| number).collect();
        assert_eq!(
            gone,
            hole.map(|at| (at / 1024) as usize)
                .into_iter()
                .collect::<Vec<_>>()
        );
    }
}

/// While a response is on its way, short messages wait for each other until they fill a run.
#[test]
fn messages_below_16_kib_wait_until_they_fill_a_run() {
    for (length, waiting) in [(64, 15), (4096, 15), (8192, 7), (12288, 5), (16384, 0)] {
        let mut pair = Pair::rc();
        let op = pair.write_op(None);
        let sges = [pair.hosts[0].sge(0, 64)];
        pair.post(0, wr(0, op.clone(), &sges));
        pair.flush(0);
        let sges = [pair.hosts[0].sge(0, length)];
        let mut waited = 0;
        loop {
            let host = &mut pair.hosts[0];
            let posted = host
                .engine
                .post_send(pair.now, host.qpn, wr(1, op.clone(), &sges));
            posted.expect("room in the send queue");
            if !host.engine.posts_may_wait(host.qpn) {
                break;
            }
            waited += 1;
        }
        assert_eq!(waited, waiting, "messages of {length} bytes");
    }
}
