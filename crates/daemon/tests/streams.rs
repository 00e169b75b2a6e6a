//! Links of type siw: programs get slots without UDP sockets.

mod common;

use std::net::UdpSocket;

use common::holder::Holder;
use common::{Ferroced, add, add_of, connect, counter};
use ferroce_control::{Attachment, ResumeDescriptors, SlotKind, attach};
use ferroce_testnet::{deadline, isolated};

fn slots(attachment: &Attachment) -> Vec<u8> {
    attachment.slots.iter().map(|slot| slot.slot).collect()
}

/// Takes UDP port 4791, as the kernel's rdma_rxe does.
#[allow(clippy::disallowed_methods, reason = "a stranger")]
fn take_port() -> UdpSocket {
    UdpSocket::bind("0.0.0.0:4791").expect("free here")
}

/// Returns the number of UDP sockets on port 4791.
fn sockets() -> usize {
    let tables = ["/proc/self/net/udp", "/proc/self/net/udp6"];
    let tables = tables.map(|path| std::fs::read_to_string(path).expect("readable"));
    let lines = tables.iter().flat_map(|table| table.lines());
    // Port 4791 in the column of local addresses.
    let local = lines.filter_map(|line| line.split_whitespace().nth(1));
    local.filter(|address| address.ends_with(":12B7")).count()
}

#[test]
fn siw_link_works_while_a_stranger_has_the_port() {
    isolated("siw_link_works_while_a_stranger_has_the_port", || {
        let _stranger = take_port();
        let _ferroced = Ferroced::start();
        let refused = add("rxe0", "lo").unwrap_err();
        assert_eq!(refused.errno(), libc::EADDRINUSE);
        add_of("siw", "siw0", "lo").unwrap();
        let attachment = attach("siw0", 2).unwrap();
        assert_eq!(slots(&attachment), [1, 2]);
        assert!(attachment.slots.iter().all(|slot| slot.sockets.is_none()));
        assert_eq!(attachment.descriptors.kind(), SlotKind::Streams);
        assert_eq!(sockets(), 1, "the stranger's");
    });
}

#[test]
fn siw_link_opens_no_udp_socket() {
    isolated("siw_link_opens_no_udp_socket", || {
        let _ferroced = Ferroced::start();
        add_of("siw", "siw0", "lo").unwrap();
        let _attachment = attach("siw0", 1).unwrap();
        assert_eq!(sockets(), 0);
        add("rxe0", "lo").unwrap();
        assert!(sockets() > 0, "a link of type rxe needs the port");
    });
}

#[test]
fn slots_of_both_types_are_counted_apart() {
    isolated("slots_of_both_types_are_counted_apart", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        add_of("siw", "siw0", "lo").unwrap();
        let mut streams: Vec<Attachment> = (0..2).map(|_| attach("siw0", 60).unwrap()).collect();
        streams.extend((120..255).map(|_| attach("siw0", 1).unwrap()));
        let refused = attach("siw0", 1).unwrap_err();
        assert_eq!(refused.errno(), libc::ENOSPC);
        let udp = attach("rxe0", 2).unwrap();
        assert_eq!(slots(&udp), [1, 2]);
        assert!(matches!(udp.descriptors, ResumeDescriptors::Udp { .. }));
        let ended = slots(&streams.remove(0));
        deadline::until("60 slots are free", || attach("siw0", 1).is_ok());
        let again = attach("siw0", 1).unwrap();
        assert!(ended.contains(&again.slots[0].slot));
    });
}

#[test]
fn restart_of_ferroced_loses_no_slot_and_no_counter_of_a_siw_link() {
    isolated(
        "restart_of_ferroced_loses_no_slot_and_no_counter_of_a_siw_link",
        || {
            let mut ferroced = Ferroced::start();
            add_of("siw", "siw0", "lo").unwrap();
            let mut one = Holder::start("siw0", 2);
            let mut two = Holder::start("siw0", 1);
            assert_eq!((&one.slots[..], &two.slots[..]), (&[1, 2][..], &[3][..]));
            one.count(40);
            two.count(2);
            ferroced.kill();
            two.actor.kill();
            let _ferroced = Ferroced::start();
            one.resume();
            one.count(50);
            assert_eq!(counter("siw0", "sent_pkts"), 50);
            // The slots of the first program are its own; that of the second is free.
            let three = Holder::start("siw0", 1);
            assert_eq!(three.slots, [3]);
            one.actor.kill();
            let is_free = || {
                let shares = connect().counters(Some("siw0"), true).unwrap();
                shares
                    .iter()
                    .filter_map(|share| share.process.as_ref())
                    .count()
                    == 1
            };
            deadline::until("the first program has ended", is_free);
            assert_eq!(counter("siw0", "sent_pkts"), 50, "the link keeps them");
        },
    );
}

#[test]
fn program_keeps_its_slots_of_both_types_over_a_restart() {
    isolated(
        "program_keeps_its_slots_of_both_types_over_a_restart",
        || {
            let mut ferroced = Ferroced::start();
            add("rxe0", "lo").unwrap();
            add_of("siw", "siw0", "lo").unwrap();
            let mut datagrams = Holder::start("rxe0", 1);
            let mut streams = Holder::start("siw0", 1);
            assert_eq!((datagrams.slots[0], streams.slots[0]), (1, 1));
            ferroced.kill();
            let _ferroced = Ferroced::start();
            streams.resume();
            datagrams.resume();
            common::send(1, 7, "127.0.0.1");
            assert_eq!(datagrams.receive(), 7);
            assert_eq!(Holder::start("siw0", 1).slots, [2]);
            assert_eq!(Holder::start("rxe0", 1).slots, [2]);
        },
    );
}
