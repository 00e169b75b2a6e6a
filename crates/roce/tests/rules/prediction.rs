//! Header prediction: the fast path takes predicted packets with the same effect as the slow
//! path, and leaves all others to the slow path.

use ferroce_roce::{AttrMask, Counter, QpAttr};
use ferroce_wire::icrc;
use proptest::prelude::*;

use crate::pair::{BASE, Pair, Sent};
use crate::shorthand::{INBOX, REMOTE};

const PACKETS: usize = 20;
const LENGTH: u32 = PACKETS as u32 * 1024;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Kind {
    Send,
    Write,
    Read,
}

const KINDS: [Kind; 3] = [Kind::Send, Kind::Write, Kind::Read];

impl Kind {
    /// Returns the host and address that receive the data.
    fn destination(self) -> (usize, u64) {
        match self {
            Kind::Send => (1, BASE + INBOX),
            Kind::Write => (1, REMOTE),
            Kind::Read => (0, BASE + INBOX),
        }
    }

    /// Returns a pair, and the sent packets of a message of [`PACKETS`] packets.
    fn sent(self) -> (Pair, Vec<Sent>) {
        let mut pair = Pair::with(|knobs| knobs.config.initial_window = 1 << 20);
        let source: Vec<u8> = (0..LENGTH).map(|i| (i % 251) as u8).collect();
        pair.hosts[0].ram.put(BASE, &source);
        pair.hosts[1].ram.put(REMOTE, &source);
        match self {
            Kind::Send => {
                let sge = pair.hosts[1].sge(INBOX, LENGTH);
                pair.post_recv(1, 7, &[sge]);
                pair.send(1, LENGTH);
            }
            Kind::Write => {
                pair.hosts[1].ram.put(REMOTE, &[0; LENGTH as usize]);
                pair.write(1, LENGTH);
            }
            Kind::Read => pair.read(1, LENGTH),
        }
        pair.flush(0);
        if self == Kind::Read {
            let request = pair.wire.pop_front().unwrap();
            pair.deliver(&request);
            pair.flush(1);
        }
        let packets: Vec<Sent> = pair.wire.drain(..).collect();
        assert_eq!(packets.len(), PACKETS);
        (pair, packets)
    }
}

/// Merges packets into one buffer, as GRO does.
fn merged(packets: &[Sent]) -> Sent {
    let mut merged = packets[0].clone();
    merged.bytes = packets.iter().flat_map(|sent| sent.bytes.clone()).collect();
    merged
}

/// Returns a pair with the first packet delivered, the merged middle packets, and their
/// length.
fn middle(kind: Kind) -> (Pair, Sent, usize) {
    let (mut pair, packets) = kind.sent();
    pair.deliver_slow_path(&packets[0]);
    let middle = &packets[1..PACKETS - 1];
    (pair, merged(middle), middle[0].bytes.len())
}

/// Recomputes the ICRC of the first packet.
fn fix_icrc(run: &mut Sent, segment: usize) {
    let (body, crc) = run.bytes[..segment].split_at_mut(segment - 4);
    crc.copy_from_slice(&icrc::compute(&run.path.flow, run.ip_id, body));
}

#[test]
fn middle_packets_of_a_message_are_predicted() {
    for kind in KINDS {
        let (mut pair, packets) = kind.sent();
        let segment = packets[1].bytes.len();
        assert_eq!(
            pair.deliver_predicted(&merged(&packets), packets[0].bytes.len()),
            0,
            "the first packet is not predicted"
        );
        pair.deliver_slow_path(&packets[0]);
        let [some, others] = [&packets[1..8], &packets[8..]].map(merged);
        assert_eq!(pair.deliver_predicted(&some, segment), 7);
        assert_eq!(pair.deliver_predicted(&others, segment), PACKETS - 1 - 8);
        assert_eq!(pair.deliver_predicted(&packets[PACKETS - 1], segment), 0);
        pair.deliver_slow_path(&packets[PACKETS - 1]);
        let (host, at) = kind.destination();
        let expected: Vec<u8> = (0..LENGTH).map(|i| (i % 251) as u8).collect();
        assert!(pair.hosts[host].ram.get(at, LENGTH as usize) == expected);
        let received = pair.hosts[host].counters.get(Counter::RcvdPkts);
        assert_eq!(received, PACKETS as u64);
    }
}

#[test]
fn packet_that_differs_from_the_prediction_is_not_taken() {
    type Change = fn(&mut Pair, usize, &mut Sent);
    let changes: [(&str, Change); 8] = [
        ("congestion mark", |_, _, run| run.path.traffic_class |= 3),
        ("another source address", |_, _, run| {
            run.path.flow.source = [192, 0, 2, 99].into()
        }),
        ("another destination address", |_, _, run| {
            run.path.flow.destination = [192, 0, 2, 98].into()
        }),
        ("another partition", |_, _, run| run.bytes[2] ^= 1),
        ("another version", |_, _, run| run.bytes[1] |= 1),
        ("padding", |_, _, run| run.bytes[1] |= 0x10),
        ("AckReq", |_, _, run| run.bytes[8] |= 0x80),
        ("deregistered region", |pair, receiver, _| {
            let host = &pair.hosts[receiver];
            host.regions.deregister(&host.mr).unwrap();
        }),
    ];
    for kind in KINDS {
        for (what, change) in changes {
            let (mut pair, mut run, segment) = middle(kind);
            let receiver = 1 - run.from;
            change(&mut pair, receiver, &mut run);
            fix_icrc(&mut run, segment);
            assert_eq!(pair.deliver_predicted(&run, segment), 0, "{kind:?}: {what}");
            let received = pair.hosts[receiver].counters.get(Counter::RcvdPkts);
            assert_eq!(received, 1, "{kind:?}: {what}");
        }
        let (mut pair, run, segment) = middle(kind);
        assert_eq!(pair.deliver_predicted(&run, segment - 1), 0, "another size");
        assert_eq!(pair.deliver_predicted(&run, segment), PACKETS - 2);
        assert_eq!(
            pair.deliver_predicted(&run, segment),
            0,
            "packets already received"
        );
    }
    let (mut pair, run, segment) = middle(Kind::Write);
    pair.modify(1, &QpAttr::default(), AttrMask::ACCESS_FLAGS);
    assert_eq!(pair.deliver_predicted(&run, segment), 0, "not permitted");
}

#[test]
fn write_packet_beyond_the_reth_length_is_not_predicted() {
    let (mut pair, run, segment) = middle(Kind::Write);
    assert_eq!(pair.deliver_predicted(&run, segment), PACKETS - 2);
    let (_, packets) = Kind::Write.sent();
    let mut last = packets[PACKETS - 1].clone();
    let middle = packets[1].bytes[0];
    last.bytes[0] = middle;
    last.bytes[8] = 0; // clears AckReq
    fix_icrc(&mut last, segment);
    assert_eq!(pair.deliver_predicted(&last, segment), 0);
}

#[derive(Clone, Debug)]
enum NetworkFault {
    Lost(usize),
    Twice(usize),
    Damaged(usize, usize),
    Swapped(usize, usize),
}

fn fault() -> impl Strategy<Value = NetworkFault> {
    let place = 0..PACKETS;
    prop_oneof![
        place.clone().prop_map(NetworkFault::Lost),
        place.clone().prop_map(NetworkFault::Twice),
        (place.clone(), 0..1040usize).prop_map(|(n, at)| NetworkFault::Damaged(n, at)),
        (place.clone(), place).prop_map(|(a, b)| NetworkFault::Swapped(a, b)),
    ]
}

fn apply(packets: &mut Vec<Sent>, fault: &NetworkFault) {
    let count = packets.len();
    match *fault {
        NetworkFault::Lost(n) if count > 1 => drop(packets.remove(n % count)),
        NetworkFault::Lost(_) => {}
        NetworkFault::Twice(n) => packets.push(packets[n % count].clone()),
        NetworkFault::Damaged(n, at) => packets[n % count].bytes[at % 1020] ^= 1,
        NetworkFault::Swapped(a, b) => packets.swap(a % count, b % count),
    }
}

/// Returns all observable state of a host.
fn state(pair: &mut Pair, host: usize) -> impl PartialEq + std::fmt::Debug {
    let before = pair.log.len();
    pair.flush(host);
    let responses: Vec<_> = pair.log[before..].iter().map(|s| s.bytes.clone()).collect();
    let timer = pair.hosts[host].engine.next_timeout();
    let host = &pair.hosts[host];
    let counters = Counter::ALL
        .iter()
        .map(|&counter| host.counters.get(counter));
    let query = host.engine.query_qp(host.qpn).unwrap();
    let memory = [REMOTE, BASE + INBOX].map(|at| host.ram.get(at, LENGTH as usize));
    let mut completions = Vec::new();
    host.cq.poll(9, |wc| completions.push(wc));
    let done = format!("{completions:?} {:?}", host.events);
    (
        responses,
        counters.collect::<Vec<_>>(),
        (query.attr.rq_psn, query.attr.sq_psn, query.sends, timer),
        query.attr.state,
        memory,
        done,
    )
}

proptest! {
    #[test]
    fn fast_path_and_slow_path_have_the_same_effect(
        kind in prop::sample::select(&KINDS[..]),
        faults in prop::collection::vec(fault(), 0..4),
        most in 1..64_usize,
    ) {
        let (mut short, mut packets) = kind.sent();
        let (mut long, same) = kind.sent();
        for (a, b) in packets.iter().zip(&same) {
            prop_assert_eq!(&a.bytes, &b.bytes);
        }
        for fault in &faults {
            apply(&mut packets, fault);
        }
        for packet in &packets {
            long.deliver_slow_path(packet);
        }
        let mut rest = packets.as_slice();
        while let Some(first) = rest.first() {
            let segment = first.bytes.len();
            let same_size = |sent: &&Sent| sent.bytes.len() == segment;
            let run = rest.iter().take(most).take_while(same_size).count();
            let taken = short.deliver_predicted(&merged(&rest[..run]), segment);
            if taken == 0 {
                short.deliver_slow_path(first);
            }
            rest = &rest[taken.max(1)..];
        }
        let (host, _) = kind.destination();
        prop_assert_eq!(state(&mut short, host), state(&mut long, host));
    }
}
