//! Connections through ferroced, with real packets.

mod common;

use std::net::UdpSocket;

use common::cable::{Cable, HERE, THERE};
use common::holder::Holder;
use common::program::{CmClient, Program, request};
use common::{Ferroced, add, counter, delete, set_local};
use ferroce_cm::message::Message;
use ferroce_cm::{Closed, Event, Mad, PrivateData, Reason};
use ferroce_control::{CmCall, CmId};
use ferroce_testnet::{deadline, isolated, role};
use ferroce_wire::{Flow, Packet, icrc};

const PORT: u16 = 7174;
const LOOP: (&str, &str) = ("127.0.0.1", "127.0.0.1");

/// Establishes and closes a connection, from the REQ to the end of TIMEWAIT, at both ends.
fn connect_and_disconnect(
    active: &mut Program,
    passive: &mut Program,
    path: (&str, &str),
    listen: &str,
) {
    let port = passive.cm.listen(listen, PORT);
    let (ours, theirs) = (active.qpn(17), passive.qpn(18));
    let conn = active.connect(path, PORT, ours).unwrap();
    let (request, _) = passive.cm.requested(port);
    passive.cm.done(CmCall::Taken { conn: request });
    passive.cm.accept(request, theirs);
    let response = active.cm.event();
    assert!(matches!(response.event, Event::Response { conn: id, .. } if id == conn.id));
    let qp = response.qp.expect("known by now");
    assert_eq!((qp.local_qpn, qp.remote_qpn), (ours, theirs));
    let mine = active.cm.establish(conn);
    let other = passive.cm.established(request);
    assert_eq!(mine.qp, qp);
    assert_eq!(
        (mine.local_id, mine.remote_id),
        (other.remote_id, other.local_id)
    );
    assert_eq!(
        (mine.qp.sq_psn, mine.qp.rq_psn),
        (other.qp.rq_psn, other.qp.sq_psn)
    );

    passive.cm.done(CmCall::Disconnect { conn: request });
    assert_eq!(
        active.cm.disconnected(conn),
        Closed::Peer { answer_owed: true }
    );
    active.cm.done(CmCall::Disconnect { conn });
    assert_eq!(passive.cm.disconnected(request), Closed::Local);
    active.cm.timewait_exited(conn);
    passive.cm.timewait_exited(request);
    assert_eq!(active.cm.errno(CmCall::Destroy { conn }), libc::ENOENT);
    passive.cm.done(CmCall::Release { port });
}

#[test]
fn connection_over_loopback_is_established_and_closed() {
    isolated("connection_over_loopback_is_established_and_closed", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut two) = (Program::start("rxe0"), Program::start("rxe0"));
        connect_and_disconnect(&mut one, &mut two, LOOP, "0.0.0.0");
        connect_and_disconnect(&mut one, &mut two, LOOP, "127.0.0.1");
        connect_and_disconnect(&mut two, &mut one, ("::1", "::1"), "::");
        connect_and_disconnect(&mut two, &mut one, ("::1", "::1"), "::1");
        assert_eq!(counter("rxe0", "sent_pkts"), counter("rxe0", "rcvd_pkts"));
        assert_eq!(counter("rxe0", "sent_pkts"), 4 * 5);
        assert_eq!(counter("rxe0", "sent_bytes"), 4 * 5 * 280);
    });
}

/// Returns the UDP datagrams that this network namespace has received over IPv4.
fn datagrams() -> u64 {
    let text = std::fs::read_to_string("/proc/net/snmp").expect("readable");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut columns = names.split(' ').zip(values.split(' '));
    let column = columns.find(|(name, _)| *name == "InDatagrams");
    column.expect("counted").1.parse().unwrap()
}

/// Both programs are on this machine, so ferroced is the connection manager of both.
#[test]
fn messages_to_this_machine_do_not_leave_ferroced() {
    isolated("messages_to_this_machine_do_not_leave_ferroced", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut two) = (Program::start("rxe0"), Program::start("rxe0"));
        let before = datagrams();
        connect_and_disconnect(&mut one, &mut two, LOOP, "0.0.0.0");
        assert_eq!(datagrams(), before);
        let local = common::link("rxe0").local;
        assert!(local, "the default of the option");
        set_local("rxe0", false);
        connect_and_disconnect(&mut one, &mut two, LOOP, "0.0.0.0");
        assert_eq!(datagrams(), before + 5, "the option is off");
    });
}

#[test]
fn connection_between_hosts_is_established_and_closed() {
    isolated("connection_between_hosts_is_established_and_closed", || {
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
        connect_and_disconnect(&mut one, &mut two, (HERE, THERE), "0.0.0.0");
        connect_and_disconnect(&mut two, &mut one, (THERE, HERE), HERE);
        // Link-local addresses are valid on one link only.
        let local = |link: &ferroce_control::LinkInfo| {
            let gids = link.gids.iter().map(|gid| gid.address.to_string());
            gids.into_iter().find(|a| a.starts_with("fe80")).unwrap()
        };
        let (here, there) = (local(&one.attachment.link), local(&two.attachment.link));
        connect_and_disconnect(&mut one, &mut two, (&here, &there), "::");
    });
}

/// A reply to the notices would be taken for that to the next call: the port would have
/// another number.
#[test]
fn notices_are_executed_in_order_and_get_no_reply() {
    isolated("notices_are_executed_in_order_and_get_no_reply", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut program = CmClient::open();
        let (first, _) = program.bind("127.0.0.1", PORT).unwrap();
        let (second, _) = program.bind("127.0.0.1", PORT + 1).unwrap();
        let unknown = CmCall::Release { port: 4711 };
        let release = |port| CmCall::Release { port };
        program.notify(vec![release(first), unknown, release(second)]);
        for port in [PORT, PORT + 1] {
            assert_eq!(program.bind("127.0.0.1", port).unwrap().1, port);
        }
    });
}

#[test]
fn request_without_a_listener_is_rejected() {
    isolated("request_without_a_listener_is_rejected", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut one = Program::start("rxe0");
        let qpn = one.qpn(17);
        let conn = one.connect(LOOP, PORT, qpn).unwrap();
        match one.cm.event().event {
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
fn program_can_reject_a_request() {
    isolated("program_can_reject_a_request", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut two) = (Program::start("rxe0"), Program::start("rxe0"));
        let port = two.cm.listen("0.0.0.0", PORT);
        let qpn = one.qpn(17);
        let conn = one.connect(LOOP, PORT, qpn).unwrap();
        let (request, _) = two.cm.requested(port);
        two.cm.done(CmCall::Reject {
            conn: request,
            reason: Reason::CONSUMER,
            private_data: Box::new(PrivateData::new(b"not you").unwrap()),
        });
        match one.cm.event().event {
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
        // Requests that the program has not taken are rejected when the listener closes.
        let conn = one.connect(LOOP, PORT, qpn).unwrap();
        let (request, _) = two.cm.requested(port);
        two.cm.done(CmCall::Release { port });
        assert!(matches!(
            one.cm.event().event,
            Event::Rejected { conn: id, reason: Reason::CONSUMER, .. } if id == conn.id
        ));
        let gone = CmCall::Destroy { conn: request };
        assert_eq!(two.cm.errno(gone), libc::ENOENT);
    });
}

/// Role of a program that connects and accepts, until it is killed; not a test by itself.
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
fn connections_of_a_killed_program_are_disconnected() {
    isolated("connections_of_a_killed_program_are_disconnected", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut two = Program::start("rxe0");
        let port = two.cm.listen("0.0.0.0", PORT);
        let mut one = role::start("connector", "", None);
        let (conn, _) = two.cm.requested(port);
        let qpn = two.qpn(18);
        two.cm.accept(conn, qpn);
        two.cm.established(conn);
        assert_eq!(one.hear(), "established");
        one.kill();
        let by = two.cm.disconnected(conn);
        assert_eq!(by, Closed::Peer { answer_owed: true });
        two.cm.done(CmCall::Disconnect { conn });
        two.cm.timewait_exited(conn);
    });
}

#[test]
fn wildcard_listens_on_links_added_later() {
    isolated("wildcard_listens_on_links_added_later", || {
        let _ferroced = Ferroced::start();
        let mut early = CmClient::open();
        let port = early.listen("0.0.0.0", PORT);
        add("rxe0", "lo").unwrap();
        let mut one = Program::start("rxe0");
        let qpn = one.qpn(17);
        let conn = one.connect(LOOP, PORT, qpn).unwrap();
        let (request, _) = early.requested(port);
        early.done(CmCall::Taken { conn: request });
        // The link is deleted, and its listener with it.
        delete("rxe0", true).unwrap();
        let gone = CmCall::Destroy { conn: request };
        assert_eq!(early.errno(gone), libc::ENOENT);
        assert_eq!(one.cm.errno(CmCall::Destroy { conn }), libc::ENOENT);
        add("rxe1", "lo").unwrap();
        let mut two = Program::start("rxe1");
        let qpn = two.qpn(17);
        two.connect(LOOP, PORT, qpn).unwrap();
        early.requested(port);
    });
}

#[test]
fn queue_pair_of_another_process_is_refused() {
    isolated("queue_pair_of_another_process_is_refused", || {
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
        assert_eq!(one.cm.errno(elsewhere), libc::ENODEV);
        let (port, _) = one.cm.bind("127.0.0.1", PORT).unwrap();
        assert_eq!(
            CmClient::open()
                .bind("127.0.0.1", PORT)
                .unwrap_err()
                .errno(),
            libc::EADDRINUSE
        );
        assert_eq!(
            CmClient::open().errno(CmCall::Release { port }),
            libc::ENOENT
        );
        let root = rustix::process::geteuid().is_root();
        assert_eq!(one.cm.bind("127.0.0.1", 80).is_ok(), root);
    });
}

/// `cmtime` measures connections without queue pairs and invents QPNs.
#[test]
fn qpn_without_an_owner_is_accepted() {
    isolated("qpn_without_an_owner_is_accepted", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut two) = (Program::start("rxe0"), CmClient::open());
        let port = two.listen("0.0.0.0", PORT);
        // In ferroced's slot, and in a slot that does not exist.
        for (number, theirs) in [(17, 18), (0xff_0017, 0xff_0018)] {
            let conn = one.connect(LOOP, PORT, number).unwrap();
            let (request, _) = two.requested(port);
            two.accept(request, theirs);
            let response = one.cm.event();
            let qp = response.qp.expect("known by now");
            assert_eq!((qp.local_qpn, qp.remote_qpn), (number, theirs));
            one.cm.establish(conn);
            two.established(request);
        }
    });
}

/// The REQ of a program is byte for byte that of the kernel.
#[test]
fn req_on_the_wire_is_that_of_the_kernel() {
    isolated("req_on_the_wire_is_that_of_the_kernel", || {
        let cable = Cable::lay();
        #[allow(
            clippy::disallowed_methods,
            reason = "the test is a peer without Ferroce"
        )]
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

/// The listener reads no event until 1000 requests wait; then all are accepted and closed.
#[test]
fn thousand_connections_are_established_at_once() {
    isolated("thousand_connections_are_established_at_once", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut two) = (Program::start("rxe0"), Program::start("rxe0"));
        let port = two.cm.listen("0.0.0.0", PORT);
        for n in 0..1000 {
            let qpn = one.qpn(1000 + n);
            one.connect(LOOP, PORT, qpn).unwrap();
        }
        let mut theirs = Vec::new();
        for n in 0..1000 {
            let (conn, _) = two.cm.requested(port);
            let qpn = two.qpn(1000 + n);
            two.cm.accept(conn, qpn);
            theirs.push(conn);
        }
        for _ in 0..1000 {
            let event = one.cm.event();
            let Event::Response { conn, .. } = event.event else {
                panic!("{event:?}");
            };
            let link = event.link;
            one.cm.establish(CmId { link, id: conn });
        }
        for _ in 0..1000 {
            let event = two.cm.event();
            assert!(
                matches!(event.event, Event::Established { .. }),
                "{event:?}"
            );
        }
        drop(one);
        for _ in 0..1000 {
            let event = two.cm.event();
            assert!(
                matches!(event.event, Event::Disconnected { .. }),
                "{event:?}"
            );
        }
        for conn in theirs {
            two.cm.done(CmCall::Disconnect { conn });
        }
        for _ in 0..1000 {
            let event = two.cm.event();
            assert!(
                matches!(event.event, Event::TimewaitExit { .. }),
                "{event:?}"
            );
        }
        let connected = counter("rxe0", "sent_pkts");
        assert_eq!(connected, 5 * 1000, "nothing had to be repeated");
    });
}

/// 2000 connections in sequence, each from its own port.
#[test]
fn many_connections_leave_nothing_behind() {
    isolated("many_connections_leave_nothing_behind", || {
        let ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut two) = (Program::start("rxe0"), Program::start("rxe0"));
        let port = two.cm.listen("0.0.0.0", PORT);
        let mut before = 0;
        for n in 0..2000 {
            let (ours, theirs) = (one.qpn(n % 60_000 + 1), two.qpn(n % 60_000 + 1));
            let (source, _) = one.cm.bind("127.0.0.1", 0).unwrap();
            let conn = one.connect(LOOP, PORT, ours).unwrap();
            let (request, _) = two.cm.requested(port);
            two.cm.accept(request, theirs);
            let response = one.cm.event().event;
            assert!(matches!(response, Event::Response { .. }), "{response:?}");
            one.cm.establish(conn);
            two.cm.established(request);
            one.cm.done(CmCall::Disconnect { conn });
            two.cm.disconnected(request);
            two.cm.done(CmCall::Disconnect { conn: request });
            two.cm.done(CmCall::Destroy { conn: request });
            one.cm.disconnected(conn);
            one.cm.done(CmCall::Destroy { conn });
            one.cm.done(CmCall::Release { port: source });
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
