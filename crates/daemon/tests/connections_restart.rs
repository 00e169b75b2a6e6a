//! ferroced is killed and comes back: connections stay, and can still be ended.

mod common;

use common::cable::{Cable, HERE, THERE};
use common::holder::Holder;
use common::program::{Connected, Line, Program};
use common::{Ferroced, add, dir};
use ferroce_cm::{Closed, Event, Snapshot};
use ferroce_control::{CmAnswer, CmCall, CmId, resume};
use ferroce_testnet::isolated;

const PORT: u16 = 7174;
const LOOP: (&str, &str) = ("127.0.0.1", "127.0.0.1");

/// What a program does when ferroced has been restarted, but for its connections.
fn come_back(program: &mut Program) {
    assert!(program.line.is_broken());
    let slots: Vec<u8> = program.attachment.slots.iter().map(|s| s.slot).collect();
    let kept = &program.attachment;
    let resumed = resume(
        dir().path(),
        &kept.link.name,
        &slots,
        &kept.escrow,
        &kept.credits,
    );
    let (connection, link) = resumed.expect("resumed");
    assert!(link.is_some());
    program.attachment.connection = connection;
    program.line = Line::open();
}

fn hand_back(program: &mut Program, snapshot: Snapshot) -> CmId<ferroce_cm::ConnId> {
    let link = program.link();
    let snapshot = Box::new(snapshot);
    match program
        .line
        .call(CmCall::Resume { link, snapshot })
        .unwrap()
    {
        CmAnswer::Connection { conn } => conn,
        other => panic!("{other:?}"),
    }
}

/// Two programs and an established connection between them.
fn connected(one: &mut Program, two: &mut Program, way: (&str, &str)) -> (Connected, Snapshot) {
    let port = two.line.listen("0.0.0.0", PORT);
    let (ours, theirs) = (one.qpn(17), two.qpn(18));
    let conn = one.connect(way, PORT, ours).unwrap();
    let (request, _) = two.line.requested(port);
    two.line.accept(request, theirs);
    let response = one.line.event();
    assert!(matches!(response.event, Event::Response { .. }));
    let (qp, snapshot) = (response.qp.unwrap(), one.line.establish(conn));
    let other = two.line.established(request);
    (Connected { conn, qp, snapshot }, other)
}

#[test]
fn an_established_connection_outlives_ferroced() {
    isolated("an_established_connection_outlives_ferroced", || {
        let mut ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut two) = (Program::start("rxe0"), Program::start("rxe0"));
        let (mine, theirs) = connected(&mut one, &mut two, LOOP);
        ferroced.kill();
        let _ferroced = Ferroced::start();
        come_back(&mut one);
        let conn = hand_back(&mut one, mine.snapshot);
        assert_eq!(conn, mine.conn, "it has kept its name");
        come_back(&mut two);
        // The record of another process is of no use.
        let other = Holder::start("rxe0", 1);
        let stolen = CmCall::Resume {
            link: one.link(),
            snapshot: Box::new(Snapshot {
                qp: ferroce_cm::QpParameters {
                    local_qpn: u32::from(other.slots[0]) << 16,
                    ..theirs.qp
                },
                ..theirs
            }),
        };
        assert_eq!(one.line.errno(stolen), libc::EINVAL);
        let other = hand_back(&mut two, theirs);
        one.line.done(CmCall::Disconnect { conn });
        let by = two.line.disconnected(other);
        assert_eq!(by, Closed::Peer { answer_owed: true });
        two.line.done(CmCall::Disconnect { conn: other });
        assert_eq!(one.line.disconnected(conn), Closed::Local);
        one.line.rested(conn);
        two.line.rested(other);
        // And everything goes on as before.
        let (again, _) = connected(&mut one, &mut two, LOOP);
        assert_eq!(again.qp.local_qpn, mine.qp.local_qpn);
    });
}

/// The peer disconnects, and another one connects, while ferroced is not there. Nobody
/// is told that there is no such connection, or that nobody listens.
#[test]
fn what_came_meanwhile_is_not_refused() {
    isolated("what_came_meanwhile_is_not_refused", || {
        let cable = Cable::lay();
        let mut here = Ferroced::start();
        add("rxe0", "near").unwrap();
        let mut one = Program::start("rxe0");
        let (_there, mut two) = cable.there(|| {
            let there = Ferroced::start();
            add("rxe9", "far").unwrap();
            (there, Program::start("rxe9"))
        });
        let (theirs, ours) = connected(&mut two, &mut one, (THERE, HERE));
        here.kill();
        two.line.done(CmCall::Disconnect { conn: theirs.conn });
        let qpn = two.qpn(19);
        let new = two.connect((THERE, HERE), PORT, qpn).unwrap();
        let _here = Ferroced::start();
        come_back(&mut one);
        let conn = hand_back(&mut one, ours);
        let port = one.line.listen("0.0.0.0", PORT);
        let mut ended = false;
        let mut requested = None;
        while !ended || requested.is_none() {
            let event = one.line.event();
            match event.event {
                Event::Disconnected { conn: id, .. } if id == conn.id => ended = true,
                Event::Request(incoming) => requested = Some(incoming.conn),
                other => panic!("{other:?}"),
            }
            assert!(event.port.is_none() || event.port == Some(port));
        }
        one.line.done(CmCall::Disconnect { conn });
        assert_eq!(two.line.disconnected(theirs.conn), Closed::Local);
        let link = conn.link;
        let accepted = CmId {
            link,
            id: requested.unwrap(),
        };
        let qpn = one.qpn(20);
        one.line.accept(accepted, qpn);
        loop {
            match two.line.event().event {
                Event::TimewaitExit { conn } if conn == theirs.conn.id => {}
                Event::Response { conn, .. } if conn == new.id => break,
                other => panic!("{other:?}"),
            }
        }
    });
}

/// With nobody left, requests are answered all the same.
#[test]
fn without_survivors_requests_are_answered() {
    isolated("without_survivors_requests_are_answered", || {
        let mut ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        drop(Program::start("rxe0"));
        ferroced.kill();
        let _ferroced = Ferroced::start();
        let mut line = Line::open();
        let link = common::link("rxe0").index;
        let request = Box::new(common::program::request(LOOP, PORT, 0));
        line.call(CmCall::Connect { link, request }).unwrap();
        assert!(matches!(line.event().event, Event::Rejected { .. }));
    });
}
