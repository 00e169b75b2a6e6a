//! Packets that are foreseen are taken in the short way, with the same effect as the long
//! one; whatever is out of the ordinary is left to that.

use ferroce_transport::{AttrMask, Counter, MAX_RUN_PACKETS, QpAttr};
use ferroce_wire::icrc;
use proptest::prelude::*;

use crate::pair::{Pair, Sent};
use crate::shorthand::{INBOX, REMOTE};

const PACKETS: usize = 20;
const LENGTH: u32 = PACKETS as u32 * 1024;

/// Host 1 waits for a message of [`PACKETS`] that host 0 has sent.
fn sent(write: bool) -> (Pair, Vec<Sent>) {
    let mut pair = Pair::with(|knobs| knobs.config.initial_window = 1 << 20);
    let source: Vec<u8> = (0..LENGTH).map(|i| (i % 251) as u8).collect();
    pair.hosts[0].ram.put(crate::pair::BASE, &source);
    if write {
        pair.write(1, LENGTH);
    } else {
        let sge = pair.hosts[1].sge(INBOX, LENGTH);
        pair.post_recv(1, 7, &[sge]);
        pair.send(1, LENGTH);
    }
    pair.flush(0);
    let packets = pair.wire.drain(..).collect();
    (pair, packets)
}

/// Several packets as one.
fn merged(packets: &[Sent]) -> Sent {
    let mut merged = packets[0].clone();
    merged.bytes = packets.iter().flat_map(|sent| sent.bytes.clone()).collect();
    merged
}

/// As [`sent`], with the first packet delivered and the middle merged.
fn middle() -> (Pair, Sent, usize) {
    let (mut pair, packets) = sent(true);
    pair.deliver_the_long_way(&packets[0]);
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
    for write in [true, false] {
        let (mut pair, packets) = sent(write);
        let segment = packets[1].bytes.len();
        assert_eq!(
            pair.deliver_foreseen(&merged(&packets), packets[0].bytes.len()),
            0,
            "it begins"
        );
        pair.deliver_the_long_way(&packets[0]);
        let [some, others] = [&packets[1..8], &packets[8..]].map(merged);
        assert_eq!(pair.deliver_foreseen(&some, segment), 7);
        assert_eq!(pair.deliver_foreseen(&others, segment), PACKETS - 1 - 8);
        assert_eq!(pair.deliver_foreseen(&packets[PACKETS - 1], segment), 0);
        pair.deliver_the_long_way(&packets[PACKETS - 1]);
        let at = if write {
            REMOTE
        } else {
            crate::pair::BASE + INBOX
        };
        let [from, to] = [(0, crate::pair::BASE), (1, at)]
            .map(|(host, at)| pair.hosts[host].ram.get(at, LENGTH as usize));
        assert_eq!(from, to);
        let received = pair.hosts[1].counters.get(Counter::RcvdPkts);
        assert_eq!(received, PACKETS as u64);
    }
}

#[test]
fn what_is_out_of_the_ordinary_is_not_foreseen() {
    type Change = fn(&mut Pair, &mut Sent);
    let changes: [(&str, Change); 9] = [
        ("a congested way", |_, run| run.path.traffic_class |= 3),
        ("another peer", |_, run| {
            run.path.flow.source = [192, 0, 2, 99].into()
        }),
        ("another address of ours", |_, run| {
            run.path.flow.destination = [192, 0, 2, 98].into()
        }),
        ("another partition", |_, run| run.bytes[2] ^= 1),
        ("another version", |_, run| run.bytes[1] |= 1),
        ("padding", |_, run| run.bytes[1] |= 0x10),
        ("a question", |_, run| run.bytes[8] |= 0x80),
        ("no permission any more", |pair, _| {
            let attr = QpAttr::default();
            pair.modify(1, &attr, AttrMask::ACCESS_FLAGS);
        }),
        ("no memory any more", |pair, _| {
            let host = &pair.hosts[1];
            host.regions.deregister(&host.mr).unwrap();
        }),
    ];
    for (what, change) in changes {
        let (mut pair, mut run, segment) = middle();
        change(&mut pair, &mut run);
        seal(&mut run, segment);
        assert_eq!(pair.deliver_foreseen(&run, segment), 0, "{what}");
        assert_eq!(pair.hosts[1].counters.get(Counter::RcvdPkts), 1, "{what}");
    }
    let (mut pair, run, segment) = middle();
    assert_eq!(pair.deliver_foreseen(&run, segment - 1), 0, "another size");
    assert_eq!(pair.deliver_foreseen(&run, segment), PACKETS - 2);
}

#[test]
fn a_write_that_goes_on_beyond_its_length_is_not_foreseen() {
    let (mut pair, run, segment) = middle();
    assert_eq!(pair.deliver_foreseen(&run, segment), PACKETS - 2);
    let (_, packets) = sent(true);
    let mut last = packets[PACKETS - 1].clone();
    let middle = packets[1].bytes[0];
    last.bytes[0] = middle;
    last.bytes[8] = 0; // asks for nothing
    seal(&mut last, segment);
    assert_eq!(pair.deliver_foreseen(&last, segment), 0);
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

/// All that can be seen of host 1.
fn state(pair: &mut Pair) -> impl PartialEq + std::fmt::Debug {
    let before = pair.log.len();
    pair.flush(1);
    let answers: Vec<_> = pair.log[before..].iter().map(|s| s.bytes.clone()).collect();
    let host = &pair.hosts[1];
    let counters = Counter::ALL
        .iter()
        .map(|&counter| host.counters.get(counter));
    let query = host.engine.query_qp(host.qpn).unwrap();
    let memory = [REMOTE, crate::pair::BASE + INBOX].map(|at| host.ram.get(at, LENGTH as usize));
    let mut completions = Vec::new();
    host.cq.poll(9, |wc| completions.push(wc));
    let done = format!("{completions:?} {:?}", host.events);
    (
        answers,
        counters.collect::<Vec<_>>(),
        query.attr.rq_psn,
        query.attr.state,
        memory,
        done,
    )
}

proptest! {
    #[test]
    fn either_way_has_the_same_effect(
        write: bool,
        accidents in prop::collection::vec(accident(), 0..4),
        most in 1..MAX_RUN_PACKETS,
    ) {
        let (mut short, mut packets) = sent(write);
        let (mut long, same) = sent(write);
        for (a, b) in packets.iter().zip(&same) {
            prop_assert_eq!(&a.bytes, &b.bytes);
        }
        for accident in &accidents {
            happen(&mut packets, accident);
        }
        for packet in &packets {
            long.deliver_the_long_way(packet);
        }
        let mut rest = packets.as_slice();
        while let Some(first) = rest.first() {
            let segment = first.bytes.len();
            let alike = |sent: &&Sent| sent.bytes.len() == segment;
            let run = rest.iter().take(most).take_while(alike).count();
            let taken = short.deliver_foreseen(&merged(&rest[..run]), segment);
            if taken == 0 {
                short.deliver_the_long_way(first);
            }
            rest = &rest[taken.max(1)..];
        }
        prop_assert_eq!(state(&mut short), state(&mut long));
    }
}
