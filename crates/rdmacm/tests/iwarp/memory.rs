//! Connections within the host use shared memory, unless a user or the peer chooses TCP.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use ferroce_control::{Request, find_daemon};
use ferroce_device::transport::{RecvWr, SendOp, WcStatus};
use ferroce_rdmacm::{ConnParams, EventKind};
use ferroce_testnet::{deadline, role};

use crate::support::{
    End, buffer, channels, completion, connect, listener, next, on_siw, pair, post, queue_pair,
    request, send_message,
};

/// Returns a counter of all links.
fn counter(name: &str) -> u64 {
    let mut connection = find_daemon().expect("reachable").expect("running");
    let counters = connection.counters(None, false).expect("counters");
    let values = counters.iter().flat_map(|counters| &counters.values);
    values
        .filter(|(of, _)| of == name)
        .map(|(_, value)| value)
        .sum()
}

fn set_local(on: bool) {
    let mut connection = find_daemon().expect("reachable").expect("running");
    let changed = connection.perform(&Request::LinkSet {
        name: "siw0".into(),
        rename: None,
        mtu: None,
        crc: None,
        lids: None,
        patience: None,
        speed: None,
        local: Some(on),
        strict: None,
        profile: None,
    });
    changed.expect("a link that can be changed");
}

/// Returns the number of channels that this process has mapped.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    let is_channel = |line: &&str| line.contains("ferroce-channel");
    maps.lines().filter(is_channel).count()
}

/// Returns the number of open descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}

/// The wires that bytes can take.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Wire {
    Memory,
    Tcp,
}

/// Connects two ends, exchanges messages, and checks the wire.
fn exchange(expected: Wire) {
    const LENGTH: usize = 100_000;
    let before = counter("local_rcvd_bytes");
    let [here, there] = channels();
    let (_listening, [active, passive]) = pair(&here, &there, "127.0.0.1:0");
    send_message(&active, &passive, LENGTH);
    send_message(&passive, &active, LENGTH);
    let moved = counter("local_rcvd_bytes") - before;
    match expected {
        Wire::Memory => assert!(moved >= 2 * LENGTH as u64, "{moved} bytes"),
        Wire::Tcp => assert_eq!(moved, 0),
    }
    // Both ends are in this process.
    let channels = if expected == Wire::Memory { 2 } else { 0 };
    assert_eq!(mapped(), channels);
    active.id.disconnect().expect("disconnected");
    assert!(matches!(
        next(&there).kind,
        EventKind::Disconnected { errno: 0 }
    ));
    assert!(matches!(
        next(&here).kind,
        EventKind::Disconnected { errno: 0 }
    ));
    deadline::until("no channel is left", || mapped() == 0);
}

#[test]
fn connections_within_the_host_use_memory() {
    on_siw("memory::connections_within_the_host_use_memory", |_| {
        exchange(Wire::Memory);
        let before = descriptors();
        for _ in 0..3 {
            exchange(Wire::Memory);
        }
        deadline::until("no descriptor is left", || descriptors() <= before);
    });
}

#[test]
fn link_option_chooses_tcp_for_the_next_connection() {
    let name = "memory::link_option_chooses_tcp_for_the_next_connection";
    on_siw(name, |_| {
        set_local(false);
        exchange(Wire::Tcp);
        set_local(true);
        exchange(Wire::Memory);
    });
}

#[test]
fn environment_chooses_tcp() {
    on_siw("memory::environment_chooses_tcp", |_| {
        // SAFETY: no other thread reads the environment.
        unsafe { std::env::set_var("FERROCE_WIRE", "tcp") };
        exchange(Wire::Tcp);
    });
}

#[test]
fn silent_ferroced_chooses_tcp() {
    on_siw("memory::silent_ferroced_chooses_tcp", |ferroced| {
        let [here, there] = channels();
        let (_listening, address) = listener(&there, "127.0.0.1:0", 4);
        let (id, qp, cq) = connect(&here, address);
        let active = End { id, qp, cq };
        let id = request(&there);
        let (qp, cq) = queue_pair(&id);
        let passive = End { id, qp, cq };
        ferroced.stop();
        passive.id.accept(&ConnParams::default()).expect("accepted");
        assert!(matches!(next(&here).kind, EventKind::Established(Some(_))));
        assert!(matches!(next(&there).kind, EventKind::Established(None)));
        send_message(&active, &passive, 5000);
        send_message(&passive, &active, 5000);
        assert_eq!(mapped(), 0);
        ferroced.go_on();
    });
}

/// A peer that ferroced does not know, on this host: no frame differs, and no message waits.
#[test]
fn foreign_peer_of_this_host_uses_tcp() {
    /// A Request without CRCs, for IRD and ORD by agreement of the programs.
    const REQUEST: [u8; 20] = *b"MPA ID Req Frame\x00\x01\x00\x05";
    /// An FPDU with a WRITE of no bytes.
    const EMPTY_WRITE: [u8; 20] = [
        0, 14, 0xc1, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    on_siw("memory::foreign_peer_of_this_host_uses_tcp", |_| {
        let [_, there] = channels();
        let (_listening, to) = listener(&there, "127.0.0.1:0", 4);
        let mut peer = stranger(to);
        peer.write_all(&[&REQUEST[..], b"hello"].concat())
            .expect("sent");
        let id = request(&there);
        let (qp, cq) = queue_pair(&id);
        let passive = End { id, qp, cq };
        passive.id.accept(&ConnParams::default()).expect("accepted");
        peer.write_all(&EMPTY_WRITE).expect("sent");
        let mut reply = [0; 20];
        std::io::Read::read_exact(&mut peer, &mut reply).expect("a Reply");
        assert_eq!(&reply[..16], b"MPA ID Rep Frame");
        let source = buffer(&passive, 100);
        post(&passive, 1, SendOp::Send { imm: None }, &source, 100);
        let mut fpdu = [0; 124];
        std::io::Read::read_exact(&mut peer, &mut fpdu).expect("a SEND");
        assert_eq!(completion(&passive).1, WcStatus::Success);
        assert_eq!(mapped(), 0);
    });
}

#[allow(clippy::disallowed_methods, reason = "a stranger")]
fn stranger(to: SocketAddr) -> TcpStream {
    TcpStream::connect(to).expect("connected")
}

/// A server in another process. It accepts a connection, answers a message, and waits.
#[test]
fn server() {
    if role::order().as_deref() != Some("serve") {
        return;
    }
    let [there, _] = channels();
    let (_listening, to) = listener(&there, "127.0.0.1:0", 4);
    role::say(&to.to_string());
    let id = request(&there);
    let (qp, cq) = queue_pair(&id);
    let end = End { id, qp, cq };
    let sink = buffer(&end, 1 << 20);
    for wr_id in 0..4 {
        let sges = &[sink.sge(0, 1 << 20)];
        end.qp.post_recv(&RecvWr { wr_id, sges }).expect("posted");
    }
    end.id.accept(&ConnParams::default()).expect("accepted");
    assert_eq!(completion(&end).1, WcStatus::Success);
    role::say(&format!("{} channel", mapped()));
    while let Some(line) = role::hear() {
        if line == "send" {
            post(&end, 9, SendOp::Send { imm: None }, &sink, 300_000);
            assert_eq!(completion(&end).1, WcStatus::Success);
            role::say("sent");
        }
    }
}

/// Returns an end that is connected to a server in another process.
fn connect_to_server(here: &ferroce_rdmacm::EventChannel, server: &mut role::Actor) -> End {
    let to = server.hear().parse().expect("an address");
    let (id, qp, cq) = connect(here, to);
    let end = End { id, qp, cq };
    assert!(matches!(next(here).kind, EventKind::Established(Some(_))));
    let source = buffer(&end, 5000);
    post(&end, 1, SendOp::Send { imm: None }, &source, 5000);
    assert_eq!(completion(&end).1, WcStatus::Success);
    assert_eq!(server.hear(), "1 channel");
    assert_eq!(mapped(), 1);
    end
}

/// The last bytes of a process that is killed are received before its end is seen.
#[test]
fn killed_peer_is_noticed_after_its_last_bytes() {
    let name = "memory::killed_peer_is_noticed_after_its_last_bytes";
    on_siw(name, |_| {
        let [here, _] = channels();
        let mut server = role::start("memory::server", "serve", None);
        let end = connect_to_server(&here, &mut server);
        let sink = buffer(&end, 300_000);
        let sges = &[sink.sge(0, 300_000)];
        end.qp
            .post_recv(&RecvWr { wr_id: 5, sges })
            .expect("posted");
        assert_eq!(server.ask("send"), "sent");
        server.kill();
        assert_eq!(completion(&end), (5, WcStatus::Success, 300_000));
        let ended = next(&here).kind;
        assert!(
            matches!(ended, EventKind::Disconnected { errno: 0 }),
            "{ended:?}"
        );
        deadline::until("no channel is left", || mapped() == 0);
    });
}

/// A ring that is full stops a sender, which goes on when the peer reads.
#[test]
fn stopped_peer_stops_a_sender_until_it_continues() {
    let name = "memory::stopped_peer_stops_a_sender_until_it_continues";
    on_siw(name, |_| {
        const LENGTH: usize = 1 << 20;
        let [here, _] = channels();
        let mut server = role::start("memory::server", "serve", None);
        let end = connect_to_server(&here, &mut server);
        server.signal(rustix::process::Signal::STOP);
        let source = buffer(&end, LENGTH);
        for wr_id in 0..2 {
            post(&end, wr_id, SendOp::Send { imm: None }, &source, LENGTH);
        }
        // The ring has less than one message.
        let mut completed = 0;
        end.cq.poll(1, |_| completed += 1);
        assert_eq!(completed, 0);
        assert!(end.qp.undelivered() > LENGTH / 4, "the ring is full");
        server.signal(rustix::process::Signal::CONT);
        for wr_id in 0..2 {
            let (sent, status, _) = completion(&end);
            assert_eq!((sent, status), (wr_id, WcStatus::Success));
        }
        deadline::until("the peer has read all", || end.qp.undelivered() == 0);
    });
}
