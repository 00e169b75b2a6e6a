//! Connections on links of type siw, with a real ferroced: both ends are this process.

#![allow(clippy::disallowed_methods)] // strangers connect by TCP

mod ends;
#[path = "../../../abi/tests/common/ferroced.rs"]
#[allow(dead_code, reason = "shared with other test programs")]
mod ferroced;
mod memory;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use ferroce_device::transport::{MwKind, QpInit, QpState, QpType, SendOp, WcStatus};
use ferroce_rdmacm::{ConnParams, EventChannel, EventKind, RESOLVE_TIMEOUT};
use ferroce_testnet::isolated;

use support::{
    End, buffer, cap, channels, completion, connect, listener, new_id, next, on_siw, pair, post,
    queue_pair, request, send_message,
};

#[test]
fn ends_connect_transfer_and_disconnect() {
    on_siw("ends_connect_transfer_and_disconnect", |_| {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0"] {
            let [here, there] = channels();
            let (_listening, [active, passive]) = pair(&here, &there, address);
            for length in [1, 100, 5000, 1 << 20] {
                send_message(&active, &passive, length);
                send_message(&passive, &active, length);
            }
            const LENGTH: usize = 3 << 20;
            let (source, sink) = (buffer(&active, LENGTH), buffer(&passive, LENGTH));
            let bytes: Vec<u8> = (0..LENGTH).map(|at| (at % 241) as u8).collect();
            source.write(0, &bytes);
            let (remote_addr, rkey) = (sink.addr(), sink.rkey());
            let write = SendOp::Write {
                remote_addr,
                rkey,
                imm: None,
            };
            post(&active, 1, write, &source, LENGTH);
            assert_eq!(completion(&active).1, WcStatus::Success);
            // A READ is answered after the WRITE before it was placed.
            let back = buffer(&active, LENGTH);
            post(
                &active,
                2,
                SendOp::Read { remote_addr, rkey },
                &back,
                LENGTH,
            );
            let (wr_id, status, _) = completion(&active);
            assert_eq!((wr_id, status), (2, WcStatus::Success));
            for memory in [&sink, &back] {
                let mut got = vec![0; LENGTH];
                memory.read(0, &mut got);
                assert!(got == bytes, "the data differs");
            }
            active.id.disconnect().expect("disconnected");
            for channel in [&here, &there] {
                let ended = next(channel).kind;
                assert!(matches!(ended, EventKind::Disconnected { errno: 0 }));
            }
            for end in [&active, &passive] {
                let state = end.qp.query().expect("it lives").attr.state;
                assert_eq!(state, QpState::Err);
            }
        }
    });
}

#[test]
fn rejection_carries_private_data() {
    on_siw("rejection_carries_private_data", |_| {
        let [here, there] = channels();
        let (_listening, address) = listener(&there, "127.0.0.1:0", 4);
        for dropped in [false, true] {
            let (_active, qp, _cq) = connect(&here, address);
            let passive = request(&there);
            let expected: &[u8] = match dropped {
                true => b"",
                false => {
                    passive.reject(b"no").expect("rejected");
                    b"no"
                }
            };
            drop(passive);
            match next(&here).kind {
                EventKind::Refused {
                    errno,
                    private_data,
                } => assert_eq!((errno, &private_data[..]), (libc::ECONNRESET, expected)),
                other => panic!("{other:?}"),
            }
            let state = qp.query().expect("it lives").attr.state;
            assert_eq!(state, QpState::Err);
        }
    });
}

#[test]
fn port_without_a_listener_refuses() {
    on_siw("port_without_a_listener_refuses", |_| {
        let [here, there] = channels();
        let (listening, address) = listener(&there, "127.0.0.1:0", 4);
        drop(listening);
        let _queues = connect(&here, address);
        match next(&here).kind {
            EventKind::Refused { errno, .. } => assert_eq!(errno, libc::ECONNREFUSED),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn listener_on_a_taken_tcp_port_names_its_holder() {
    on_siw("listener_on_a_taken_tcp_port_names_its_holder", |_| {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = taken.local_addr().expect("bound");
        let channel = EventChannel::new().expect("a channel");
        let id = new_id(&channel);
        id.bind(address).expect("rdma_cm's own table has it free");
        let error = id.listen(1).unwrap_err();
        assert_eq!(error.errno(), libc::EADDRINUSE);
        let name = format!("process {}", std::process::id());
        assert!(error.to_string().contains(&name), "{error}");
        drop(taken);
        id.listen(1).expect("the port is free");
    });
}

#[test]
fn peer_that_speaks_another_protocol_is_closed() {
    on_siw("peer_that_speaks_another_protocol_is_closed", |_| {
        let [here, there] = channels();
        let (_listening, address) = listener(&there, "0.0.0.0:0", 4);
        let to = SocketAddr::new([127, 0, 0, 1].into(), address.port());
        let mut stranger = TcpStream::connect(to).expect("connected");
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
        // A reset or the end of the stream, and nothing else.
        let read = stranger.read(&mut [0; 64]);
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
        // The listener goes on.
        let _queues = connect(&here, to);
        drop(request(&there));
    });
}

#[test]
fn half_open_connections_beyond_the_backlog_are_closed() {
    on_siw(
        "half_open_connections_beyond_the_backlog_are_closed",
        |_| {
            let [here, there] = channels();
            let (_listening, address) = listener(&there, "127.0.0.1:0", 2);
            let connect_silently = |_| TcpStream::connect(address).expect("connected");
            let mut silent: Vec<TcpStream> = (0..3).map(connect_silently).collect();
            let read = silent[0].read(&mut [0; 64]);
            assert!(matches!(read, Ok(0) | Err(_)), "the oldest one: {read:?}");
            let _queues = connect(&here, address);
            drop(request(&there));
        },
    );
}

#[test]
fn end_of_ferroced_disturbs_no_connection() {
    on_siw("end_of_ferroced_disturbs_no_connection", |ferroced| {
        let [here, there] = channels();
        let (_listening, [active, passive]) = pair(&here, &there, "127.0.0.1:0");
        ferroced.kill();
        send_message(&active, &passive, 100_000);
        send_message(&passive, &active, 100_000);
        active.id.disconnect().expect("disconnected");
        let ended = next(&there).kind;
        assert!(matches!(ended, EventKind::Disconnected { errno: 0 }));
    });
}

#[test]
fn peer_without_a_receive_is_terminated() {
    on_siw("peer_without_a_receive_is_terminated", |_| {
        let [here, there] = channels();
        let (_listening, [active, passive]) = pair(&here, &there, "127.0.0.1:0");
        let source = buffer(&active, 64);
        post(&active, 1, SendOp::Send { imm: None }, &source, 64);
        for channel in [&here, &there] {
            let ended = next(channel).kind;
            assert!(matches!(ended, EventKind::Disconnected { .. }));
        }
        for end in [&active, &passive] {
            let state = end.qp.query().expect("it lives").attr.state;
            assert_eq!(state, QpState::Err);
        }
    });
}

#[test]
fn destroyed_queue_pair_disconnects_the_peer() {
    on_siw("destroyed_queue_pair_disconnects_the_peer", |_| {
        let [here, there] = channels();
        let (_listening, [active, passive]) = pair(&here, &there, "127.0.0.1:0");
        send_message(&active, &passive, 10);
        active.id.detach_qp();
        drop(active.qp);
        let ended = next(&there).kind;
        assert!(matches!(ended, EventKind::Disconnected { errno: 0 }));
    });
}

#[test]
fn link_of_each_type_serves_one_netdev() {
    isolated("link_of_each_type_serves_one_netdev", || {
        let _ferroced = ferroced::Ferroced::start();
        ferroced::add_link("rxe0", "lo");
        ferroced::add_link_of("siw", "siw0", "lo");
        let [here, there] = channels();
        // The link that was added first serves connections by address.
        let (_listening, address) = listener(&there, "0.0.0.0:0", 4);
        let to = SocketAddr::new([127, 0, 0, 1].into(), address.port());
        let id = new_id(&here);
        id.resolve_addr(None, to, RESOLVE_TIMEOUT)
            .expect("resolving");
        assert!(matches!(next(&here).kind, EventKind::AddressResolved));
        let device = id.device().expect("resolved");
        assert_eq!(device.link().name, "rxe0");
        // The listener serves both.
        TcpStream::connect(to).expect("siw0 listens, too");
    });
}

#[test]
fn siw_refuses_objects_that_it_does_not_have() {
    on_siw("siw_refuses_objects_that_it_does_not_have", |_| {
        let device = ferroce_device::Device::open("siw0").expect("open");
        let (pd, cq) = (
            device.alloc_pd(),
            device.create_cq(8, None).expect("a queue"),
        );
        for qp_type in [QpType::Ud, QpType::Uc] {
            let init = QpInit {
                qp_type,
                pd: Some(Arc::clone(&pd)),
                send_cq: Some(Arc::clone(cq.queue())),
                recv_cq: Some(Arc::clone(cq.queue())),
                srq: None,
                xrcd: None,
                cap: cap(),
                sq_sig_all: true,
            };
            let refused = device.create_qp(&init, &[&cq]);
            refused.expect_err("iWARP has RC queue pairs only");
        }
        device
            .alloc_mw(&pd, MwKind::Type1)
            .expect_err("siw has no windows");
    });
}

// siw: the responder waits 5 s for the Request.
#[test]
fn peer_that_sends_nothing_is_closed() {
    on_siw("peer_that_sends_nothing_is_closed", |_| {
        let [here, there] = channels();
        let (_listening, address) = listener(&there, "127.0.0.1:0", 4);
        let mut silent = TcpStream::connect(address).expect("connected");
        let read = silent.read(&mut [0; 64]);
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
        let _queues = connect(&here, address);
        drop(request(&there));
    });
}

#[test]
fn thousand_connections_carry_messages() {
    on_siw("thousand_connections_carry_messages", |_| {
        raise_descriptor_limit(4000);
        let [here, there] = channels();
        let (_listening, address) = listener(&there, "127.0.0.1:0", 16);
        let connections: Vec<[End; 2]> = (0..1000)
            .map(|_| {
                let (id, qp, cq) = connect(&here, address);
                let active = End { id, qp, cq };
                let id = request(&there);
                let (qp, cq) = queue_pair(&id);
                id.accept(&ConnParams::default()).expect("accepted");
                assert!(matches!(next(&here).kind, EventKind::Established(Some(_))));
                assert!(matches!(next(&there).kind, EventKind::Established(None)));
                [active, End { id, qp, cq }]
            })
            .collect();
        for [active, passive] in &connections {
            send_message(active, passive, 100);
            send_message(passive, active, 100);
        }
    });
}

/// Raises the soft limit of open descriptors.
fn raise_descriptor_limit(to: u64) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|now| now < to) {
        limit.current = Some(to);
        setrlimit(Resource::Nofile, limit).expect("a higher limit of descriptors");
    }
}
