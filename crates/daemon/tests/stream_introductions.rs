//! Channels for TCP connections: ferroced introduces the ends if one has offered a channel.

mod common;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use common::{Ferroced, add_of, connect, set_local};
use ferroce_control::{Connection, Error, Reply, Request, packet, protocol};
use ferroce_net::local::{End, Readiness, Side};
use ferroce_testnet::{deadline, isolated, isolated_as_root, role};
use rustix::net::RecvFlags;

/// UID of another user, and a group that root's ferroced serves.
const ANN: u32 = 60_001;
const MEMBERS: u32 = 60_100;

/// The number that the tests choose for their attachments.
const NUMBER: u64 = 7;

fn responder() -> SocketAddr {
    ([127, 0, 0, 1], 7174).into()
}

fn initiator() -> SocketAddr {
    ([127, 0, 0, 1], 40_000).into()
}

/// Attaches to `siw0`, and returns the slot.
fn attach(connection: &mut Connection) -> u8 {
    let request = Request::Attach {
        attachment: NUMBER,
        link: "siw0".into(),
        shards: 1,
    };
    match connection.request(&request).unwrap() {
        (Reply::Attached { slots, .. }, _) => slots[0].slot,
        (other, _) => panic!("{other:?}"),
    }
}

fn offer(connection: &mut Connection, slot: u8) -> Result<(), Error> {
    connection.perform(&Request::OfferStream {
        attachment: NUMBER,
        slot,
        local: responder(),
        peer: initiator(),
    })
}

fn introduce(connection: &mut Connection, slot: u8) -> Result<(Reply, Vec<OwnedFd>), Error> {
    connection.request(&Request::IntroduceStream {
        attachment: NUMBER,
        slot,
        local: initiator(),
        peer: responder(),
    })
}

/// Returns the errno of a refused introduction.
fn refused(connection: &mut Connection, slot: u8) -> i32 {
    introduce(connection, slot).unwrap_err().errno()
}

#[test]
fn both_ends_get_a_channel_once_and_ferroced_keeps_none() {
    let name = "both_ends_get_a_channel_once_and_ferroced_keeps_none";
    isolated(name, || {
        let ferroced = Ferroced::start();
        add_of("siw", "siw0", "lo").unwrap();
        let (mut active, mut passive) = (connect(), connect());
        let slots = (attach(&mut active), attach(&mut passive));
        let before = ferroced.descriptors();
        assert_eq!(refused(&mut active, slots.0), libc::ENXIO, "no offer");
        offer(&mut passive, slots.1).unwrap();
        let (reply, fds) = introduce(&mut active, slots.0).unwrap();
        let expected = Reply::StreamIntroduced {
            attachment: NUMBER,
            slot: slots.0,
            local: initiator(),
            peer: responder(),
        };
        assert_eq!(reply, expected);
        let [memory, socket] = fds.try_into().unwrap();
        let first = End::new(slots.1, memory, socket, Side::First).unwrap();
        let mut buffer = [0; 1024];
        let packet = packet::receive(&passive, &mut buffer, RecvFlags::empty()).unwrap();
        let (_, event) = protocol::decode_numbered::<Reply>(&buffer[..packet.len]).unwrap();
        let fds = packet.fds;
        let expected = Reply::StreamIntroduced {
            attachment: NUMBER,
            slot: slots.1,
            local: responder(),
            peer: initiator(),
        };
        assert_eq!(event, expected);
        let [memory, socket] = fds.try_into().unwrap();
        let second = End::new(slots.0, memory, socket, Side::Second).unwrap();
        second.announce();
        assert_eq!(first.readiness(), Readiness::Ready);
        assert_eq!(refused(&mut active, slots.0), libc::ENXIO, "a second time");
        deadline::until("ferroced keeps no descriptor of the channel", || {
            ferroced.descriptors() <= before
        });
        // An offer ends with its program.
        offer(&mut passive, slots.1).unwrap();
        drop(passive);
        deadline::until("the offer has ended", || {
            let mut next = connect();
            attach(&mut next) == slots.1
        });
        assert_eq!(refused(&mut active, slots.0), libc::ENXIO, "no program");
    });
}

#[test]
fn only_own_slots_of_streams_are_accepted() {
    isolated("only_own_slots_of_streams_are_accepted", || {
        let _ferroced = Ferroced::start();
        add_of("siw", "siw0", "lo").unwrap();
        let (mut active, mut passive) = (connect(), connect());
        let slots = (attach(&mut active), attach(&mut passive));
        let not_its_slot = offer(&mut passive, slots.0).unwrap_err();
        assert_eq!(not_its_slot.errno(), libc::EINVAL);
        offer(&mut passive, slots.1).unwrap();
        assert_eq!(refused(&mut active, slots.1), libc::EINVAL);
        introduce(&mut active, slots.0).unwrap();
    });
}

#[test]
fn link_option_forbids_channels_of_streams() {
    isolated("link_option_forbids_channels_of_streams", || {
        let _ferroced = Ferroced::start();
        add_of("siw", "siw0", "lo").unwrap();
        let (mut active, mut passive) = (connect(), connect());
        let slots = (attach(&mut active), attach(&mut passive));
        offer(&mut passive, slots.1).unwrap();
        set_local("siw0", false);
        let error = offer(&mut passive, slots.1).unwrap_err();
        assert_eq!(error.errno(), libc::EOPNOTSUPP);
        assert_eq!(refused(&mut active, slots.0), libc::EOPNOTSUPP);
        set_local("siw0", true);
        introduce(&mut active, slots.0).unwrap();
    });
}

/// A program of another user that offers a channel; not a test by itself.
#[test]
fn offerer() {
    if role::order().as_deref() != Some("offer") {
        return;
    }
    let mut connection = connect();
    let slot = attach(&mut connection);
    offer(&mut connection, slot).unwrap();
    role::say("offered");
    while role::hear().is_some() {}
}

#[test]
fn offer_of_another_user_is_not_found() {
    isolated_as_root("offer_of_another_user_is_not_found", || {
        let _ferroced = Ferroced::start_with(&["--group", &MEMBERS.to_string()]);
        add_of("siw", "siw0", "lo").unwrap();
        let mut ann = role::start("offerer", "offer", Some((ANN, MEMBERS)));
        assert_eq!(ann.hear(), "offered");
        let mut roots = connect();
        let slot = attach(&mut roots);
        assert_eq!(refused(&mut roots, slot), libc::ENXIO);
        // It does not hide an offer of the same user.
        let mut own = connect();
        let of_own = attach(&mut own);
        offer(&mut own, of_own).unwrap();
        introduce(&mut roots, slot).unwrap();
    });
}
