//! Assignment, use and release of slots.

mod common;

use std::net::UdpSocket;
use std::os::fd::AsFd;

use common::holder::Holder;
use common::{Ferroced, add, await_event, connect, counter, delete, send, subscribe};
use ferroce_control::{Attachment, Error, LinkEventKind, attach, watch_link};
use ferroce_testnet::{deadline, isolated, netdev};
use rustix::net::RecvFlags;

fn slots(attachment: &Attachment) -> Vec<u8> {
    attachment.slots.iter().map(|slot| slot.slot).collect()
}

fn refusal(error: Error) -> (i32, String) {
    (error.errno(), error.to_string())
}

/// Receives a packet of an attachment's slot. Returns its mark.
fn receive(attachment: &Attachment, slot: usize) -> u8 {
    let (socket, _) = attachment.slots[slot].sockets.as_ref().expect("UDP");
    deadline::readable(socket, "a packet");
    let mut packet = [0; 64];
    let (_, length) = rustix::net::recv(socket, &mut packet[..], RecvFlags::DONTWAIT).unwrap();
    packet[length - 1]
}

fn is_empty(attachment: &Attachment) -> bool {
    let mut packet = [0; 64];
    let (socket, _) = attachment.slots[0].sockets.as_ref().expect("UDP");
    rustix::net::recv(socket, &mut packet[..], RecvFlags::DONTWAIT).is_err()
}

#[test]
fn each_slot_receives_its_own_packets() {
    isolated("each_slot_receives_its_own_packets", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let one = attach("rxe0", 1).unwrap();
        let two = attach("rxe0", 3).unwrap();
        assert_eq!(slots(&one), [1]);
        assert_eq!(slots(&two), [2, 3, 4]);
        for slot in 1..=4 {
            send(slot, 100 + slot, "127.0.0.1");
        }
        assert_eq!(receive(&one, 0), 101);
        assert_eq!(receive(&two, 0), 102);
        assert_eq!(receive(&two, 1), 103);
        assert_eq!(receive(&two, 2), 104);
        let (_, v6) = one.slots[0].sockets.as_ref().expect("UDP");
        let v6 = v6.as_ref().expect("IPv6");
        send(1, 66, "::1");
        deadline::readable(v6, "an IPv6 packet");
    });
}

#[test]
fn slot_is_drained_before_it_is_assigned_again() {
    isolated("slot_is_drained_before_it_is_assigned_again", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut holder = Holder::start("rxe0", 1);
        assert_eq!(holder.slots, [1]);
        for mark in 0..20 {
            send(1, mark, "127.0.0.1");
        }
        assert_eq!(holder.receive(), 0, "the rest is there as well");
        holder.actor.kill();
        let mut next = None;
        deadline::until("the slot is free", || {
            let attachment = attach("rxe0", 1).unwrap();
            let same = slots(&attachment) == [1];
            next = same.then_some(attachment);
            same
        });
        let next = next.unwrap();
        assert!(is_empty(&next), "what was for the dead one is gone");
        send(1, 77, "127.0.0.1");
        assert_eq!(receive(&next, 0), 77);
    });
}

/// Slots are released even if the program keeps running.
#[test]
fn closing_the_connection_releases_slots() {
    isolated("closing_the_connection_releases_slots", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        drop(attach("rxe0", 5).unwrap());
        // Slots that were free longest are assigned first; none is created.
        deadline::until("slots 1 to 5 are free", || {
            slots(&attach("rxe0", 5).unwrap())
                .iter()
                .all(|slot| *slot <= 5)
        });
    });
}

/// There are 255 slots. A program gets one if it would take the second half of them. A released
/// slot can be assigned again.
#[test]
fn attachment_without_free_slots_is_refused() {
    isolated("attachment_without_free_slots_is_refused", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut all: Vec<Attachment> = (0..2).map(|_| attach("rxe0", 60).unwrap()).collect();
        all.extend((121..255).map(|_| attach("rxe0", 60).unwrap()));
        assert!(all[..2].iter().all(|many| slots(many).len() == 60));
        assert!(all[2..].iter().all(|one| slots(one).len() == 1));
        let last = attach("rxe0", 2).unwrap();
        assert_eq!(slots(&last), [255]);
        send(255, 9, "127.0.0.1");
        assert_eq!(receive(&last, 0), 9, "steering works up to the last one");
        let (errno, words) = refusal(attach("rxe0", 2).unwrap_err());
        assert_eq!(errno, libc::ENOSPC);
        let expected = "No space left on device: 1 slots are requested and 0 of 255 are free; \
             the others are in use by process ";
        assert!(words.starts_with(expected), "{words}");
        let us = format!("{} (", std::process::id());
        assert_eq!(words.matches(&us).count(), 1, "each process once: {words}");
        assert!(words.contains("): 255 slots; end one of them"), "{words}");
        drop(all.remove(0));
        deadline::until("60 slots are free", || attach("rxe0", 1).is_ok());
    });
}

/// The processes with the most slots come first.
#[test]
fn refusal_names_the_processes_that_have_the_slots() {
    isolated("refusal_names_the_processes_that_have_the_slots", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let few = Holder::start("rxe0", 2);
        let many = Holder::start("rxe0", 60);
        let rest: Vec<Attachment> = (62..255).map(|_| attach("rxe0", 1).unwrap()).collect();
        let (errno, words) = refusal(attach("rxe0", 1).unwrap_err());
        assert_eq!(errno, libc::ENOSPC);
        let comm = |pid: u32| {
            let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
            format!("{pid} ({})", comm.trim_end())
        };
        let users = format!(
            "in use by process {}: 193 slots, {}: 60 slots, {}: 2 slots; end one",
            comm(std::process::id()),
            comm(many.actor.pid()),
            comm(few.actor.pid()),
        );
        assert!(words.contains(&users), "{words}\n{users}");
        drop(rest);
    });
}

/// A program that has opened a link and takes no slots.
#[test]
fn watched_link_is_in_use_without_slots() {
    isolated("watched_link_is_in_use_without_slots", || {
        let _ferroced = Ferroced::start();
        let (errno, words) = refusal(watch_link("rxe0").unwrap_err());
        assert_eq!(errno, libc::ENODEV);
        assert!(words.contains("link rxe0 does not exist"), "{words}");
        add("rxe0", "lo").unwrap();
        let (mut watch, link) = watch_link("rxe0").unwrap();
        assert_eq!(link.name, "rxe0");
        assert!(
            connect().counters(None, true).unwrap().len() == 1,
            "no slots"
        );
        let (errno, words) = refusal(delete("rxe0", false).unwrap_err());
        assert_eq!(errno, libc::EBUSY);
        let us = format!("in use by process {} (", std::process::id());
        assert!(words.contains(&us), "{words}");
        netdev::add_address("lo", "192.0.2.1/32");
        assert_eq!(watch.await_event().unwrap().kind, LinkEventKind::GidChange);
        drop(watch);
        deadline::until("the link is free", || delete("rxe0", false).is_ok());
    });
}

#[test]
fn invalid_attachments_are_refused() {
    isolated("invalid_attachments_are_refused", || {
        let _ferroced = Ferroced::start();
        let (errno, words) = refusal(attach("rxe0", 1).unwrap_err());
        assert_eq!(errno, libc::ENODEV);
        assert!(words.contains("link rxe0 does not exist"), "{words}");
        add("rxe0", "lo").unwrap();
        assert_eq!(refusal(attach("rxe0", 0).unwrap_err()).0, libc::EINVAL);
        assert_eq!(refusal(attach("rxe0", 61).unwrap_err()).0, libc::EINVAL);
    });
}

#[test]
fn counters_outlive_the_process() {
    isolated("counters_outlive_the_process", || {
        let mut ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut two) = (Holder::start("rxe0", 1), Holder::start("rxe0", 2));
        one.count(100);
        two.count(23);
        assert_eq!(counter("rxe0", "sent_pkts"), 123, "live");
        let shares = connect().counters(Some("rxe0"), true).unwrap();
        let share = |holder: &Holder| {
            let pid = holder.actor.pid();
            let mine = |c: &&ferroce_control::LinkCounters| {
                c.process.as_ref().is_some_and(|p| p.pid == pid)
            };
            shares.iter().find(mine).unwrap().values[0].clone()
        };
        assert_eq!(share(&one), ("sent_pkts".into(), 100));
        assert_eq!(share(&two), ("sent_pkts".into(), 23));
        one.actor.kill();
        deadline::until("the process is gone", || {
            connect().counters(Some("rxe0"), true).unwrap().len() == 2
        });
        assert_eq!(counter("rxe0", "sent_pkts"), 123, "kept");
        let mut three = Holder::start("rxe0", 1);
        three.count(1);
        assert_eq!(counter("rxe0", "sent_pkts"), 124, "begun at zero");
        ferroced.kill();
        let _ferroced = Ferroced::start();
        two.resume();
        three.resume();
        assert_eq!(counter("rxe0", "sent_pkts"), 124, "and survive ferroced");
    });
}

/// The program does not read its socket.
#[test]
fn socket_overflows_are_counted_for_the_owner_of_the_slot() {
    isolated(
        "socket_overflows_are_counted_for_the_owner_of_the_slot",
        || {
            let overflows = || counter("rxe0", "rx_socket_overflow");
            let mut ferroced = Ferroced::start();
            add("rxe0", "lo").unwrap();
            let mut one = Holder::start("rxe0", 1);
            assert_eq!(one.slots, [1]);
            assert_eq!(overflows(), 0);
            let sent = overflow(1);
            let lost = overflows();
            assert!(0 < lost && lost < sent, "{lost} of {sent}");
            let shares = connect().counters(Some("rxe0"), true).unwrap();
            let named = ("rx_socket_overflow".to_owned(), lost);
            assert!(shares.iter().all(|share| share.values.contains(&named)));
            ferroced.kill();
            let _ferroced = Ferroced::start();
            one.resume();
            assert_eq!(overflows(), lost, "a restart of ferroced changes nothing");
            one.actor.kill();
            deadline::until("the process is gone", || {
                connect().counters(Some("rxe0"), true).unwrap().len() == 1
            });
            assert_eq!(overflows(), lost, "the link keeps the count");
            // The parked socket drops all datagrams: those are no overflows.
            overflow(1);
            let two = Holder::start("rxe0", 1);
            assert_eq!(two.slots, [1]);
            assert_eq!(overflows(), lost, "the next owner starts at zero");
        },
    );
}

/// Sends more datagrams to a slot than its receive buffer holds. Returns how many.
fn overflow(slot: u8) -> u64 {
    let buffer: u64 = std::fs::read_to_string("/proc/sys/net/core/rmem_max")
        .map_or(8 << 20, |text| text.trim().parse().expect("a number"));
    // Each datagram is charged at least its payload; root may exceed rmem_max.
    let mut packet = [0; 60_000];
    packet[5] = slot;
    let count = 2 * buffer.max(8 << 20) / packet.len() as u64 + 10;
    #[allow(clippy::disallowed_methods, reason = "an ordinary peer")]
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    for _ in 0..count {
        socket.send_to(&packet, ("127.0.0.1", 4791)).expect("sent");
    }
    count
}

#[test]
fn programs_receive_events_of_their_link() {
    isolated("programs_receive_events_of_their_link", || {
        netdev::add_veth("near", "far");
        netdev::add_address("near", "10.0.0.1/24");
        let _ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        add("rxe1", "lo").unwrap();
        let mut here = attach("rxe0", 1).unwrap();
        let mut other = attach("rxe1", 1).unwrap();
        netdev::add_address("near", "10.0.0.2/24");
        let now = await_event(&mut here.connection, LinkEventKind::GidChange);
        assert_eq!(now.name, "rxe0");
        assert!(
            other.connection.try_event().unwrap().is_none(),
            "not their link"
        );
    });
}

#[test]
fn link_in_use_is_deleted_only_by_force() {
    isolated("link_in_use_is_deleted_only_by_force", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut user = attach("rxe0", 1).unwrap();
        let (errno, words) = refusal(delete("rxe0", false).unwrap_err());
        assert_eq!(errno, libc::EBUSY);
        assert!(words.contains(&std::process::id().to_string()), "{words}");
        assert!(
            words.contains("ferroce link delete rxe0 --force"),
            "{words}"
        );
        delete("rxe0", true).unwrap();
        await_event(&mut user.connection, LinkEventKind::Removed);
        let slot = slots(&user)[0];
        add("rxe0", "lo").unwrap();
        let other = attach("rxe0", 1).unwrap();
        assert_ne!(slots(&other)[0], slot, "it may still use its slot");
        assert!(user.slots[0].counters.as_fd().try_clone_to_owned().is_ok());
        let mut events = subscribe();
        drop(user);
        delete("rxe0", true).unwrap();
        await_event(&mut events, LinkEventKind::Removed);
    });
}
