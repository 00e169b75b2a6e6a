//! Decisions that an observed engine reports: the comments of captures.

use ferroce_roce::QpType;

use crate::pair::{Knobs, Pair};

impl Pair {
    fn observe(&mut self) {
        for host in &mut self.hosts {
            host.engine.observe(true);
        }
    }

    /// Returns the decisions of a host since the last call, in words.
    fn decisions(&mut self, host: usize) -> Vec<String> {
        let engine = &mut self.hosts[host].engine;
        let decisions = engine.decisions().iter();
        let text = decisions
            .map(|(_, decision)| decision.to_string())
            .collect();
        engine.forget_decisions();
        text
    }
}

#[test]
fn engine_without_observer_records_no_decision() {
    let mut pair = Pair::rc();
    pair.write(1, 100);
    let packets = pair.take(0);
    pair.deliver(&packets[0]);
    pair.deliver(&packets[0]);
    assert!(pair.decisions(1).is_empty());
}

#[test]
fn duplicate_is_a_decision() {
    let mut pair = Pair::rc();
    pair.observe();
    pair.write(1, 100);
    let packets = pair.take(0);
    pair.deliver(&packets[0]);
    assert!(pair.decisions(1).is_empty());
    pair.deliver(&packets[0]);
    assert_eq!(pair.decisions(1), ["duplicate, re-acknowledged"]);
}

#[test]
fn gap_is_reported_once_and_causes_a_retransmission() {
    let mut pair = Pair::rc();
    pair.observe();
    pair.write(1, 4000);
    let packets = pair.take(0);
    pair.deliver(&packets[0]);
    pair.deliver(&packets[2]);
    pair.deliver(&packets[3]);
    assert_eq!(
        pair.decisions(1),
        [
            "dropped: PSN 1001 is expected, a NAK reports the gap",
            "dropped: PSN 1001 is expected, the gap is reported already",
        ]
    );
    for packet in pair.take(1) {
        pair.deliver(&packet);
    }
    assert_eq!(
        pair.decisions(0),
        ["PSNs 1001 to 1003 are to be sent again: the peer reported a gap"]
    );
}

#[test]
fn missing_receive_is_a_decision_of_both_ends() {
    let mut pair = Pair::rc();
    pair.observe();
    pair.send(1, 100);
    for packet in pair.take(0) {
        pair.deliver(&packet);
    }
    let said = pair.decisions(1).join("");
    assert!(said.starts_with("dropped: no receive posted, an RNR NAK asks for "));
    for packet in pair.take(1) {
        pair.deliver(&packet);
    }
    let said = pair.decisions(0).join("");
    assert!(
        said.starts_with("PSN 1000 is to be sent again: RNR, the peer had no receive"),
        "{said}"
    );
}

#[test]
fn receive_that_is_too_short_for_a_datagram_is_a_decision() {
    let mut pair = Pair::new(&Knobs {
        qp_type: QpType::Ud,
        ..Knobs::default()
    });
    pair.observe();
    pair.recv(7, 139);
    pair.datagram(1, 100);
    let packets = pair.take(0);
    pair.deliver(&packets[0]);
    assert_eq!(
        pair.decisions(1),
        ["the receive has 139 bytes, and the datagram with its GRH needs 140"]
    );
}
