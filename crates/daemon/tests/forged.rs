//! Forged messages: a sender that does not know the communication IDs of a connection can
//! neither take it over nor close it.

mod common;

use std::net::UdpSocket;

use common::cable::{Cable, HERE, THERE};
use common::program::Program;
use common::{Ferroced, add, counter};
use ferroce_cm::message::{Drep, Dreq, Message, Mra, Rej, Rep, Rtu, Subject};
use ferroce_cm::{Address, Closed, Event, Kind, Mad, PrivateData, Reason, Role, Snapshot};
use ferroce_control::CmCall;
use ferroce_testnet::{deadline, isolated, netdev};
use ferroce_wire::{Bth, Deth, Flow, HeaderBuf, Opcode, Psn, icrc};

const PORT: u16 = 7174;
const LOOP: (&str, &str) = ("127.0.0.1", "127.0.0.1");
const QKEY: u32 = 0x8001_0000;

/// A process on this machine that forges messages.
struct Forger {
    socket: UdpSocket,
    flow: Flow,
}

impl Forger {
    /// Returns a forger that sends from `address` to `to`.
    fn new(address: &str, to: &str) -> Forger {
        #[allow(clippy::disallowed_methods, reason = "a forger needs only a socket")]
        let socket = UdpSocket::bind((address, 0)).expect("a socket");
        let source_port = socket.local_addr().unwrap().port();
        let flow = Flow {
            source: address.parse().unwrap(),
            destination: to.parse().unwrap(),
            source_port,
        };
        Forger { socket, flow }
    }

    fn send(&self, mad: &[u8], qkey: u32, crc_flaw: u8) {
        let opcode = Opcode::from_byte(0x64).unwrap();
        let deth = Deth {
            qkey,
            source_qpn: 1,
        };
        let bth = Bth::new(opcode, 1, Psn::new(0));
        let header = HeaderBuf::new(&bth).deth(&deth).finish();
        let mut packet = [header.as_bytes(), mad].concat();
        // The receiver finds the IPv4 identification that fits.
        let mut crc = icrc::compute(&self.flow, 0, &packet);
        for at in [100, 200] {
            if let Some(byte) = packet.get_mut(at) {
                *byte ^= crc_flaw;
            }
        }
        crc[0] ^= crc_flaw;
        packet.extend(crc);
        let to = (self.flow.destination, 4791);
        self.socket.send_to(&packet, to).unwrap();
    }

    fn send_message(&self, message: Message) {
        let mad = Mad {
            tid: 7,
            modifier: 0,
            message,
        };
        self.send(&mad.encode(), QKEY, 0);
    }
}

fn dreq(end: &Snapshot) -> Dreq {
    Dreq {
        local_id: end.remote_id,
        remote_id: end.local_id,
        remote_qpn: end.qp.local_qpn,
        private_data: PrivateData::EMPTY,
    }
}

/// Returns messages to one end of a connection, each with a wrong ID.
fn wrong_ids(end: &Snapshot) -> Vec<Message> {
    let mut messages = Vec::new();
    let (ours, theirs) = (end.local_id, end.remote_id);
    for (local_id, remote_id) in [
        (theirs ^ 1, ours),
        (theirs, ours ^ 1),
        (0, ours),
        (theirs, 0),
        (ours, theirs ^ 2),
    ] {
        messages.extend([
            Message::Dreq(Dreq {
                local_id,
                remote_id,
                ..dreq(end)
            }),
            Message::Drep(Drep {
                local_id,
                remote_id,
                private_data: PrivateData::EMPTY,
            }),
            Message::Rtu(Rtu {
                local_id,
                remote_id,
                private_data: PrivateData::EMPTY,
            }),
            Message::Mra(Mra {
                local_id,
                remote_id,
                subject: Subject::Other,
                service_timeout: 31,
                private_data: PrivateData::EMPTY,
            }),
            Message::Rep(Rep {
                local_id,
                remote_id,
                qkey: 0,
                qpn: 99,
                vendor_id: 0,
                eecn: 0,
                starting_psn: 0,
                responder_resources: 0,
                initiator_depth: 0,
                target_ack_delay: 0,
                failover_accepted: 0,
                flow_control: false,
                rnr_retry_count: 0,
                srq: false,
                ca_guid: end.remote_guid,
                private_data: PrivateData::EMPTY,
            }),
        ]);
        for subject in [Subject::Req, Subject::Rep, Subject::Other] {
            for reason in [Reason::TIMEOUT, Reason::CONSUMER, Reason::STALE_CONNECTION] {
                let rej = Rej {
                    local_id,
                    remote_id,
                    subject,
                    ari_len: 0,
                    reason,
                    ari: [0; 72],
                    private_data: PrivateData::EMPTY,
                };
                messages.push(Message::Rej(rej));
            }
        }
    }
    messages.push(Message::Dreq(Dreq {
        remote_qpn: end.qp.local_qpn ^ 1,
        ..dreq(end)
    }));
    messages
}

/// Two programs on two hosts. The forgers are on the second host.
struct World {
    cable: Cable,
    _ferroceds: [Ferroced; 2],
    one: Program,
    two: Program,
}

impl World {
    fn new() -> World {
        let cable = Cable::lay();
        let here = Ferroced::start();
        add("rxe0", "near").unwrap();
        let one = Program::start("rxe0");
        let (there, two) = cable.there(|| {
            netdev::add_address("far", "10.0.0.3/24");
            let there = Ferroced::start();
            add("rxe9", "far").unwrap();
            (there, Program::start("rxe9"))
        });
        World {
            cable,
            _ferroceds: [here, there],
            one,
            two,
        }
    }

    fn forger(&self, address: &str) -> Forger {
        self.cable.there(|| Forger::new(address, HERE))
    }
}

#[test]
fn forged_messages_do_not_affect_a_connection() {
    isolated("forged_messages_do_not_affect_a_connection", || {
        let mut world = World::new();
        let (one, two) = (&mut world.one, &mut world.two);
        let port = two.cm.listen("0.0.0.0", PORT);
        let (ours, theirs) = (one.qpn(17), two.qpn(18));
        let conn = one.connect((HERE, THERE), PORT, ours).unwrap();
        let (request, _) = two.cm.requested(port);
        two.cm.accept(request, theirs);
        assert!(matches!(one.cm.event().event, Event::Response { .. }));
        let end = one.cm.establish(conn);
        two.cm.established(request);

        let forger = world.forger(THERE);
        for message in wrong_ids(&end) {
            forger.send_message(message);
        }
        // All IDs are right, but the source address is wrong.
        world
            .forger("10.0.0.3")
            .send_message(Message::Dreq(dreq(&end)));
        // Random bytes.
        let mut bytes = 1_u32;
        for len in [0, 4, 252, 260, 256, 256, 256, 256] {
            let mut noise = vec![0; len];
            noise.fill_with(|| {
                bytes = bytes.wrapping_mul(0x915f_77f5).wrapping_add(1);
                (bytes >> 24) as u8
            });
            forger.send(&noise, QKEY, 0);
        }
        // All IDs are right, but the Q_Key or the ICRC is wrong.
        let perfect = Mad {
            tid: 7,
            modifier: 0,
            message: Message::Dreq(dreq(&end)),
        };
        forger.send(&perfect.encode(), QKEY ^ 1, 0);
        forger.send(&perfect.encode(), 0, 0);
        forger.send(&perfect.encode(), QKEY, 0x5a);
        deadline::until("all have arrived", || counter("rxe0", "rx_icrc_err") == 1);
        assert_eq!(counter("rxe0", "qkey_viol_cntr"), 2);
        assert_eq!(counter("rxe0", "rx_malformed"), 4);

        // The next event of either end is caused by the other end.
        let (one, two) = (&mut world.one, &mut world.two);
        one.cm.done(CmCall::Disconnect { conn });
        let by = two.cm.disconnected(request);
        assert_eq!(by, Closed::Peer { answer_owed: true });
        two.cm.done(CmCall::Disconnect { conn: request });
        assert_eq!(one.cm.disconnected(conn), Closed::Local);
        one.cm.timewait_exited(conn);
        two.cm.timewait_exited(request);
    });
}

/// An answer to an outstanding request must have its communication ID.
#[test]
fn request_is_not_answered_by_a_forger() {
    isolated("request_is_not_answered_by_a_forger", || {
        let mut world = World::new();
        let (one, two) = (&mut world.one, &mut world.two);
        let port = two.cm.listen("0.0.0.0", PORT);
        let (ours, theirs) = (one.qpn(17), two.qpn(18));
        let conn = one.connect((HERE, THERE), PORT, ours).unwrap();
        let (request, qp) = two.cm.requested(port);
        let end = Snapshot {
            role: Role::Active,
            kind: Kind::Rc,
            address: Address {
                local: HERE.parse().unwrap(),
                remote: THERE.parse().unwrap(),
            },
            ports: None,
            local_id: conn.id.comm_id() ^ 8,
            remote_id: request.id.comm_id(),
            remote_guid: 1,
            tid: 1,
            qp,
            interval: std::time::Duration::from_secs(1),
            max_retries: 1,
        };
        let forger = world.forger(THERE);
        for message in wrong_ids(&end) {
            forger.send_message(message);
        }
        forger.send(&[0; 256], QKEY ^ 1, 0);
        deadline::until("all have arrived", || {
            counter("rxe0", "qkey_viol_cntr") == 1
        });
        let (one, two) = (&mut world.one, &mut world.two);
        two.cm.accept(request, theirs);
        let response = one.cm.event();
        assert!(matches!(response.event, Event::Response { .. }));
        assert_eq!(response.qp.unwrap().remote_qpn, theirs);
        one.cm.establish(conn);
        two.cm.established(request);
    });
}

/// On one host any process can send from any address, but not from ferroced's UDP port. So
/// even a process that knows all IDs cannot send for ferroced.
#[test]
fn other_process_cannot_send_for_ferroced() {
    isolated("other_process_cannot_send_for_ferroced", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let (mut one, mut two) = (Program::start("rxe0"), Program::start("rxe0"));
        let port = two.cm.listen("0.0.0.0", PORT);
        let (ours, theirs) = (one.qpn(17), two.qpn(18));
        let conn = one.connect(LOOP, PORT, ours).unwrap();
        let (request, _) = two.cm.requested(port);
        two.cm.accept(request, theirs);
        assert!(matches!(one.cm.event().event, Event::Response { .. }));
        let ends = [one.cm.establish(conn), two.cm.established(request)];
        let forger = Forger::new(LOOP.0, LOOP.1);
        for end in &ends {
            forger.send_message(Message::Dreq(dreq(end)));
        }
        deadline::until("both have arrived", || {
            counter("rxe0", "rx_wrong_peer") == 2
        });
        one.cm.done(CmCall::Disconnect { conn });
        two.cm.disconnected(request);
        two.cm.done(CmCall::Disconnect { conn: request });
        assert_eq!(one.cm.disconnected(conn), Closed::Local);
    });
}
