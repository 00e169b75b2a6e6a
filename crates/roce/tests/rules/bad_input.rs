//! Requests and responses that violate the protocol, and randomly mutated packets.

use ferroce_roce::{MemRef, QpState, WcStatus};
use ferroce_wire::{Aeth, AtomicAckEth, AtomicEth, Feth, HeaderBuf, Operation, Reth, Syndrome};
use proptest::prelude::*;

use crate::drive::drive;
use crate::pair::{BASE, Pair, SIZE, all_access};
use crate::shorthand::{INBOX, REMOTE};

#[test]
fn requests_out_of_sequence_or_of_wrong_length_are_invalid_requests() {
    type Step<'a> = (Operation, u32, &'a [u8]);
    use Operation::*;
    let full = [1; 1024];
    // Each step is an operation, the length in its RETH if it has one, and its payload.
    let cases: [(&str, &[Step<'_>]); 17] = [
        ("LAST outside a message", &[(SendLast, 0, &[1])]),
        ("MIDDLE outside a message", &[(WriteMiddle, 0, &full)]),
        (
            "ONLY inside a message",
            &[(SendFirst, 0, &full), (SendOnly, 0, &[1])],
        ),
        (
            "FIRST inside a message",
            &[(SendFirst, 0, &full), (SendFirst, 0, &full)],
        ),
        (
            "READ inside a message",
            &[(SendFirst, 0, &full), (ReadRequest, 8, &[])],
        ),
        (
            "WRITE inside a SEND",
            &[(SendFirst, 0, &full), (WriteLast, 0, &[1])],
        ),
        (
            "SEND inside a WRITE",
            &[(WriteFirst, 2000, &full), (SendLast, 0, &[1])],
        ),
        ("FIRST not full", &[(SendFirst, 0, &full[1..])]),
        (
            "MIDDLE not full",
            &[(SendFirst, 0, &full), (SendMiddle, 0, &full[1..])],
        ),
        ("LAST empty", &[(SendFirst, 0, &full), (SendLast, 0, &[])]),
        ("ONLY beyond the MTU", &[(SendOnly, 0, &[1; 1025])]),
        (
            "WRITE shorter than its RETH length",
            &[(WriteOnly, 9, &[1; 8])],
        ),
        (
            "WRITE longer than its RETH length",
            &[(WriteOnly, 7, &[1; 8])],
        ),
        (
            "WRITE that ends early",
            &[(WriteFirst, 3000, &full), (WriteLast, 0, &full)],
        ),
        (
            "WRITE that goes on",
            &[(WriteFirst, 2000, &full), (WriteMiddle, 0, &full)],
        ),
        ("WRITE beyond 2 GiB", &[(WriteFirst, (1 << 31) + 1, &full)]),
        ("READ beyond 2 GiB", &[(ReadRequest, (1 << 31) + 1, &[])]),
    ];
    for (what, steps) in cases {
        let mut pair = Pair::rc();
        pair.recv(7, 5000);
        for (psn, (operation, length, payload)) in (1000..).zip(steps) {
            let (va, rkey, length) = (REMOTE, pair.rkey(), *length);
            let extend = |mut header: HeaderBuf| match header.opcode().has_reth() {
                true => *header.reth(&Reth { va, rkey, length }),
                false => header,
            };
            let packet = pair.craft(0, *operation, psn, extend, payload);
            pair.deliver(&packet);
        }
        pair.flush(1);
        let nak = format!("NAK 61 {}", 999 + steps.len());
        assert_eq!(pair.trace().last(), Some(&nak), "{what}");
        assert_eq!(pair.hosts[1].state(), QpState::Err, "{what}");
        let status = pair.done(1)[0].1;
        let holds = steps[0].0 == SendFirst || what == "ONLY beyond the MTU";
        let used = holds && steps.len() > 1;
        let want = if used {
            WcStatus::RemoteInvalidRequest
        } else {
            WcStatus::WrFlush
        };
        assert_eq!(status, want, "{what}");
        assert!(
            pair.hosts[1]
                .failure_reason()
                .starts_with("invalid request: ")
        );
    }
}

#[test]
fn read_atomic_and_flush_with_wrong_payload_or_fields_are_invalid_requests() {
    let rkey = Pair::rc().rkey();
    let reth = Reth {
        va: REMOTE,
        rkey,
        length: 8,
    };
    let eth = AtomicEth {
        va: REMOTE,
        rkey,
        swap_or_add: 1,
        compare: 0,
    };
    for n in 0..6 {
        let mut pair = Pair::rc();
        let before = pair.hosts[1].ram.get(BASE, SIZE);
        let flush = |placement, selectivity| {
            let feth = Feth {
                placement,
                selectivity,
            };
            pair.craft(
                0,
                Operation::Flush,
                1000,
                |mut h| *h.feth(&feth).reth(&reth),
                &[],
            )
        };
        let packet = match n {
            0 => pair.craft(
                0,
                Operation::ReadRequest,
                1000,
                |mut h| *h.reth(&reth),
                &[1; 4],
            ),
            1 => pair.craft(
                0,
                Operation::FetchAdd,
                1000,
                |mut h| *h.atomic_eth(&eth),
                &[1; 4],
            ),
            2 => pair.craft(
                0,
                Operation::AtomicWrite,
                1000,
                |mut h| *h.reth(&reth),
                &[1; 4],
            ),
            3 => pair.craft(
                0,
                Operation::AtomicWrite,
                1000,
                |mut h| *h.reth(&reth),
                &[1; 12],
            ),
            4 => flush(1, 2),
            _ => flush(0, 0),
        };
        pair.deliver(&packet);
        pair.flush(1);
        assert_eq!(pair.trace(), ["NAK 61 1000"], "{n}");
        assert_eq!(pair.hosts[1].ram.get(BASE, SIZE), before);
        assert!(pair.hosts[1].ram.flushes.borrow().is_empty());
    }
}

#[test]
fn responses_that_do_not_fit_the_request_fail_the_queue_pair() {
    use Operation::*;
    let aeth = Aeth {
        syndrome: Syndrome::ACK_UNLIMITED,
        msn: 1,
    };
    let ack = AtomicAckEth { original: 1 };
    let full = [1; 1024];
    // Each case: name, the outstanding request, opcode and payload of the response, status.
    let cases: [(&str, &str, Operation, &[u8], WcStatus); 8] = [
        (
            "READ that ends early",
            "read",
            ReadResponseOnly,
            &full,
            WcStatus::BadResponse,
        ),
        (
            "READ data too short",
            "read",
            ReadResponseFirst,
            &full[4..],
            WcStatus::BadResponse,
        ),
        (
            "READ data too long",
            "read",
            ReadResponseFirst,
            &[1; 1028],
            WcStatus::BadResponse,
        ),
        (
            "atomic response to a READ",
            "read",
            AtomicAcknowledge,
            &[],
            WcStatus::BadResponse,
        ),
        (
            "READ data to an atomic",
            "atomic",
            ReadResponseOnly,
            &[1; 8],
            WcStatus::BadResponse,
        ),
        (
            "READ data to an atomic write",
            "atomic write",
            ReadResponseOnly,
            &[1; 8],
            WcStatus::BadResponse,
        ),
        (
            "READ data to a WRITE",
            "write",
            ReadResponseOnly,
            &[1; 8],
            WcStatus::Fatal,
        ),
        (
            "atomic response to a WRITE",
            "write",
            AtomicAcknowledge,
            &[],
            WcStatus::Fatal,
        ),
    ];
    for (what, request, operation, payload, status) in cases {
        let mut pair = Pair::rc();
        let before = pair.hosts[0].ram.get(BASE, SIZE);
        match request {
            "read" => pair.read(1, 3000),
            "atomic" => pair.fetch_add(1, 1),
            "atomic write" => {
                let op = ferroce_roce::SendOp::AtomicWrite {
                    remote_addr: REMOTE,
                    rkey: pair.rkey(),
                };
                pair.post_op(1, op, 0, 8);
            }
            _ => pair.write(1, 100),
        }
        pair.write(2, 10);
        pair.take(0);
        let extend = |mut header: HeaderBuf| match operation {
            AtomicAcknowledge => *header.aeth(&aeth).atomic_ack(&ack),
            _ => *header.aeth(&aeth),
        };
        let response = pair.craft(1, operation, 1000, extend, payload);
        pair.deliver(&response);
        pair.flush(0);
        assert_eq!(
            pair.done(0),
            [(1, status), (2, WcStatus::WrFlush)],
            "{what}"
        );
        assert_eq!(pair.hosts[0].state(), QpState::Err);
        assert_eq!(pair.hosts[0].ram.get(BASE, SIZE), before, "{what}");
        let why = pair.hosts[0].failure_reason();
        assert!(why.starts_with("response does not fit: "), "{why}");
    }
}

#[test]
fn queued_responses_to_duplicate_reads_are_bounded() {
    let mut pair = Pair::rc();
    for wr_id in 0..16 {
        pair.read(wr_id, 3000);
    }
    let requests = pair.take(0);
    for request in &requests {
        pair.deliver(request);
    }
    pair.take(1);
    for round in 0..10_000u32 {
        let n = round % 16;
        let skip = round / 16 % 3;
        let va = REMOTE + u64::from(skip) * 1024;
        let length = (3000 - skip * 1024).min(1 + round % 3000);
        let again = pair.read_request(1000 + 3 * n + skip, va, length);
        pair.deliver(&again);
    }
    let responses = pair.take(1).len();
    assert!(responses <= (64 + 16) * 3, "{responses}");
    pair.assert_connected_after(16);
}

#[derive(Clone, Debug)]
struct Mutation {
    /// Number of the packet to mutate.
    packet: usize,
    /// Positions in the packet and new bytes.
    changes: Vec<(prop::sample::Index, u8)>,
    /// Number of bytes to append, or to cut off if negative.
    resize: i8,
    /// True if the original packet is lost.
    replaces: bool,
}

fn mutation() -> impl Strategy<Value = Mutation> {
    (
        0..60usize,
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        prop_oneof![4 => Just(0i8), 1 => any::<i8>()],
        any::<bool>(),
    )
        .prop_map(|(packet, changes, resize, replaces)| Mutation {
            packet,
            changes,
            resize,
            replaces,
        })
}

/// The registered part of memory in the test below.
const WINDOW: std::ops::Range<u64> = REMOTE..REMOTE + 0x1_0000;

/// Returns a pair with little registered memory and posted work of all kinds.
fn pair_with_mixed_work() -> Pair {
    let mut pair = Pair::with(|knobs| {
        knobs.attr.rnr_retry = 2;
        knobs.attr.retry_cnt = 2;
        knobs.attr.timeout = 8;
    });
    for host in &mut pair.hosts {
        host.regions.deregister(&host.mr).unwrap();
        let length = WINDOW.end - WINDOW.start;
        let mr =
            host.regions
                .register(&host.pd, MemRef::host(REMOTE), length, REMOTE, all_access());
        host.mr = mr.unwrap();
    }
    let local = REMOTE - BASE;
    for wr_id in 0..4 {
        let sge = pair.hosts[1].sge(local + 0x8000, 4000);
        pair.post_recv(1, wr_id, &[sge]);
    }
    for round in 0..2 {
        let (write, read) = (pair.write_op(Some(1)), pair.read_op());
        pair.post_op(
            10 * round,
            ferroce_roce::SendOp::Send { imm: None },
            local,
            3000,
        );
        pair.post_op(10 * round + 1, write, local, 2500);
        pair.post_op(10 * round + 2, read, local + 0x4000, 3500);
        let op = ferroce_roce::SendOp::FetchAdd {
            remote_addr: REMOTE,
            rkey: pair.rkey(),
            add: 1,
        };
        pair.post_op(10 * round + 3, op, local + 0x4000, 8);
    }
    pair
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Delivers mutated packets with valid ICRCs. No memory outside the registered range may
    /// change, and every work request must complete.
    #[test]
    fn mutated_packets_touch_no_unregistered_memory_and_all_work_completes(mutations in prop::collection::vec(mutation(), 1..6)) {
        let mut pair = pair_with_mixed_work();
        let outside = |pair: &Pair, side: usize| {
            let ram = &pair.hosts[side].ram;
            let below = ram.get(BASE, (WINDOW.start - BASE) as usize);
            let above = ram.get(WINDOW.end, (BASE + SIZE as u64 - WINDOW.end) as usize);
            (below, above)
        };
        let before = [outside(&pair, 0), outside(&pair, 1)];
        let mut number = 0;
        loop {
            pair.flush(0);
            pair.flush(1);
            let Some(sent) = pair.wire.pop_front() else { break };
            let mut lost = false;
            for mutation in mutations.iter().filter(|m| m.packet == number) {
                let bad = sent.edited(|bytes| {
                    for (at, value) in &mutation.changes {
                        let at = at.index(bytes.len());
                        bytes[at] = *value;
                    }
                    let length = bytes.len().saturating_add_signed(mutation.resize.into());
                    bytes.resize(length, 0xa5);
                });
                pair.deliver(&bad);
                lost |= mutation.replaces;
            }
            if !lost {
                pair.deliver(&sent);
            }
            number += 1;
        }
        pair.run_until_idle();
        prop_assert_eq!(pair.done(0).len(), 8);
        prop_assert!(before == [outside(&pair, 0), outside(&pair, 1)]);
        if pair.states() == [QpState::Rts; 2] {
            let read = pair.read_op();
            pair.post_op(99, read, REMOTE - BASE + INBOX % 0x1_0000, 100);
            pair.run_until_idle();
            prop_assert_eq!(pair.done(0).len(), 1);
        }
    }

    /// Runs the fuzz driver with random bytes.
    #[test]
    fn arbitrary_bytes_cause_no_panic(data in prop::collection::vec(any::<u8>(), 0..2000)) {
        drive(&data);
    }
}
