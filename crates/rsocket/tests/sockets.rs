//! Sockets through the Rust API, under a real ferroced.

#![allow(clippy::disallowed_methods)] // both ends of a connection run in threads

use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use ferroce_rsocket::{
    AddressFamily, Datagram, Errno, RecvFlags, SendFlags, Socket, Stream, poll, socket,
};
use ferroce_testnet::isolated;

#[path = "../../abi/tests/common/ferroced.rs"]
#[allow(dead_code)] // not all of its functions are needed here
mod ferroced;

fn on_loopback(name: &str, body: impl FnOnce()) {
    isolated(name, || {
        let _ferroced = ferroced::Ferroced::start();
        ferroced::add_link("rxe0", "lo");
        body();
    });
}

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

#[test]
fn stream_echoes_until_it_is_shut_down() {
    on_loopback("stream_echoes_until_it_is_shut_down", || {
        let listener = Stream::new(AddressFamily::INET).unwrap();
        listener.bind(&any()).unwrap();
        listener.listen(1).unwrap();
        let addr = listener.local_addr();
        let message: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                let stream = listener.accept().unwrap();
                let mut bytes = vec![0; 1 << 20];
                let received = stream.receive(&mut bytes, RecvFlags::WAITALL).unwrap();
                stream.send(&bytes[..received], SendFlags::empty()).unwrap();
                assert_eq!(stream.receive(&mut bytes, RecvFlags::empty()), Ok(0));
                // It stays open: the client would see a reset instead of its own shutdown.
                stream
            });
            let stream = Stream::new(AddressFamily::INET).unwrap();
            stream.connect(&addr).unwrap();
            assert_eq!(stream.peer_addr(), Some(addr));
            assert_eq!(stream.send(&message, SendFlags::empty()), Ok(1 << 20));
            let mut bytes = vec![0; 1 << 20];
            assert_eq!(stream.receive(&mut bytes, RecvFlags::WAITALL), Ok(1 << 20));
            assert_eq!(bytes, message);
            stream.shutdown(Shutdown::Write).unwrap();
            let sent = stream.send(b"x", SendFlags::empty());
            assert_eq!(sent, Err(Errno::PIPE));
            drop(server.join().unwrap());
        });
    });
}

#[test]
fn poll_reports_a_datagram() {
    on_loopback("poll_reports_a_datagram", || {
        let receiver = Arc::new(Datagram::new(AddressFamily::INET).unwrap());
        receiver.bind(&any()).unwrap();
        let fd = socket::insert(Socket::Datagram(Arc::clone(&receiver)));
        assert_eq!(fd, receiver.as_raw_fd());
        let sender = Datagram::new(AddressFamily::INET).unwrap();
        // The first goes over UDP, later ones between queue pairs.
        for text in [&b"one"[..], b"two", b"three"] {
            let to = receiver.local_addr();
            assert_eq!(sender.send(text, to, SendFlags::empty()), Ok(text.len()));
            let mut fds = [libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            }];
            assert_eq!(poll(&mut fds, None), Ok(1));
            let received = receiver.receive(RecvFlags::DONTWAIT, |from, bytes| {
                assert_eq!(
                    Some(from.port()),
                    sender.local_addr().map(|addr| addr.port())
                );
                assert_eq!(bytes, text);
                bytes.len()
            });
            assert_eq!(received, Ok(text.len()));
        }
        drop(socket::remove(fd));
    });
}
