//! Programs connect through ferroced, by real packets.

mod common;

use std::net::UdpSocket;

use common::cable::{Cable, HERE, THERE};
use common::holder::Holder;
use common::program::{Line, Program, request};
use common::{Ferroced, add, counter, delete};
use ferroce_cm::message::Message;
use ferroce_cm::{Closed, Event, Mad, PrivateData, Reason};
use ferroce_control::{CmCall, CmId};
use ferroce_testnet::{deadline, isolated, role};
use ferroce_wire::{Flow, Packet, icrc};

const PORT: u16 = 7174;
const LOOP: (&str, &str) = ("127.0.0.1", "127.0.0.1");

/// From the REQ to the end of TIMEWAIT, at both ends.
fn whole_life(active: &mut Program, passive: &mut Program, way: (&str, &str), listen: &str) {
    let port = passive.line.listen(listen, PORT);
    let (ours, theirs) = (active.qpn(17), passive.qpn(18));
    let conn = active.connect(way, PORT, ours).unwrap();
    let (request, _) = passive.line.requested(port);
    passive.line.done(CmCall::Taken { conn: request });
    passive.line.accept(request, theirs);
    let response = active.line.event();
    assert!(matches!(response.event, Event::Response { conn: id, .. } if id == conn.id));
    let qp = response.qp.expect("known by now");
    assert_eq!((qp.local_qpn, qp.remote_qpn), (ours, theirs));
    let mine = active.line.establish(conn);
    let other = passive.line.established(request);
    assert_eq!(mine.qp, qp);
    assert_eq!(
        (mine.local_id, mine.remote_id),
        (other.remote_id, other.local_id)
    );
    assert_eq!(
        (mine.qp.sq_psn, mine.qp.rq_psn),
        (other.qp.rq_psn, other.qp.sq_psn)
    );

    passive.line.done(CmCall::Disconnect { conn: request });
    assert_eq!(
        active.line.disconnected(conn),
        Closed::Peer { answer_owed: true }
    );
    active.line.done(CmCall::Disconnect { conn });
    assert_eq!(passive.line.disconnected(request), Closed::Local);
    active.line.rested(conn);
    passive.line.rested(request);
    assert_eq!(active.line.errno(CmCall::Destroy { conn }), libc::ENOENT);
    passive.line.done(CmCall::Release { port });
}

#[test]
fn a_connection_lives_and_ends_over_loopback() {
    isolated("a_connection_lives_and_ends_over_loopback", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut two) = (Program::start("rxe0"), Program::start("rxe0"));
        whole_life(&mut one, &mut two, LOOP, "0.0.0.0");
        whole_life(&mut one, &mut two, LOOP, "127.0.0.1");
        whole_life(&mut two, &mut one, ("::1", "::1"), "::");
        whole_life(&mut two, &mut one, ("::1", "::1"), "::1");
        assert_eq!(counter("rxe0", "sent_pkts"), counter("rxe0", "rcvd_pkts"));
        assert_eq!(counter("rxe0", "sent_pkts"), 4 * 5);
        assert_eq!(counter("rxe0", "sent_bytes"), 4 * 5 * 280);
    });
}

#[test]
fn a_connection_lives_and_ends_between_machines() {
    isolated("a_connection_lives_and_ends_between_machines", || {
        let cable = Cable::lay();
        cable.settle();
        let _here = Ferroced::start();
        add("rxe0", "near").unwrap();
        let mut one = Program::start("rxe0");
        let (_there, mut two) = cable.there(|| {
            let there = Ferroced::start();
            add("rxe9", "far").unwrap();
            (there, Program::start("rxe9"))
        });
        whole_life(&mut one, &mut two, (HERE, THERE), "0.0.0.0");
        whole_life(&mut two, &mut one, (THERE, HERE), HERE);
        // Link-local addresses mean something on one link only.
        let local = |link: &ferroce_control::LinkInfo| {
            let gids = link.gids.iter().map(|gid| gid.address.to_string());
            gids.into_iter().find(|a| a.starts_with("fe80")).unwrap()
        };
        let (here, there) = (local(&one.attachment.link), local(&two.attachment.link));
        whole_life(&mut one, &mut two, (&here, &there), "::");
    });
}

#[test]
fn a_request_for_nobody_is_rejected() {
    isolated("a_request_for_nobody_is_rejected", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut one = Program::start("rxe0");
        let qpn = one.qpn(17);
        let conn = one.connect(LOOP, PORT, qpn).unwrap();
        match one.line.event().event {
            Event::Rejected {
                conn: id, reason, ..
            } => {
                assert_eq!((id, reason), (conn.id, Reason::INVALID_SERVICE_ID));
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_program_can_say_no() {
    isolated("a_program_can_say_no", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut two) = (Program::start("rxe0"), Program::start("rxe0"));
        let port = two.line.listen("0.0.0.0", PORT);
        let qpn = one.qpn(17);
        let conn = one.connect(LOOP, PORT, qpn).unwrap();
        let (request, _) = two.line.requested(port);
        two.line.done(CmCall::Reject {
            conn: request,
            reason: Reason::CONSUMER,
            private_data: Box::new(PrivateData::new(b"not you").unwrap()),
        });
        match one.line.event().event {
            Event::Rejected {
                conn: id,
                reason,
                private_data,
                ..
            } => {
                assert_eq!((id, reason), (conn.id, Reason::CONSUMER));
                assert_eq!(&private_data[..8], b"not you\0");
            }
            other => panic!("{other:?}"),
        }
        // Requests that nobody has taken are refused when the listener goes.
        let conn = one.connect(LOOP, PORT, qpn).unwrap();
        let (request, _) = two.line.requested(port);
        two.line.done(CmCall::Release { port });
        assert!(matches!(
            one.line.event().event,
            Event::Rejected { conn: id, reason: Reason::CONSUMER, .. } if id == conn.id
        ));
        let gone = CmCall::Destroy { conn: request };
        assert_eq!(two.line.errno(gone), libc::ENOENT);
    });
}

/// Not a test: a program that connects and is connected, until it is killed.
#[test]
fn connector() {
    let Some(_) = role::order() else { return };
    let mut program = Program::start("rxe0");
    let qpn = program.qpn(17);
    program.establish(LOOP, PORT, qpn);
    role::say("established");
    role::hear();
}

#[test]
fn the_connections_of_the_dead_are_disconnected() {
    isolated("the_connections_of_the_dead_are_disconnected", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut two = Program::start("rxe0");
        let port = two.line.listen("0.0.0.0", PORT);
        let mut one = role::start("connector", "", None);
        let (conn, _) = two.line.requested(port);
        let qpn = two.qpn(18);
        two.line.accept(conn, qpn);
        two.line.established(conn);
        assert_eq!(one.hear(), "established");
        one.kill();
        let by = two.line.disconnected(conn);
        assert_eq!(by, Closed::Peer { answer_owed: true });
        two.line.done(CmCall::Disconnect { conn });
        two.line.rested(conn);
    });
}

#[test]
fn a_wildcard_serves_links_that_come_later() {
    isolated("a_wildcard_serves_links_that_come_later", || {
        let _ferroced = Ferroced::start();
        let mut early = Line::open();
        let port = early.listen("0.0.0.0", PORT);
        add("rxe0", "lo").unwrap();
        let mut one = Program::start("rxe0");
        let qpn = one.qpn(17);
        let conn = one.connect(LOOP, PORT, qpn).unwrap();
        let (request, _) = early.requested(port);
        early.done(CmCall::Taken { conn: request });
        // The link goes: there is nothing left to name.
        delete("rxe0", true).unwrap();
        let gone = CmCall::Destroy { conn: request };
        assert_eq!(early.errno(gone), libc::ENOENT);
        assert_eq!(one.line.errno(CmCall::Destroy { conn }), libc::ENOENT);
        add("rxe1", "lo").unwrap();
        let mut two = Program::start("rxe1");
        let qpn = two.qpn(17);
        two.connect(LOOP, PORT, qpn).unwrap();
        early.requested(port);
    });
}

#[test]
fn queue_pairs_of_others_cannot_be_connected() {
    isolated("queue_pairs_of_others_cannot_be_connected", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut one = Program::start("rxe0");
        let other = Holder::start("rxe0", 1);
        let theirs = u32::from(other.slots[0]) << 16 | 17;
        for qpn in [theirs, one.qpn(17) | 1 << 24] {
            let error = one.connect(LOOP, PORT, qpn).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL, "{qpn:#x} {error}");
        }
        let error = one.connect(LOOP, PORT, theirs).unwrap_err().to_string();
        let owner = format!("belongs to process {} (", other.actor.pid());
        assert!(error.contains(&owner), "{error}");
        one.connect(LOOP, PORT, 0).expect("it may come later");
        let link = one.link();
        let elsewhere = CmCall::Connect {
            link: link + 1,
            request: Box::new(request(LOOP, PORT, 0)),
        };
        assert_eq!(one.line.errno(elsewhere), libc::ENODEV);
        let (port, _) = one.line.bind("127.0.0.1", PORT).unwrap();
        assert_eq!(
            Line::open().bind("127.0.0.1", PORT).unwrap_err().errno(),
            libc::EADDRINUSE
        );
        assert_eq!(Line::open().errno(CmCall::Release { port }), libc::ENOENT);
        let root = rustix::process::geteuid().is_root();
        assert_eq!(one.line.bind("127.0.0.1", 80).is_ok(), root);
    });
}

/// `cmtime` measures connections without queue pairs, and makes their numbers up.
#[test]
fn numbers_of_no_queue_pair_can_be_connected() {
    isolated("numbers_of_no_queue_pair_can_be_connected", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut two) = (Program::start("rxe0"), Line::open());
        let port = two.listen("0.0.0.0", PORT);
        // In ferroced's own slot, and in one that does not exist.
        for (number, theirs) in [(17, 18), (0xff_0017, 0xff_0018)] {
            let conn = one.connect(LOOP, PORT, number).unwrap();
            let (request, _) = two.requested(port);
            two.accept(request, theirs);
            let response = one.line.event();
            let qp = response.qp.expect("known by now");
            assert_eq!((qp.local_qpn, qp.remote_qpn), (number, theirs));
            one.line.establish(conn);
            two.established(request);
        }
    });
}

/// What a program asked for is as the kernel would send it.
#[test]
fn a_request_on_the_wire_is_like_the_kernels() {
    isolated("a_request_on_the_wire_is_like_the_kernels", || {
        let cable = Cable::lay();
        #[allow(clippy::disallowed_methods, reason = "a peer of flesh and blood")]
        let peer = cable.there(|| UdpSocket::bind((THERE, 4791)).unwrap());
        let _ferroced = Ferroced::start();
        add("rxe0", "near").unwrap();
        let mut one = Program::start("rxe0");
        let qpn = one.qpn(17);
        let conn = one.connect((HERE, THERE), PORT, qpn).unwrap();
        deadline::readable(&peer, "a REQ");
        let mut datagram = [0; 2048];
        let (len, from) = peer.recv_from(&mut datagram).unwrap();
        assert_eq!(from.to_string(), format!("{HERE}:{}", 0xd872));
        assert_eq!(len + 8, 288, "the length in the UDP header");
        let packet = Packet::parse(&datagram[..len]).unwrap();
        assert_eq!(packet.bytes()[0], 0x64);
        assert_eq!(
            (packet.pkey(), packet.dest_qpn(), packet.pad()),
            (0xffff, 1, 0)
        );
        let deth = packet.deth().unwrap();
        assert_eq!((deth.qkey, deth.source_qpn), (0x8001_0000, 1));
        let flow = Flow {
            source: from.ip(),
            destination: THERE.parse().unwrap(),
            source_port: from.port(),
        };
        assert!(icrc::verify(&flow, 0, packet.bytes()));
        let mad = Mad::decode(packet.payload()).unwrap();
        assert_eq!(mad.encode()[..], *packet.payload());
        let Message::Req(req) = mad.message else {
            panic!("{mad:?}");
        };
        assert_eq!(req.local_id, conn.id.comm_id());
        assert_eq!(req.ca_guid.to_be_bytes(), one.attachment.link.guid());
        assert_eq!((req.qpn, req.pkey, req.qkey), (qpn, 0xffff, 0));
        assert_eq!((req.max_cm_retries, req.primary.ack_timeout), (15, 17));
        let timeouts = (req.remote_response_timeout, req.local_response_timeout);
        assert_eq!(timeouts, (20, 20));
        assert_eq!((req.primary.local_lid, req.primary.hop_limit), (0xffff, 64));
        assert_eq!(req.primary.local_gid, flow.source.into());
        assert_eq!(req.primary.remote_gid, flow.destination.into());
        assert_eq!(req.service_id, 0x0106_0000 | u64::from(PORT));
    });
}

/// Nobody reads while a thousand ask; then all of them are connected, and end at once.
#[test]
fn a_thousand_connections_at_once() {
    isolated("a_thousand_connections_at_once", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut two) = (Program::start("rxe0"), Program::start("rxe0"));
        let port = two.line.listen("0.0.0.0", PORT);
        for n in 0..1000 {
            let qpn = one.qpn(1000 + n);
            one.connect(LOOP, PORT, qpn).unwrap();
        }
        let mut theirs = Vec::new();
        for n in 0..1000 {
            let (conn, _) = two.line.requested(port);
            let qpn = two.qpn(1000 + n);
            two.line.accept(conn, qpn);
            theirs.push(conn);
        }
        for _ in 0..1000 {
            let event = one.line.event();
            let Event::Response { conn, .. } = event.event else {
                panic!("{event:?}");
            };
            let link = event.link;
            one.line.establish(CmId { link, id: conn });
        }
        for _ in 0..1000 {
            let event = two.line.event();
            assert!(
                matches!(event.event, Event::Established { .. }),
                "{event:?}"
            );
        }
        drop(one);
        for _ in 0..1000 {
            let event = two.line.event();
            assert!(
                matches!(event.event, Event::Disconnected { .. }),
                "{event:?}"
            );
        }
        for conn in theirs {
            two.line.done(CmCall::Disconnect { conn });
        }
        for _ in 0..1000 {
            let event = two.line.event();
            assert!(
                matches!(event.event, Event::TimewaitExit { .. }),
                "{event:?}"
            );
        }
        let connected = counter("rxe0", "sent_pkts");
        assert_eq!(connected, 5 * 1000, "nothing had to be repeated");
    });
}

/// Two thousand connections one after the other, each from a port of its own:
/// nothing piles up.
#[test]
fn connections_come_and_go() {
    isolated("connections_come_and_go", || {
        let ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut two) = (Program::start("rxe0"), Program::start("rxe0"));
        let port = two.line.listen("0.0.0.0", PORT);
        let mut before = 0;
        for n in 0..2000 {
            let (ours, theirs) = (one.qpn(n % 60_000 + 1), two.qpn(n % 60_000 + 1));
            let (source, _) = one.line.bind("127.0.0.1", 0).unwrap();
            let conn = one.connect(LOOP, PORT, ours).unwrap();
            let (request, _) = two.line.requested(port);
            two.line.accept(request, theirs);
            let response = one.line.event().event;
            assert!(matches!(response, Event::Response { .. }), "{response:?}");
            one.line.establish(conn);
            two.line.established(request);
            one.line.done(CmCall::Disconnect { conn });
            two.line.disconnected(request);
            two.line.done(CmCall::Disconnect { conn: request });
            two.line.done(CmCall::Destroy { conn: request });
            one.line.disconnected(conn);
            one.line.done(CmCall::Destroy { conn });
            one.line.done(CmCall::Release { port: source });
            if n == 0 {
                before = ferroced.descriptors();
            }
        }
        assert_eq!(counter("rxe0", "sent_pkts"), 5 * 2000);
        deadline::until("descriptors are closed", || {
            ferroced.descriptors() == before
        });
    });
}
