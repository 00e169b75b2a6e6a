//! Programs and ferroced are killed in the middle of things.

use ferroce_device::transport::{AttrMask, QpAttr, QpState, QpType, SendOp, WcStatus};
use ferroce_testnet::deadline;

use crate::support::{Endpoint, Ferroced, Puppet, V4, V6, on_loopback, pair, pattern};

const MESSAGE: u32 = 256 << 10;

/// The slot that a queue pair number belongs to.
fn slot(qpn: u32) -> u32 {
    qpn >> 16
}

/// A new pair of programs can work.
fn works(seed: u32, gid_index: u8) {
    let (ours, mut theirs) = pair(QpType::Rc, gid_index);
    ours.put(0, &pattern(seed, MESSAGE));
    ours.write(1, 0, MESSAGE);
    ours.succeed(1);
    theirs.expect(&format!("check {seed} 0 {MESSAGE}"), "right");
}

#[test]
fn a_program_is_killed_in_mid_transfer() {
    on_loopback("death::a_program_is_killed_in_mid_transfer", |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        for id in 0..16 {
            ours.write(id, 0, MESSAGE);
        }
        ours.succeed(2);
        theirs.actor.kill();
        // The others may have been faster than the signal; this one is not.
        ours.write(16, 0, MESSAGE);
        let rest = ours.completions(15);
        let failed = rest.iter().position(|wc| wc.status != WcStatus::Success);
        let failed = failed.expect("the dead do not answer");
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
    });
}

/// Peers remember the numbers of connections for a while: a REQ from a queue pair that was
/// connected just now is refused as stale.
#[test]
fn the_next_in_the_slot_has_other_numbers() {
    on_loopback(
        "death::the_next_in_the_slot_has_other_numbers",
        |_ferroced| {
            let mut last = Puppet::start(QpType::Rc, V4);
            last.actor.kill();
            deadline::until("the slot of the dead is free again", || {
                let next = Puppet::start(QpType::Rc, V4).introduction.qpn;
                assert_ne!(next, last.introduction.qpn);
                slot(next) == slot(last.introduction.qpn)
            });
        },
    );
}

/// The next program in a slot gets none of the packets that were for the last one.
#[test]
fn the_next_in_the_slot_is_not_disturbed() {
    on_loopback(
        "death::the_next_in_the_slot_is_not_disturbed",
        |_ferroced| {
            let (ours, mut theirs) = pair(QpType::Rc, V6);
            for id in 0..16 {
                ours.write(id, 0, MESSAGE);
            }
            theirs.actor.kill();
            ours.write(16, 0, MESSAGE);
            // While the retries for the dead one still come.
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
fn ferroced_is_killed_in_mid_transfer() {
    on_loopback(
        "death::ferroced_is_killed_in_mid_transfer",
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

            // The new ferroced knows whose slots are whose; so does the one after it.
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
fn a_send_acknowledged_before_the_error_state_is_not_flushed() {
    on_loopback(
        "death::a_send_acknowledged_before_the_error_state_is_not_flushed",
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
