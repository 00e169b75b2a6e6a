//! ferroced is killed and comes back: no slot, no packet, no link is lost.

mod common;

use common::holder::Holder;
use common::{Ferroced, add, connect, counter, dir, link, send};
use ferroce_control::{Error, LinkEventKind, attach};
use ferroce_testnet::{deadline, isolated, netdev, role};
use rustix::process::{Pid, Signal, kill_process};

fn signal(holder: &Holder, signal: Signal) {
    let pid = i32::try_from(holder.actor.pid()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Every slot gets what is for it, on both families.
fn steering_is_right(holders: &mut [&mut Holder]) {
    for holder in holders {
        let slot = holder.slots[0];
        send(slot, slot, "127.0.0.1");
        assert_eq!(holder.receive(), slot);
        send(slot, slot + 100, "::1");
        assert_eq!(holder.receive(), slot + 100);
    }
}

#[test]
fn the_group_outlives_ferroced() {
    isolated("the_group_outlives_ferroced", || {
        let mut ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut one = Holder::start("rxe0", 1);
        let mut gone = Holder::start("rxe0", 2);
        let mut two = Holder::start("rxe0", 1);
        assert_eq!((one.slots[0], two.slots[0]), (1, 4));
        gone.actor.kill();
        steering_is_right(&mut [&mut one, &mut two]);

        ferroced.kill();
        steering_is_right(&mut [&mut one, &mut two]);

        let mut ferroced = Ferroced::start();
        one.resume();
        two.resume();
        steering_is_right(&mut [&mut one, &mut two]);
        let mut three = Holder::start("rxe0", 1);
        let mut four = Holder::start("rxe0", 3);
        assert_eq!(three.slots, [2], "of the one that has gone");
        assert_eq!(four.slots, [3, 5, 6], "and the group goes on growing");
        steering_is_right(&mut [&mut one, &mut two, &mut three, &mut four]);

        // And once more: the new ones are in the same boat.
        ferroced.kill();
        let _ferroced = Ferroced::start();
        for holder in [&mut four, &mut three, &mut two, &mut one] {
            holder.resume();
        }
        let mut five = Holder::start("rxe0", 1);
        assert_eq!(five.slots, [7]);
        steering_is_right(&mut [&mut one, &mut two, &mut three, &mut four, &mut five]);
    });
}

/// An attachment right after a restart waits until the others are back.
#[test]
fn newcomers_wait_for_survivors() {
    isolated("newcomers_wait_for_survivors", || {
        let mut ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut one = Holder::start("rxe0", 1);
        ferroced.kill();
        // Stopped: it cannot come back yet.
        signal(&one, Signal::STOP);
        let _ferroced = Ferroced::start();
        assert_eq!(link("rxe0").name, "rxe0", "links are there at once");
        let error = attach("rxe0", 1).unwrap_err();
        assert_eq!(error.errno(), libc::EAGAIN);
        let words = error.to_string();
        assert!(words.contains(&one.actor.pid().to_string()), "{words}");
        assert!(words.contains("is it stopped?"), "{words}");
        signal(&one, Signal::CONT);
        one.actor.say("resume");
        let mut two = Holder::start("rxe0", 1);
        assert_eq!(one.actor.hear(), "resumed");
        assert_eq!(two.slots, [2]);
        steering_is_right(&mut [&mut one, &mut two]);
    });
}

/// Who dies while ferroced is not there is noticed when it is.
#[test]
fn the_dead_are_noticed_afterwards() {
    isolated("the_dead_are_noticed_afterwards", || {
        let mut ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut one = Holder::start("rxe0", 1);
        let mut two = Holder::start("rxe0", 1);
        two.count(50);
        one.count(7);
        ferroced.kill();
        two.actor.kill();
        let _ferroced = Ferroced::start();
        one.resume();
        assert_eq!(counter("rxe0", "sent_pkts"), 57, "what it counted is kept");
        let mut three = Holder::start("rxe0", 1);
        assert_eq!(three.slots, [2], "its slot is free");
        steering_is_right(&mut [&mut one, &mut three]);
    });
}

/// Nobody is left: a new group begins, and nothing of the old one matters.
#[test]
fn without_survivors_all_begins_anew() {
    isolated("without_survivors_all_begins_anew", || {
        let mut ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut one = Holder::start("rxe0", 3);
        ferroced.kill();
        one.actor.kill();
        let _ferroced = Ferroced::start();
        let mut two = Holder::start("rxe0", 1);
        assert_eq!(two.slots, [1]);
        steering_is_right(&mut [&mut two]);
    });
}

/// The notes are gone, for whatever reason: survivors come back all the same.
#[test]
fn without_notes_survivors_are_believed() {
    isolated("without_notes_survivors_are_believed", || {
        let mut ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut one = Holder::start("rxe0", 1);
        let mut two = Holder::start("rxe0", 1);
        ferroced.kill();
        std::fs::remove_file(dir().path().join("state.json")).unwrap();
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").expect("the port is ours, in good hands");
        two.resume();
        one.resume();
        let mut three = Holder::start("rxe0", 1);
        assert_eq!(three.slots, [3]);
        steering_is_right(&mut [&mut one, &mut two, &mut three]);
    });
}

#[test]
fn programs_hear_events_again() {
    isolated("programs_hear_events_again", || {
        netdev::add_veth("near", "far");
        netdev::add_address("near", "10.0.0.1/24");
        let mut ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        let mut one = Holder::start("rxe0", 1);
        ferroced.kill();
        let _ferroced = Ferroced::start();
        one.resume();
        one.actor.say("event");
        netdev::add_address("near", "10.0.0.2/24");
        assert_eq!(one.actor.hear(), format!("{:?}", LinkEventKind::GidChange));
    });
}

/// A netdev that went while ferroced was not there has taken its link along.
#[test]
fn a_link_whose_netdev_went_is_gone() {
    isolated("a_link_whose_netdev_went_is_gone", || {
        netdev::add_veth("near", "far");
        netdev::add_address("near", "10.0.0.1/24");
        let mut ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        let mut one = Holder::start("rxe0", 1);
        ferroced.kill();
        netdev::delete("near");
        let _ferroced = Ferroced::start();
        assert_eq!(one.actor.ask("resume"), "no link");
        assert!(connect().links().unwrap().is_empty());
    });
}

/// Slots cannot be taken over by someone who never had them.
#[test]
fn slots_of_others_cannot_be_resumed() {
    isolated("slots_of_others_cannot_be_resumed", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let one = Holder::start("rxe0", 1);
        let mine = attach("rxe0", 1).unwrap();
        let theirs = ferroce_control::resume(
            dir().path(),
            "rxe0",
            &one.slots,
            &mine.escrow,
            &mine.credits,
        );
        let error = theirs.unwrap_err();
        assert!(
            matches!(
                error,
                Error::Refused {
                    errno: libc::EBUSY,
                    ..
                }
            ),
            "{error}"
        );
        let foreign = ferroce_control::SocketEscrow::new().unwrap();
        let credits = &mine.credits;
        let error =
            ferroce_control::resume(dir().path(), "rxe0", &[9], &foreign, credits).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Refused {
                    errno: libc::EINVAL,
                    ..
                }
            ),
            "{error}"
        );
        // One that died is noticed even though its connection is still with us.
        drop(mine);
        deadline::until("slot 2 is free", || {
            attach("rxe0", 1).unwrap().slots[0].slot == 2
        });
    });
}

/// Not a test: a program whose child keeps all that it had.
#[test]
fn parent() {
    let Some(_) = role::order() else { return };
    let _attachment = attach("rxe0", 1).expect("attached");
    role::end_and_leave_a_child();
}

/// No process can hand the group over, so the error names the one that holds it.
#[test]
fn a_process_that_keeps_the_group_is_named() {
    isolated("a_process_that_keeps_the_group_is_named", || {
        let mut ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut parent = role::start("parent", "", None);
        let child = parent.hear();
        parent.wait();
        ferroced.kill();
        let _ferroced = Ferroced::start();
        let error = attach("rxe0", 1).unwrap_err();
        let pid = child.parse().ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process"), Signal::KILL).expect("it lives until now");
        assert_eq!(error.errno(), libc::EAGAIN);
        let words = error.to_string();
        assert!(words.contains(&format!("Process {child} (")), "{words}");
        deadline::until("the port is free", || attach("rxe0", 1).is_ok());
    });
}
