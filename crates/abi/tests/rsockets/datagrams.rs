//! Datagram sockets: first over UDP, then between queue pairs.

use crate::common::on_loopback;
use crate::socket::Socket;

#[test]
fn datagrams_keep_their_boundaries() {
    on_loopback("datagrams::datagrams_keep_their_boundaries", |_| {
        let server = Socket::new(libc::AF_INET, libc::SOCK_DGRAM);
        server.bind("127.0.0.1:0").unwrap();
        let addr = format!("127.0.0.1:{}", server.port());
        let client = Socket::new(libc::AF_INET, libc::SOCK_DGRAM);
        std::thread::scope(|scope| {
            let echo = scope.spawn(|| {
                for _ in 0..200 {
                    let (bytes, port) = server.receive_from(0).unwrap();
                    let back = format!("127.0.0.1:{port}");
                    assert_eq!(server.send_to(&bytes, &back), Ok(bytes.len()));
                }
            });
            for number in 0..200_usize {
                let bytes = vec![number as u8; 1 + number * 10];
                assert_eq!(client.send_to(&bytes, &addr), Ok(bytes.len()));
                assert_eq!(client.poll(libc::POLLIN, 10_000), libc::POLLIN);
                let (back, port) = client.receive_from(0).unwrap();
                assert_eq!((back, port), (bytes, server.port()));
            }
            echo.join().unwrap();
        });
        assert_eq!(
            client.receive_from(libc::MSG_DONTWAIT).err(),
            Some(libc::EAGAIN)
        );
        assert_eq!(client.send_to(&[0; 9000], &addr), Err(libc::EMSGSIZE));
    });
}

#[test]
fn connected_datagram_socket_needs_no_address() {
    on_loopback(
        "datagrams::connected_datagram_socket_needs_no_address",
        |_| {
            let server = Socket::new(libc::AF_INET, libc::SOCK_DGRAM);
            server.bind("127.0.0.1:0").unwrap();
            let client = Socket::new(libc::AF_INET, libc::SOCK_DGRAM);
            assert_eq!(client.send(b"x", 0), Err(libc::EDESTADDRREQ));
            client
                .connect(&format!("127.0.0.1:{}", server.port()))
                .unwrap();
            assert_eq!(client.peer_port(), Ok(server.port()));
            for text in [b"one", b"two"] {
                assert_eq!(client.send(text, 0), Ok(3));
                assert_eq!(
                    server.receive_from(0).unwrap(),
                    (text.to_vec(), client.port())
                );
            }
        },
    );
}
