//! The ends of connections: messages that were posted before a disconnect arrive.

use std::net::UdpSocket;

use ferroce_device::transport::{RecvWr, SendOp, WcStatus};
use ferroce_rdmacm::{ConnParams, EventKind};
use ferroce_testnet::isolated;

use crate::ferroced::{Ferroced, add_link_of};
use crate::support::{
    End, buffer, channels, completion, connect, listener, next, on_siw, pair, post, queue_pair,
    request, send_message,
};

const LENGTH: usize = 3000;
/// Messages that are more than a socket takes at once.
const MANY: u64 = 16;

/// The last action of the passive end, after its last post.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Last {
    Disconnect,
    DestroyQp,
}

/// Accepts a connection, posts messages at once, and ends the connection. The active end, which
/// has said nothing, receives them all.
fn server_sends_and_ends(last: Last) {
    let [here, there] = channels();
    let (_listening, to) = listener(&there, "127.0.0.1:0", 4);
    let (id, qp, cq) = connect(&here, to);
    let active = End { id, qp, cq };
    let sink = buffer(&active, LENGTH);
    for wr_id in 0..MANY {
        let sges = &[sink.sge(0, LENGTH as u32)];
        active
            .qp
            .post_recv(&RecvWr { wr_id, sges })
            .expect("posted");
    }
    let id = request(&there);
    let (qp, cq) = queue_pair(&id);
    let passive = End { id, qp, cq };
    let source = buffer(&passive, LENGTH);
    let bytes: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
    source.write(0, &bytes);
    passive.id.accept(&ConnParams::default()).expect("accepted");
    for wr_id in 0..MANY {
        post(&passive, wr_id, SendOp::Send { imm: None }, &source, LENGTH);
    }
    match last {
        Last::Disconnect => {
            passive.id.disconnect().expect("connected");
            for wr_id in 0..MANY {
                let (completed, status, _) = completion(&passive);
                assert_eq!((completed, status), (wr_id, WcStatus::Success));
            }
        }
        Last::DestroyQp => {
            passive.id.detach_qp();
            drop(passive.qp);
        }
    }
    for wr_id in 0..MANY {
        let received = completion(&active);
        assert_eq!(received, (wr_id, WcStatus::Success, LENGTH as u32));
    }
    let mut got = vec![0; LENGTH];
    sink.read(0, &mut got);
    assert!(got == bytes, "the message differs");
    assert!(matches!(next(&here).kind, EventKind::Established(Some(_))));
    let ended = next(&here).kind;
    assert!(
        matches!(ended, EventKind::Disconnected { errno: 0 }),
        "{ended:?}"
    );
}

#[test]
fn server_that_sends_and_disconnects_at_once_loses_no_message() {
    let name = "ends::server_that_sends_and_disconnects_at_once_loses_no_message";
    on_siw(name, |_| server_sends_and_ends(Last::Disconnect));
}

#[test]
fn server_that_sends_and_destroys_its_queue_pair_loses_no_message() {
    let name = "ends::server_that_sends_and_destroys_its_queue_pair_loses_no_message";
    on_siw(name, |_| server_sends_and_ends(Last::DestroyQp));
}

/// More than the ring or the sockets of both ends hold, so that most is not sent when the program disconnects.
#[test]
fn disconnect_sends_what_did_not_fit_into_the_socket() {
    let name = "ends::disconnect_sends_what_did_not_fit_into_the_socket";
    on_siw(name, |_| {
        const LENGTH: usize = 2 << 20;
        let [here, there] = channels();
        let (_listening, [active, passive]) = pair(&here, &there, "127.0.0.1:0");
        send_message(&active, &passive, 10);
        let (source, sink) = (buffer(&active, LENGTH), buffer(&passive, LENGTH));
        for wr_id in 0..MANY {
            let sges = &[sink.sge(0, LENGTH as u32)];
            passive
                .qp
                .post_recv(&RecvWr { wr_id, sges })
                .expect("posted");
        }
        for wr_id in 0..MANY {
            post(&active, wr_id, SendOp::Send { imm: None }, &source, LENGTH);
        }
        active.id.disconnect().expect("connected");
        for wr_id in 0..MANY {
            let (sent, status, _) = completion(&active);
            assert_eq!((sent, status), (wr_id, WcStatus::Success));
            let received = completion(&passive);
            assert_eq!(received, (wr_id, WcStatus::Success, LENGTH as u32));
        }
    });
}

/// The kernel's rdma_rxe, or another program, may hold RoCE's port.
#[test]
fn connections_need_no_udp_port() {
    let name = "ends::connections_need_no_udp_port";
    isolated(name, || {
        let _stranger = UdpSocket::bind("0.0.0.0:4791").expect("free here");
        let _ferroced = Ferroced::start();
        add_link_of("siw", "siw0", "lo");
        let [here, there] = channels();
        let (_listening, [active, passive]) = pair(&here, &there, "0.0.0.0:0");
        send_message(&active, &passive, 5000);
        send_message(&passive, &active, 5000);
    });
}
