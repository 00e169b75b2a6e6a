//! Socket options.

use libc::{SO_KEEPALIVE, SO_RCVBUF, SO_REUSEADDR, SOL_SOCKET, TCP_NODELAY};

use crate::common::on_loopback;
use crate::socket::Socket;

#[test]
fn options_return_the_value_that_was_set() {
    on_loopback("options::options_return_the_value_that_was_set", |_| {
        let socket = Socket::stream();
        for (level, name, value) in [
            (SOL_SOCKET, SO_REUSEADDR, 1),
            (SOL_SOCKET, SO_KEEPALIVE, 1),
            (SOL_SOCKET, libc::SO_OOBINLINE, 1),
            (libc::IPPROTO_TCP, TCP_NODELAY, 1),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 3),
            (0x10000, 0, 500),
            (0x10000, 1, 500),
            (0x10000, 2, 100),
            (0x10000, 3, 128),
        ] {
            assert_eq!(socket.set(level, name, value), Ok(0), "{level} {name}");
            assert_eq!(socket.get(level, name), Ok(value), "{level} {name}");
        }
        socket.set(SOL_SOCKET, SO_RCVBUF, 1 << 19).unwrap();
        assert_eq!(socket.get(SOL_SOCKET, SO_RCVBUF), Ok(1 << 20));
        assert_eq!(socket.get(SOL_SOCKET, libc::SO_TYPE), Ok(libc::SOCK_STREAM));
        assert_eq!(socket.set(99, 1, 1), Err(libc::ENOTSUP));
    });
}

#[test]
fn keepalives_carry_no_data() {
    on_loopback("options::keepalives_carry_no_data", |_| {
        let (client, server) = Socket::pair();
        client.set(SOL_SOCKET, SO_KEEPALIVE, 1).unwrap();
        client
            .set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 1)
            .unwrap();
        assert_eq!(server.poll(libc::POLLIN, 2500), 0);
        client.send(b"here", 0).unwrap();
        assert_eq!(server.receive_all(4), b"here");
    });
}
