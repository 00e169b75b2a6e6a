//! Programs connect through ferroced, by real packets.

mod common;

use common::program::Program;
use common::{Ferroced, add, counter};
use ferroce_cm::{Closed, Event, PrivateData, Reason};
use ferroce_control::CmCall;
use ferroce_testnet::{isolated, namespace, netdev};

const PORT: u16 = 7174;

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
        whole_life(&mut one, &mut two, ("127.0.0.1", "127.0.0.1"), "0.0.0.0");
        whole_life(&mut one, &mut two, ("127.0.0.1", "127.0.0.1"), "127.0.0.1");
        whole_life(&mut two, &mut one, ("::1", "::1"), "::");
        whole_life(&mut two, &mut one, ("::1", "::1"), "::1");
        assert_eq!(counter("rxe0", "sent_pkts"), counter("rxe0", "rcvd_pkts"));
        assert_eq!(counter("rxe0", "sent_pkts"), 4 * 5);
        assert_eq!(counter("rxe0", "sent_bytes"), 4 * 5 * 280);
    });
}

/// Two machines, in effect.
pub(crate) struct Cable {
    there: std::os::fd::OwnedFd,
}

impl Cable {
    fn lay() -> Cable {
        let there = namespace::another().expect("a namespace");
        netdev::add_veth("near", "far");
        netdev::move_to("far", &there);
        netdev::add_address("near", "10.0.0.1/24");
        netdev::set_up("near");
        let cable = Cable { there };
        cable.there(|| {
            netdev::add_address("far", "10.0.0.2/24");
            netdev::set_up("far");
        });
        cable
    }

    fn there<T>(&self, work: impl FnOnce() -> T) -> T {
        namespace::within(&self.there, work).expect("there and back")
    }
}

#[test]
fn a_connection_lives_and_ends_between_machines() {
    isolated("a_connection_lives_and_ends_between_machines", || {
        let cable = Cable::lay();
        let _here = Ferroced::start();
        add("rxe0", "near").unwrap();
        let mut one = Program::start("rxe0");
        let (_there, mut two) = cable.there(|| {
            let there = Ferroced::start();
            add("rxe9", "far").unwrap();
            (there, Program::start("rxe9"))
        });
        whole_life(&mut one, &mut two, ("10.0.0.1", "10.0.0.2"), "0.0.0.0");
        whole_life(&mut two, &mut one, ("10.0.0.2", "10.0.0.1"), "10.0.0.1");
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
        let way = ("127.0.0.1", "127.0.0.1");
        let qpn = one.qpn(17);
        let conn = one.connect(way, PORT, qpn).unwrap();
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
        let way = ("127.0.0.1", "127.0.0.1");
        let qpn = one.qpn(17);
        let conn = one.connect(way, PORT, qpn).unwrap();
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
        let conn = one.connect(way, PORT, qpn).unwrap();
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
