//! Restarts of a killed ferroced lose no slot, packet or link.

mod common;

use common::holder::Holder;
use common::{Ferroced, add, connect, counter, dir, link, send};
use ferroce_control::{Error, LinkEventKind, ResumeDescriptors, attach};
use ferroce_testnet::{deadline, isolated, netdev, role};
use rustix::process::{Pid, Signal, kill_process};

fn signal(holder: &Holder, signal: Signal) {
    let pid = i32::try_from(holder.actor.pid()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Checks that each slot receives its packets, on both families.
fn assert_steering(holders: &mut [&mut Holder]) {
    for holder in holders {
        let slot = holder.slots[0];
        send(slot, slot, "127.0.0.1");
        assert_eq!(holder.receive(), slot);
        send(slot, slot + 100, "::1");
        assert_eq!(holder.receive(), slot + 100);
    }
}

#[test]
fn group_outlives_ferroced() {
    isolated("group_outlives_ferroced", || {
        let mut ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut one = Holder::start("rxe0", 1);
        let mut gone = Holder::start("rxe0", 2);
        let mut two = Holder::start("rxe0", 1);
        assert_eq!((one.slots[0], two.slots[0]), (1, 4));
        gone.actor.kill();
        assert_steering(&mut [&mut one, &mut two]);

        ferroced.kill();
        assert_steering(&mut [&mut one, &mut two]);

        let mut ferroced = Ferroced::start();
        one.resume();
        two.resume();
        assert_steering(&mut [&mut one, &mut two]);
        let mut three = Holder::start("rxe0", 1);
        let mut four = Holder::start("rxe0", 3);
        assert_eq!(three.slots, [2], "the slot of the ended program");
        assert_eq!(four.slots, [3, 5, 6], "and the group goes on growing");
        assert_steering(&mut [&mut one, &mut two, &mut three, &mut four]);

        // A second restart, with programs that attached after the first.
        ferroced.kill();
        let _ferroced = Ferroced::start();
        for holder in [&mut four, &mut three, &mut two, &mut one] {
            holder.resume();
        }
        let mut five = Holder::start("rxe0", 1);
        assert_eq!(five.slots, [7]);
        assert_steering(&mut [&mut one, &mut two, &mut three, &mut four, &mut five]);
    });
}

/// An attachment right after a restart waits until the other programs have resumed.
#[test]
fn attachment_waits_for_programs_to_resume() {
    isolated("attachment_waits_for_programs_to_resume", || {
        let mut ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut one = Holder::start("rxe0", 1);
        ferroced.kill();
        // A stopped program cannot resume yet.
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
        assert_steering(&mut [&mut one, &mut two]);
    });
}

/// ferroced notices at its start which programs have ended.
#[test]
fn program_that_ended_during_a_restart_is_released() {
    isolated("program_that_ended_during_a_restart_is_released", || {
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
        assert_steering(&mut [&mut one, &mut three]);
    });
}

/// If no program is left, ferroced creates a new group.
#[test]
fn group_is_created_anew_without_programs() {
    isolated("group_is_created_anew_without_programs", || {
        let mut ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut one = Holder::start("rxe0", 3);
        ferroced.kill();
        one.actor.kill();
        let _ferroced = Ferroced::start();
        let mut two = Holder::start("rxe0", 1);
        assert_eq!(two.slots, [1]);
        assert_steering(&mut [&mut two]);
    });
}

/// Programs can resume even if the state file is lost.
#[test]
fn programs_resume_without_a_state_file() {
    isolated("programs_resume_without_a_state_file", || {
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
        assert_steering(&mut [&mut one, &mut two, &mut three]);
    });
}

#[test]
fn resumed_programs_receive_events() {
    isolated("resumed_programs_receive_events", || {
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

/// A netdev may vanish while no ferroced runs.
#[test]
fn link_is_gone_if_its_netdev_vanished_during_a_restart() {
    isolated(
        "link_is_gone_if_its_netdev_vanished_during_a_restart",
        || {
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
        },
    );
}

/// A program cannot resume slots that it never had.
#[test]
fn slots_of_others_cannot_be_resumed() {
    isolated("slots_of_others_cannot_be_resumed", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let one = Holder::start("rxe0", 1);
        let mine = attach("rxe0", 1).unwrap();
        let theirs = ferroce_control::resume(dir().path(), "rxe0", &one.slots, &mine.descriptors);
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
        let foreign = ResumeDescriptors::Udp {
            escrow: ferroce_control::SocketEscrow::new().unwrap(),
            credits: ferroce_control::CreditPage::new().unwrap(),
        };
        let error = ferroce_control::resume(dir().path(), "rxe0", &[9], &foreign).unwrap_err();
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
        // The end of a process is noticed although its connection is still open here.
        drop(mine);
        deadline::until("slot 2 is free", || {
            attach("rxe0", 1).unwrap().slots[0].slot == 2
        });
    });
}

/// Role of a program whose child keeps its descriptors; not a test by itself.
#[test]
fn parent() {
    let Some(_) = role::order() else { return };
    let _attachment = attach("rxe0", 1).expect("attached");
    role::end_and_leave_a_child();
}

/// If no process can hand over the group, the error names the process that holds it.
#[test]
fn error_names_the_process_that_keeps_the_group() {
    isolated("error_names_the_process_that_keeps_the_group", || {
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
