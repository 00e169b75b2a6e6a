//! Shutdown, close and failures of streams.

use ferroce_testnet::role;
use libc::{POLLHUP, POLLIN};

use crate::common::{ferroced::end_with_parent, on_loopback};
use crate::socket::Socket;

#[test]
fn shutdown_ends_one_direction() {
    on_loopback("ends::shutdown_ends_one_direction", |_| {
        let (client, server) = Socket::pair();
        client.send(b"question", 0).unwrap();
        client.shutdown(libc::SHUT_WR).unwrap();
        assert_eq!(client.send(b"more", 0), Err(libc::EPIPE));
        assert_eq!(server.receive_all(8), b"question");
        assert_eq!(server.receive(&mut [0], 0), Ok(0));
        assert_eq!(server.poll(POLLIN, 5000), POLLIN);
        server.send(b"answer", 0).unwrap();
        server.shutdown(libc::SHUT_WR).unwrap();
        assert_eq!(client.receive_all(6), b"answer");
        assert_eq!(client.receive(&mut [0], 0), Ok(0));
    });
}

#[test]
fn close_delivers_sent_data() {
    on_loopback("ends::close_delivers_sent_data", |_| {
        let (client, server) = Socket::pair();
        let data = vec![5; 60_000];
        client.send(&data, 0).unwrap();
        client.close();
        assert_eq!(
            server.poll(POLLIN, 5000),
            POLLIN,
            "there is something to read"
        );
        assert_eq!(server.receive_all(60_000), data);
        assert_eq!(server.receive(&mut [0], 0), Ok(0));
        assert_eq!(server.poll(POLLIN, 5000) & POLLHUP, POLLHUP);
        assert_eq!(server.send(b"x", 0), Err(libc::ECONNRESET));
    });
}

#[test]
fn shutdown_wakes_a_waiting_receiver() {
    on_loopback("ends::shutdown_wakes_a_waiting_receiver", |_| {
        let (client, server) = Socket::pair();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| server.receive(&mut [0], 0));
            client.close();
            assert_eq!(waiting.join().unwrap(), Ok(0));
        });
    });
}

#[test]
fn death_of_the_peer_resets_the_connection() {
    on_loopback("ends::death_of_the_peer_resets_the_connection", |_| {
        let (listener, addr) = Socket::listener();
        let mut actor = role::start("ends::talker", &addr, None);
        let server = listener.accept().unwrap();
        assert_eq!(server.receive_all(5), b"hello");
        actor.kill();
        assert_eq!(server.receive(&mut [0], 0), Err(libc::ECONNRESET));
        assert_eq!(server.receive(&mut [0], 0), Ok(0));
    });
}

/// Not a test: a process that connects, sends a message, and waits to be killed.
#[test]
fn talker() {
    let Some(addr) = role::order() else {
        return;
    };
    end_with_parent();
    let socket = Socket::stream();
    socket.connect(&addr).unwrap();
    socket.send(b"hello", 0).unwrap();
    role::hear();
}

#[test]
fn unknown_domains_types_and_descriptors_are_refused() {
    use ferroce_abi::exports::*;
    on_loopback(
        "ends::unknown_domains_types_and_descriptors_are_refused",
        |_| {
            for fd in [-1, 0, 12345] {
                assert_eq!(rclose(fd), -1);
                assert_eq!(crate::common::errno(), libc::EBADF);
                assert_eq!(rlisten(fd, 1), -1);
            }
            assert_eq!(rsocket(libc::AF_UNIX, libc::SOCK_STREAM, 0), -1);
            assert_eq!(crate::common::errno(), libc::EAFNOSUPPORT);
            let socket = Socket::stream();
            assert_eq!(socket.send(b"x", 0), Err(libc::ENOTCONN));
            assert_eq!(socket.receive(&mut [0], 0), Err(libc::ENOTCONN));
            assert_eq!(socket.shutdown(libc::SHUT_WR), Err(libc::ENOTCONN));
            assert_eq!(socket.peer_port(), Err(libc::ENOTCONN));
        },
    );
}

/// The peer's reply comes through ferroced, which is stopped.
#[test]
fn connect_times_out_if_ferroced_is_stopped() {
    let name = "ends::connect_times_out_if_ferroced_is_stopped";
    on_loopback(name, |ferroced| {
        let (listener, addr) = Socket::listener();
        let caller = std::thread::spawn(move || {
            let client = Socket::stream();
            client.connect(&addr)
        });
        // The listener has the request and does not accept it.
        assert_eq!(listener.poll(POLLIN, 20_000), POLLIN);
        ferroced.stop();
        assert_eq!(caller.join().unwrap(), Err(libc::ETIMEDOUT));
        ferroced.go_on();
    });
}
