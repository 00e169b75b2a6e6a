//! Channels in shared memory: ferroced introduces programs of one user, and no others.

mod common;

use std::os::fd::OwnedFd;

use common::holder::Holder;
use common::{Ferroced, add, connect, set_local};
use ferroce_control::{Connection, Error, Reply, Request, packet, protocol};
use ferroce_net::local::{End, Readiness, Side};
use ferroce_testnet::{deadline, isolated, isolated_as_root};
use rustix::net::RecvFlags;

/// UID of another user, and a group that root's ferroced serves.
const ANN: u32 = 60_001;
const MEMBERS: u32 = 60_100;

/// The number that the tests choose for their attachments.
const NUMBER: u64 = 7;

/// Attaches to `rxe0`, and returns the slot.
fn attach(connection: &mut Connection) -> u8 {
    let request = Request::Attach {
        attachment: NUMBER,
        link: "rxe0".into(),
        shards: 1,
    };
    match connection.request(&request).unwrap() {
        (Reply::Attached { slots, .. }, _) => slots[0].slot,
        (other, _) => panic!("{other:?}"),
    }
}

fn introduce(
    connection: &mut Connection,
    slot: u8,
    peer: u8,
) -> Result<(Reply, Vec<OwnedFd>), Error> {
    let attachment = NUMBER;
    connection.request(&Request::Introduce {
        attachment,
        slot,
        peer,
    })
}

/// Returns the errno of a refused introduction.
fn refused(connection: &mut Connection, slot: u8, peer: u8) -> i32 {
    introduce(connection, slot, peer).unwrap_err().errno()
}

#[test]
fn both_programs_get_an_end_and_ferroced_keeps_none() {
    let name = "both_programs_get_an_end_and_ferroced_keeps_none";
    isolated(name, || {
        let ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut other) = (connect(), connect());
        let slots = (attach(&mut one), attach(&mut other));
        let before = ferroced.descriptors();
        let (reply, fds) = introduce(&mut one, slots.0, slots.1).unwrap();
        let expected = Reply::Introduced {
            attachment: NUMBER,
            slot: slots.0,
            peer: slots.1,
            asked: true,
        };
        assert_eq!(reply, expected);
        let [memory, socket] = fds.try_into().unwrap();
        let first = End::new(slots.1, memory, socket, Side::First).unwrap();
        first.announce();
        assert_eq!(first.readiness(), Readiness::NotYet);
        // A second channel is refused, also from the other side. The event comes first.
        assert_eq!(refused(&mut one, slots.0, slots.1), libc::EALREADY);
        let mut buffer = [0; 1024];
        let packet = packet::receive(&other, &mut buffer, RecvFlags::empty()).unwrap();
        let (_, event) = protocol::decode_numbered::<Reply>(&buffer[..packet.len]).unwrap();
        let fds = packet.fds;
        let expected = Reply::Introduced {
            attachment: NUMBER,
            slot: slots.1,
            peer: slots.0,
            asked: false,
        };
        assert_eq!(event, expected);
        let [memory, socket] = fds.try_into().unwrap();
        let second = End::new(slots.0, memory, socket, Side::Second).unwrap();
        second.announce();
        assert_eq!(first.readiness(), Readiness::Ready);
        assert_eq!(second.readiness(), Readiness::Ready);
        assert_eq!(refused(&mut other, slots.1, slots.0), libc::EALREADY);
        deadline::until("ferroced keeps no descriptor of the channel", || {
            ferroced.descriptors() <= before
        });
        // The next owner of a slot gets a channel of its own.
        drop(other);
        deadline::until("the slot is free again", || {
            let mut next = connect();
            let free = attach(&mut next) == slots.1;
            free && introduce(&mut next, slots.1, slots.0).is_ok()
        });
    });
}

#[test]
fn wrong_slots_are_refused() {
    isolated("wrong_slots_are_refused", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut other) = (connect(), connect());
        let slots = (attach(&mut one), attach(&mut other));
        assert_eq!(
            refused(&mut one, slots.1, slots.0),
            libc::EINVAL,
            "not its slot"
        );
        for nobodys in [0, 200, slots.0] {
            assert_eq!(
                refused(&mut one, slots.0, nobodys),
                libc::ENXIO,
                "{nobodys}"
            );
        }
    });
}

#[test]
fn link_option_forbids_channels() {
    isolated("link_option_forbids_channels", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut other) = (connect(), connect());
        let slots = (attach(&mut one), attach(&mut other));
        set_local("rxe0", false);
        assert_eq!(refused(&mut one, slots.0, slots.1), libc::EOPNOTSUPP);
        set_local("rxe0", true);
        introduce(&mut one, slots.0, slots.1).unwrap();
    });
}

#[test]
fn two_users_never_share_memory() {
    isolated_as_root("two_users_never_share_memory", || {
        let _ferroced = Ferroced::start_with(&["--group", &MEMBERS.to_string()]);
        add("rxe0", "lo").unwrap();
        let anns = Holder::start_as("rxe0", 1, Some((ANN, MEMBERS))).unwrap();
        let mut roots = connect();
        let slot = attach(&mut roots);
        assert_eq!(refused(&mut roots, slot, anns.slots[0]), libc::EACCES);
    });
}
