//! Packets that are foreseen are taken in the short way, with the same effect as the long
//! one; whatever is out of the ordinary is left to that.

use ferroce_transport::{AttrMask, Counter, MAX_RUN_PACKETS, QpAttr};
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
    /// Who gets the bytes, and where.
    fn destination(self) -> (usize, u64) {
        match self {
            Kind::Send => (1, BASE + INBOX),
            Kind::Write => (1, REMOTE),
            Kind::Read => (0, BASE + INBOX),
        }
    }

    /// A message of [`PACKETS`] that is on its way.
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

/// Several packets as one.
fn merged(packets: &[Sent]) -> Sent {
    let mut merged = packets[0].clone();
    merged.bytes = packets.iter().flat_map(|sent| sent.bytes.clone()).collect();
    merged
}

/// As [`Kind::sent`], with the first packet delivered and the middle merged.
fn middle(kind: Kind) -> (Pair, Sent, usize) {
    let (mut pair, packets) = kind.sent();
    pair.deliver_slow_path(&packets[0]);
    let middle = &packets[1..PACKETS - 1];
    (pair, merged(middle), middle[0].bytes.len())
}

/// Makes the ICRC of the first packet right again.
fn seal(run: &mut Sent, segment: usize) {
    let (body, crc) = run.bytes[..segment].split_at_mut(segment - 4);
    crc.copy_from_slice(&icrc::compute(&run.path.flow, run.ip_id, body));
}

#[test]
fn the_middle_of_a_message_is_foreseen_as_far_as_it_has_come() {
    for kind in KINDS {
        let (mut pair, packets) = kind.sent();
        let segment = packets[1].bytes.len();
        assert_eq!(
            pair.deliver_predicted(&merged(&packets), packets[0].bytes.len()),
            0,
            "it begins"
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
fn what_is_out_of_the_ordinary_is_not_foreseen() {
    type Change = fn(&mut Pair, usize, &mut Sent);
    let changes: [(&str, Change); 8] = [
        ("a congested way", |_, _, run| run.path.traffic_class |= 3),
        ("another peer", |_, _, run| {
            run.path.flow.source = [192, 0, 2, 99].into()
        }),
        ("another address of ours", |_, _, run| {
            run.path.flow.destination = [192, 0, 2, 98].into()
        }),
        ("another partition", |_, _, run| run.bytes[2] ^= 1),
        ("another version", |_, _, run| run.bytes[1] |= 1),
        ("padding", |_, _, run| run.bytes[1] |= 0x10),
        ("a question", |_, _, run| run.bytes[8] |= 0x80),
        ("no memory any more", |pair, receiver, _| {
            let host = &pair.hosts[receiver];
            host.regions.deregister(&host.mr).unwrap();
        }),
    ];
    for kind in KINDS {
        for (what, change) in changes {
            let (mut pair, mut run, segment) = middle(kind);
            let receiver = 1 - run.from;
            change(&mut pair, receiver, &mut run);
            seal(&mut run, segment);
            assert_eq!(pair.deliver_predicted(&run, segment), 0, "{kind:?}: {what}");
            let received = pair.hosts[receiver].counters.get(Counter::RcvdPkts);
            assert_eq!(received, 1, "{kind:?}: {what}");
        }
        let (mut pair, run, segment) = middle(kind);
        assert_eq!(pair.deliver_predicted(&run, segment - 1), 0, "another size");
        assert_eq!(pair.deliver_predicted(&run, segment), PACKETS - 2);
        assert_eq!(pair.deliver_predicted(&run, segment), 0, "what was");
    }
    let (mut pair, run, segment) = middle(Kind::Write);
    pair.modify(1, &QpAttr::default(), AttrMask::ACCESS_FLAGS);
    assert_eq!(pair.deliver_predicted(&run, segment), 0, "not permitted");
}

#[test]
fn a_write_that_goes_on_beyond_its_length_is_not_foreseen() {
    let (mut pair, run, segment) = middle(Kind::Write);
    assert_eq!(pair.deliver_predicted(&run, segment), PACKETS - 2);
    let (_, packets) = Kind::Write.sent();
    let mut last = packets[PACKETS - 1].clone();
    let middle = packets[1].bytes[0];
    last.bytes[0] = middle;
    last.bytes[8] = 0; // asks for nothing
    seal(&mut last, segment);
    assert_eq!(pair.deliver_predicted(&last, segment), 0);
}

#[derive(Clone, Debug)]
enum Accident {
    Lost(usize),
    Twice(usize),
    Damaged(usize, usize),
    Swapped(usize, usize),
}

fn accident() -> impl Strategy<Value = Accident> {
    let place = 0..PACKETS;
    prop_oneof![
        place.clone().prop_map(Accident::Lost),
        place.clone().prop_map(Accident::Twice),
        (place.clone(), 0..1040usize).prop_map(|(n, at)| Accident::Damaged(n, at)),
        (place.clone(), place).prop_map(|(a, b)| Accident::Swapped(a, b)),
    ]
}

fn happen(packets: &mut Vec<Sent>, accident: &Accident) {
    let count = packets.len();
    match *accident {
        Accident::Lost(n) if count > 1 => drop(packets.remove(n % count)),
        Accident::Lost(_) => {}
        Accident::Twice(n) => packets.push(packets[n % count].clone()),
        Accident::Damaged(n, at) => packets[n % count].bytes[at % 1020] ^= 1,
        Accident::Swapped(a, b) => packets.swap(a % count, b % count),
    }
}

/// All that can be seen of a host.
fn state(pair: &mut Pair, host: usize) -> impl PartialEq + std::fmt::Debug {
    let before = pair.log.len();
    pair.flush(host);
    let answers: Vec<_> = pair.log[before..].iter().map(|s| s.bytes.clone()).collect();
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
        answers,
        counters.collect::<Vec<_>>(),
        (query.attr.rq_psn, query.attr.sq_psn, query.sends, timer),
        query.attr.state,
        memory,
        done,
    )
}

proptest! {
    #[test]
    fn either_way_has_the_same_effect(
        kind in prop::sample::select(&KINDS[..]),
        accidents in prop::collection::vec(accident(), 0..4),
        most in 1..MAX_RUN_PACKETS,
    ) {
        let (mut short, mut packets) = kind.sent();
        let (mut long, same) = kind.sent();
        for (a, b) in packets.iter().zip(&same) {
            prop_assert_eq!(&a.bytes, &b.bytes);
        }
        for accident in &accidents {
            happen(&mut packets, accident);
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
