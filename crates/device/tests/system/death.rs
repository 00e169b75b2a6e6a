//! Programs and ferroced are killed during transfers.

use ferroce_device::transport::{AttrMask, QpAttr, QpState, QpType, SendOp, WcStatus};
use ferroce_testnet::deadline;

use crate::support::{Endpoint, Ferroced, Puppet, V4, V6, on_loopback, pair, pattern};

const MESSAGE: u32 = 256 << 10;

/// Returns the slot of a queue pair number.
fn slot(qpn: u32) -> u32 {
    qpn >> 16
}

/// Checks that a new pair of programs can transfer data.
fn works(seed: u32, gid_index: u8) {
    let (ours, mut theirs) = pair(QpType::Rc, gid_index);
    ours.put(0, &pattern(seed, MESSAGE));
    ours.write(1, 0, MESSAGE);
    ours.succeed(1);
    theirs.expect(&format!("check {seed} 0 {MESSAGE}"), "right");
}

#[test]
fn peer_of_a_killed_program_gets_an_error() {
    on_loopback(
        "death::peer_of_a_killed_program_gets_an_error",
        |_ferroced| {
            let (ours, mut theirs) = pair(QpType::Rc, V4);
            for id in 0..16 {
                ours.write(id, 0, MESSAGE);
            }
            ours.succeed(2);
            theirs.actor.kill();
            // Earlier messages may have completed before the signal; this one cannot.
            ours.write(16, 0, MESSAGE);
            let rest = ours.completions(15);
            let failed = rest.iter().position(|wc| wc.status != WcStatus::Success);
            let failed = failed.expect("a killed program acknowledges nothing");
            assert_eq!(rest[failed].status, WcStatus::RetryExceeded);
            for wc in &rest[failed + 1..] {
                assert_eq!(wc.status, WcStatus::WrFlush);
            }
            assert_eq!(ours.state(), QpState::Err);
            let freed = slot(theirs.introduction.qpn);
            deadline::until("the slot of the dead is free again", || {
                slot(Puppet::start(QpType::Rc, V4).introduction.qpn) == freed
            });
            works(1, V4);
        },
    );
}

/// Peers remember the QPNs of ended connections for a while, and refuse a REQ with such a QPN
/// as stale.
#[test]
fn next_owner_of_a_slot_has_other_qpns() {
    on_loopback("death::next_owner_of_a_slot_has_other_qpns", |_ferroced| {
        let mut last = Puppet::start(QpType::Rc, V4);
        last.actor.kill();
        deadline::until("the slot of the dead is free again", || {
            let next = Puppet::start(QpType::Rc, V4).introduction.qpn;
            assert_ne!(next, last.introduction.qpn);
            slot(next) == slot(last.introduction.qpn)
        });
    });
}

/// The next owner of a slot receives no packets for the previous one.
#[test]
fn next_owner_of_a_slot_gets_no_old_packets() {
    on_loopback(
        "death::next_owner_of_a_slot_gets_no_old_packets",
        |_ferroced| {
            let (ours, mut theirs) = pair(QpType::Rc, V6);
            for id in 0..16 {
                ours.write(id, 0, MESSAGE);
            }
            theirs.actor.kill();
            ours.write(16, 0, MESSAGE);
            // Retransmissions to the dead program still arrive.
            works(2, V6);
            works(3, V4);
            let last = ours.completions(17)[16].status;
            assert!(
                matches!(last, WcStatus::WrFlush | WcStatus::RetryExceeded),
                "{last:?}"
            );
        },
    );
}

fn keep_writing(ours: &Endpoint, theirs: &mut Puppet, seeds: core::ops::Range<u32>) {
    for seed in seeds {
        ours.put(0, &pattern(seed, MESSAGE));
        ours.write(1, 0, MESSAGE);
        ours.succeed(1);
        theirs.expect(&format!("check {seed} 0 {MESSAGE}"), "right");
    }
}

#[test]
fn transfer_survives_death_of_ferroced() {
    on_loopback(
        "death::transfer_survives_death_of_ferroced",
        |mut ferroced| {
            let (ours, mut theirs) = pair(QpType::Rc, V4);
            ours.put(0, &pattern(1, 1 << 20));
            for id in 0..8 {
                ours.write(id, 0, 1 << 20);
            }
            ours.succeed(1);
            ferroced.kill();
            ours.succeed(7);
            theirs.expect(&format!("check 1 0 {}", 1 << 20), "right");
            keep_writing(&ours, &mut theirs, 10..13);

            let mut ferroced = Ferroced::start();
            works(2, V4);
            keep_writing(&ours, &mut theirs, 20..23);

            // The new ferroced knows the owner of each slot, and so does the next one.
            ferroced.kill();
            let _ferroced = Ferroced::start();
            works(3, V6);
            let new = Puppet::start(QpType::Rc, V4).introduction.qpn;
            let old = [ours.qp.qpn(), theirs.introduction.qpn];
            assert!(!old.map(slot).contains(&slot(new)));
            keep_writing(&ours, &mut theirs, 30..33);
        },
    );
}

/// The ACK of the peer is in our socket when the program moves its queue pair to the error
/// state: the send has succeeded, as on an adapter, which processes packets on arrival.
#[test]
fn send_acknowledged_before_the_error_state_is_not_flushed() {
    on_loopback(
        "death::send_acknowledged_before_the_error_state_is_not_flushed",
        |_ferroced| {
            let error = QpAttr {
                state: QpState::Err,
                ..QpAttr::default()
            };
            for round in 0..100 {
                let mut ours = Endpoint::open(QpType::Rc, V4);
                let mut theirs = Endpoint::open(QpType::Rc, V4);
                theirs.connect(&ours.introduction());
                ours.connect(&theirs.introduction());
                theirs.receive(round, 0, 64);
                ours.post(round, SendOp::Send { imm: None }, 0, 64);
                theirs.succeed(1);
                // The peer sends the ACK that it deferred, and disconnects.
                theirs.qp.modify(&error, AttrMask::STATE, None).unwrap();
                ours.qp.modify(&error, AttrMask::STATE, None).unwrap();
                assert_eq!(ours.status(), WcStatus::Success, "round {round}");
            }
        },
    );
}
