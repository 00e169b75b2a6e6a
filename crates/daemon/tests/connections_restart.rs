//! Connections outlive a restart of ferroced, and can still be closed.

mod common;

use common::cable::{Cable, HERE, THERE};
use common::holder::Holder;
use common::program::{CmClient, Connected, Program};
use common::{Ferroced, add, dir};
use ferroce_cm::{Closed, Event, Snapshot};
use ferroce_control::{CmAnswer, CmCall, CmId, resume};
use ferroce_testnet::isolated;

const PORT: u16 = 7174;
const LOOP: (&str, &str) = ("127.0.0.1", "127.0.0.1");

/// Resumes the slots of a program after a restart, without its connections.
fn resume_program(program: &mut Program) {
    assert!(program.cm.is_broken());
    let slots: Vec<u8> = program.attachment.slots.iter().map(|s| s.slot).collect();
    let attachment = &program.attachment;
    let resumed = resume(
        dir().path(),
        &attachment.link.name,
        &slots,
        &attachment.descriptors,
    );
    let (connection, link) = resumed.expect("resumed");
    assert!(link.is_some());
    program.attachment.connection = connection;
    program.cm = CmClient::open();
}

fn resume_connection(program: &mut Program, snapshot: Snapshot) -> CmId<ferroce_cm::ConnId> {
    let link = program.link();
    let snapshot = Box::new(snapshot);
    match program.cm.call(CmCall::Resume { link, snapshot }).unwrap() {
        CmAnswer::Connection { conn } => conn,
        other => panic!("{other:?}"),
    }
}

/// Two programs and an established connection between them.
fn connected(one: &mut Program, two: &mut Program, path: (&str, &str)) -> (Connected, Snapshot) {
    let port = two.cm.listen("0.0.0.0", PORT);
    let (ours, theirs) = (one.qpn(17), two.qpn(18));
    let conn = one.connect(path, PORT, ours).unwrap();
    let (request, _) = two.cm.requested(port);
    two.cm.accept(request, theirs);
    let response = one.cm.event();
    assert!(matches!(response.event, Event::Response { .. }));
    let (qp, snapshot) = (response.qp.unwrap(), one.cm.establish(conn));
    let other = two.cm.established(request);
    (Connected { conn, qp, snapshot }, other)
}

#[test]
fn established_connection_outlives_ferroced() {
    isolated("established_connection_outlives_ferroced", || {
        let mut ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut two) = (Program::start("rxe0"), Program::start("rxe0"));
        let (mine, theirs) = connected(&mut one, &mut two, LOOP);
        ferroced.kill();
        let _ferroced = Ferroced::start();
        resume_program(&mut one);
        let conn = resume_connection(&mut one, mine.snapshot);
        assert_eq!(conn, mine.conn, "it has kept its ID");
        resume_program(&mut two);
        // The record of another process's connection is refused.
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
        assert_eq!(one.cm.errno(stolen), libc::EINVAL);
        let other = resume_connection(&mut two, theirs);
        one.cm.done(CmCall::Disconnect { conn });
        let by = two.cm.disconnected(other);
        assert_eq!(by, Closed::Peer { answer_owed: true });
        two.cm.done(CmCall::Disconnect { conn: other });
        assert_eq!(one.cm.disconnected(conn), Closed::Local);
        one.cm.timewait_exited(conn);
        two.cm.timewait_exited(other);
        // New connections work as before.
        let (again, _) = connected(&mut one, &mut two, LOOP);
        assert_eq!(again.qp.local_qpn, mine.qp.local_qpn);
    });
}

/// The peer disconnects, and connects again, while no ferroced runs here. The new ferroced
/// sends no REJ before the program has resumed and listens.
#[test]
fn messages_during_a_restart_are_not_refused() {
    isolated("messages_during_a_restart_are_not_refused", || {
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
        two.cm.done(CmCall::Disconnect { conn: theirs.conn });
        let qpn = two.qpn(19);
        let new = two.connect((THERE, HERE), PORT, qpn).unwrap();
        let _here = Ferroced::start();
        resume_program(&mut one);
        let conn = resume_connection(&mut one, ours);
        let port = one.cm.listen("0.0.0.0", PORT);
        let mut ended = false;
        let mut requested = None;
        while !ended || requested.is_none() {
            let event = one.cm.event();
            match event.event {
                Event::Disconnected { conn: id, .. } if id == conn.id => ended = true,
                Event::Request(incoming) => requested = Some(incoming.conn),
                other => panic!("{other:?}"),
            }
            assert!(event.port.is_none() || event.port == Some(port));
        }
        one.cm.done(CmCall::Disconnect { conn });
        assert_eq!(two.cm.disconnected(theirs.conn), Closed::Local);
        let link = conn.link;
        let accepted = CmId {
            link,
            id: requested.unwrap(),
        };
        let qpn = one.qpn(20);
        one.cm.accept(accepted, qpn);
        loop {
            match two.cm.event().event {
                Event::TimewaitExit { conn } if conn == theirs.conn.id => {}
                Event::Response { conn, .. } if conn == new.id => break,
                other => panic!("{other:?}"),
            }
        }
    });
}

/// ferroced answers requests even if no program resumes.
#[test]
fn requests_are_answered_without_resumed_programs() {
    isolated("requests_are_answered_without_resumed_programs", || {
        let mut ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        drop(Program::start("rxe0"));
        ferroced.kill();
        let _ferroced = Ferroced::start();
        let mut line = CmClient::open();
        let link = common::link("rxe0").index;
        let request = Box::new(common::program::request(LOOP, PORT, 0));
        line.call(CmCall::Connect { link, request }).unwrap();
        assert!(matches!(line.event().event, Event::Rejected { .. }));
    });
}
