//! Operations and their variants: inline data, gather lists, fences, completions, limits.

use ferroce_roce::{
    SendData, SendFlags, SendOp, SendWr, Sge, VerbsError, WcFlags, WcOpcode, WcStatus,
};

use crate::pair::{BASE, Pair, wr};
use crate::shorthand::{INBOX, REMOTE};

const OK: WcStatus = WcStatus::Success;

fn post(pair: &mut Pair, wr: SendWr<'_>) -> Result<(), VerbsError> {
    let host = &mut pair.hosts[0];
    host.engine.post_send(pair.now, host.qpn, wr)
}

fn inline(wr_id: u64, op: SendOp, data: &[u8]) -> SendWr<'_> {
    SendWr {
        data: SendData::Inline(data),
        flags: SendFlags::INLINE,
        ..wr(wr_id, op, &[])
    }
}

#[test]
fn inline_data_is_copied_when_it_is_posted() {
    let mut pair = Pair::rc();
    pair.recv(7, 100);
    let mut data = *b"the bytes at the time of post";
    post(&mut pair, inline(1, SendOp::Send { imm: None }, &data)).unwrap();
    let op = pair.write_op(None);
    post(&mut pair, inline(2, op, &data)).unwrap();
    let sent = data;
    data.fill(0);
    pair.run_until_idle();
    assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
    assert_eq!(pair.hosts[1].ram.get(BASE + INBOX, sent.len()), sent);
    assert_eq!(pair.hosts[1].ram.get(REMOTE, sent.len()), sent);
}

#[test]
fn inline_data_survives_a_retry() {
    let mut pair = Pair::rc();
    let op = pair.write_op(None);
    post(&mut pair, inline(1, op, b"twice")).unwrap();
    pair.run_losing(|_| true);
    pair.run_until_idle();
    assert_eq!(pair.hosts[1].ram.get(REMOTE, 5), *b"twice");
}

#[test]
fn inline_data_is_limited_and_for_sends_and_writes_only() {
    let mut pair = Pair::rc();
    let most = pair.hosts[0].query().cap.max_inline_data as usize;
    let (write, read) = (pair.write_op(None), pair.read_op());
    assert!(post(&mut pair, inline(1, write.clone(), &vec![1; most])).is_ok());
    let refused = post(&mut pair, inline(2, write, &vec![1; most + 1]));
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("the queue was created for")
    );
    let refused = post(&mut pair, inline(3, read, &[1; 8]));
    assert!(matches!(refused, Err(VerbsError::Invalid(_))));
}

#[test]
fn gather_list_is_limited_to_32_elements() {
    let mut pair = Pair::with(|knobs| {
        knobs.cap.max_send_sge = 32;
        knobs.cap.max_recv_sge = 32;
    });
    let pieces = |pair: &Pair, side: usize, base: u64, n: u64| -> Vec<Sge> {
        (0..n)
            .map(|i| pair.hosts[side].sge(base + i * 0x100, 77))
            .collect()
    };
    let (from, to) = (pieces(&pair, 0, 0, 32), pieces(&pair, 1, INBOX, 32));
    pair.post_recv(1, 7, &to);
    pair.post(0, wr(1, SendOp::Send { imm: None }, &from));
    pair.run_until_idle();
    assert_eq!(pair.done(1), [(7, OK)]);
    for i in 0..32 {
        let got = pair.hosts[1].ram.get(BASE + INBOX + i * 0x100, 77);
        assert_eq!(got, pair.hosts[0].ram.get(BASE + i * 0x100, 77));
    }
    let many = pieces(&pair, 0, 0, 33);
    let refused = post(&mut pair, wr(2, SendOp::Send { imm: None }, &many));
    assert!(matches!(refused, Err(VerbsError::Invalid(_))));
}

#[test]
fn zero_length_messages_are_sent_and_complete() {
    let mut pair = Pair::rc();
    pair.recv(7, 0);
    pair.send(1, 0);
    pair.write(2, 0);
    pair.read(3, 0);
    let send = wr(4, SendOp::Send { imm: Some(1) }, &[]);
    pair.post_recv(1, 8, &[]);
    pair.post(0, send);
    pair.run_until_idle();
    assert_eq!(pair.done(0), [(1, OK), (2, OK), (3, OK), (4, OK)]);
    assert_eq!(pair.done(1), [(7, OK), (8, OK)]);
    assert_eq!(
        pair.trace()[..4],
        [
            "SEND_ONLY 1000",
            "WRITE_ONLY 1001",
            "READ_REQUEST 1002",
            "SEND_ONLY_IMM 1003"
        ]
    );
}

#[test]
fn packets_are_first_middle_last_or_only() {
    for (length, want) in [
        (1024, vec!["ONLY"]),
        (1025, vec!["FIRST", "LAST"]),
        (2049, vec!["FIRST", "MIDDLE", "LAST"]),
        (4096, vec!["FIRST", "MIDDLE", "MIDDLE", "LAST"]),
    ] {
        for (imm, suffix) in [(None, ""), (Some(5), "_IMM")] {
            let mut pair = Pair::rc();
            pair.post_op(1, SendOp::Send { imm }, 0, length);
            let op = pair.write_op(imm);
            pair.post_op(2, op, 0, length);
            let packets = pair.take(0);
            let names: Vec<_> = packets
                .iter()
                .map(|s| s.packet().opcode().operation().name())
                .collect();
            let mut expected = Vec::new();
            for verb in ["SEND", "WRITE"] {
                for part in &want {
                    let ends = matches!(*part, "LAST" | "ONLY");
                    expected.push(format!("{verb}_{part}{}", if ends { suffix } else { "" }));
                }
            }
            assert_eq!(names, expected);
            for sent in &packets {
                let packet = sent.packet();
                assert_eq!(
                    packet.reth().is_some(),
                    packet.opcode().is_write() && packet.opcode().starts_message()
                );
                assert!(packet.reth().is_none_or(|reth| reth.length == length));
            }
        }
    }
}

#[test]
fn the_solicited_bit_is_on_the_packet_that_completes_a_receive() {
    let mut pair = Pair::rc();
    let flags = SendFlags::SOLICITED;
    let (write, write_imm) = (pair.write_op(None), pair.write_op(Some(1)));
    pair.post_op_with_flags(1, SendOp::Send { imm: None }, 0, 3000, flags);
    pair.post_op_with_flags(2, write, 0, 3000, flags);
    pair.post_op_with_flags(3, write_imm, 0, 3000, flags);
    let read = pair.read_op();
    pair.post_op_with_flags(4, read, INBOX, 3000, flags);
    pair.flush(0);
    let solicited = pair.wire.iter().filter(|s| s.packet().solicited());
    let summaries: Vec<String> = solicited.map(|s| s.summary()).collect();
    assert_eq!(summaries, ["SEND_LAST 1002", "WRITE_LAST_IMM 1008"]);
}

#[test]
fn a_fence_waits_for_reads_and_atomics() {
    for fenced in [false, true] {
        let mut pair = Pair::rc();
        pair.read(1, 3000);
        pair.fetch_add(2, 1);
        let op = pair.write_op(None);
        let flags = if fenced {
            SendFlags::FENCE
        } else {
            SendFlags::empty()
        };
        pair.post_op_with_flags(3, op, 0, 100, flags);
        let requests = pair.take(0);
        assert_eq!(requests.len(), if fenced { 2 } else { 3 });
        for request in &requests {
            pair.deliver(request);
        }
        let responses = pair.take(1);
        for response in &responses {
            assert!(
                !fenced || pair.take(0).is_empty(),
                "not before the last response"
            );
            pair.deliver(response);
        }
        pair.run();
        assert_eq!(pair.done(0), [(1, OK), (2, OK), (3, OK)]);
    }
}

#[test]
fn fence_holds_while_a_read_is_retransmitted() {
    let mut pair = Pair::rc();
    pair.read(1, 3000);
    let op = pair.write_op(None);
    pair.post_op_with_flags(2, op, 0, 100, SendFlags::FENCE);
    pair.run_losing(|sent| sent.from == 1);
    pair.fire_next_timer();
    let again = pair.take(0);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].summary(), "READ_REQUEST 1000");
    pair.run_until_idle();
    assert_eq!(pair.done(0), [(1, OK), (2, OK)]);
}

#[test]
fn a_fence_does_not_wait_for_writes() {
    let mut pair = Pair::rc();
    pair.write(1, 100);
    let op = pair.write_op(None);
    pair.post_op_with_flags(2, op, 0, 100, SendFlags::FENCE);
    assert_eq!(pair.take(0).len(), 2);
}

#[test]
fn only_signaled_or_failed_sends_generate_completions() {
    let mut pair = Pair::with(|knobs| knobs.sig_all = false);
    pair.write(1, 100);
    let op = pair.write_op(None);
    pair.post_op_with_flags(2, op, 0, 100, SendFlags::SIGNALED);
    pair.read(3, 100);
    pair.run();
    assert_eq!(pair.done(0), [(2, OK)]);
    assert_eq!(pair.hosts[0].query().sends, 0);
    let bad = SendOp::Read {
        remote_addr: REMOTE,
        rkey: 1,
    };
    pair.post_op(4, bad, INBOX, 100);
    pair.run();
    assert_eq!(
        pair.done(0),
        [(4, WcStatus::RemoteAccess)],
        "errors always generate a completion"
    );
}

#[test]
fn send_completions_have_opcode_length_and_flags() {
    let mut pair = Pair::rc();
    let (remote_addr, rkey) = (REMOTE, pair.rkey());
    let none = WcFlags::empty();
    let operations = [
        (SendOp::Send { imm: None }, 300, WcOpcode::Send, 300, none),
        (
            SendOp::Send { imm: Some(1) },
            301,
            WcOpcode::Send,
            301,
            WcFlags::WITH_IMM,
        ),
        (pair.write_op(None), 302, WcOpcode::RdmaWrite, 302, none),
        (
            pair.write_op(Some(1)),
            303,
            WcOpcode::RdmaWrite,
            303,
            WcFlags::WITH_IMM,
        ),
        (pair.read_op(), 3000, WcOpcode::RdmaRead, 3000, none),
        (
            SendOp::FetchAdd {
                remote_addr,
                rkey,
                add: 1,
            },
            16,
            WcOpcode::FetchAdd,
            8,
            none,
        ),
        (
            SendOp::CompareSwap {
                remote_addr,
                rkey,
                compare: 0,
                swap: 1,
            },
            8,
            WcOpcode::CompareSwap,
            8,
            none,
        ),
        (
            SendOp::AtomicWrite { remote_addr, rkey },
            8,
            WcOpcode::AtomicWrite,
            8,
            none,
        ),
    ];
    for wr_id in 0..3 {
        pair.recv(wr_id, 1000);
    }
    for (wr_id, (op, length, ..)) in (0..).zip(&operations) {
        pair.post_op(wr_id, op.clone(), INBOX, *length);
    }
    pair.run_until_idle();
    let done = pair.hosts[0].completions();
    assert_eq!(done.len(), operations.len());
    for (n, (wc, (_, _, opcode, byte_len, flags))) in done.iter().zip(&operations).enumerate() {
        assert_eq!(
            (wc.wr_id, wc.status, wc.qpn),
            (n as u64, OK, pair.hosts[0].qpn)
        );
        assert_eq!(
            (wc.opcode, wc.byte_len, wc.flags),
            (*opcode, *byte_len, *flags)
        );
    }
}

#[test]
fn atomics_return_the_original_value_and_modify_memory() {
    let mut pair = Pair::rc();
    let (remote_addr, rkey) = (REMOTE, pair.rkey());
    pair.hosts[1].ram.put_word(REMOTE, u64::MAX);
    pair.fetch_add(1, 3);
    pair.run();
    assert_eq!(pair.hosts[0].ram.word(BASE + INBOX), u64::MAX);
    assert_eq!(pair.hosts[1].ram.word(REMOTE), 2, "the addition wraps");
    for (compare, swap, original, after) in [(5, 9, 2, 2), (2, 9, 2, 9)] {
        let op = SendOp::CompareSwap {
            remote_addr,
            rkey,
            compare,
            swap,
        };
        pair.post_op(2, op, INBOX, 8);
        pair.run();
        assert_eq!(pair.hosts[0].ram.word(BASE + INBOX), original);
        assert_eq!(pair.hosts[1].ram.word(REMOTE), after);
    }
    pair.hosts[0].ram.put(BASE, b"8 bytes!");
    pair.post_op(3, SendOp::AtomicWrite { remote_addr, rkey }, 0, 8);
    pair.run();
    assert_eq!(pair.hosts[1].ram.get(REMOTE, 8), *b"8 bytes!");
    assert_eq!(pair.done(0).len(), 4);
}

#[test]
fn atomics_need_eight_bytes() {
    let mut pair = Pair::rc();
    let (remote_addr, rkey) = (REMOTE, pair.rkey());
    for (op, length, ok) in [
        (
            SendOp::FetchAdd {
                remote_addr,
                rkey,
                add: 1,
            },
            7,
            false,
        ),
        (
            SendOp::FetchAdd {
                remote_addr,
                rkey,
                add: 1,
            },
            9,
            true,
        ),
        (SendOp::AtomicWrite { remote_addr, rkey }, 7, false),
        (SendOp::AtomicWrite { remote_addr, rkey }, 9, false),
    ] {
        let sges = [pair.hosts[0].sge(INBOX, length)];
        assert_eq!(post(&mut pair, wr(1, op, &sges)).is_ok(), ok);
    }
}

#[test]
fn max_rd_atomic_limits_outstanding_reads() {
    for max in [1, 2, 4] {
        let mut pair = Pair::with(|knobs| {
            knobs.attr.max_rd_atomic = max;
            knobs.attr.max_dest_rd_atomic = max;
        });
        for wr_id in 0..10 {
            pair.read(wr_id, 100);
        }
        assert_eq!(pair.take(0).len(), usize::from(max));
        pair.run_until_idle();
        assert_eq!(pair.done(0).len(), 10);
    }
}

#[test]
fn read_with_max_rd_atomic_0_is_a_local_qp_operation_error() {
    let mut pair = Pair::with(|knobs| knobs.attr.max_rd_atomic = 0);
    pair.read(1, 100);
    pair.run();
    assert_eq!(pair.done(0), [(1, WcStatus::LocalQpOperation)]);
    assert!(
        pair.hosts[0]
            .failure_reason()
            .contains("max_rd_atomic is 0")
    );
}

#[test]
fn message_length_is_limited_to_2_gib() {
    let mut pair = Pair::rc();
    let op = pair.write_op(None);
    let big = Sge {
        length: 1 << 30,
        ..pair.hosts[0].sge(0, 0)
    };
    let byte = Sge { length: 1, ..big };
    let refused = post(&mut pair, wr(1, op.clone(), &[big, big, byte]));
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("at most 2 GiB"), "{why}");
    let huge = Sge {
        length: u32::MAX,
        ..big
    };
    assert!(post(&mut pair, wr(1, op.clone(), &[huge; 4])).is_err());
    post(&mut pair, wr(2, op, &[big, big])).unwrap();
    let first = pair.take(0).remove(0);
    assert_eq!(first.packet().reth().unwrap().length, 1 << 31);
}

/// A program reads memory until a WRITE has arrived, and verbs tell it nothing: the engine counts
/// these WRITEs for the threads that receive.
#[test]
fn whole_writes_without_immediate_data_are_counted() {
    let mut pair = Pair::rc();
    let counts = |pair: &Pair| {
        let received = pair.hosts[1].engine.received_messages();
        (received.writes, received.receives)
    };
    pair.recv(7, 100);
    pair.recv(8, 100);
    let (write, with_imm) = (pair.write_op(None), pair.write_op(Some(1)));
    for (op, length, expected) in [
        (write.clone(), 8, (1, 0)),
        (with_imm, 8, (1, 1)),
        (SendOp::Send { imm: None }, 8, (1, 2)),
        (pair.read_op(), 8, (1, 2)),
    ] {
        let sges = [pair.hosts[0].sge(0, length)];
        pair.post(0, wr(1, op, &sges));
        pair.run_until_idle();
        assert_eq!(counts(&pair), expected);
    }
    let sges = [pair.hosts[0].sge(0, 3000)];
    pair.post(0, wr(2, write, &sges));
    let mut packets = pair.take(0);
    let last = packets.pop().unwrap();
    assert!(!packets.is_empty(), "several packets");
    pair.wire.extend(packets);
    pair.run();
    assert_eq!(counts(&pair), (1, 2), "the last packet is missing");
    pair.wire.push_back(last);
    pair.run_until_idle();
    assert_eq!(counts(&pair), (2, 2));
}
