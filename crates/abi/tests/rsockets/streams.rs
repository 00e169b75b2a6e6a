//! Streams deliver all bytes in order.

use std::process::Command;
use std::thread;

use rustix::thread::UnshareFlags;

use crate::common::on_loopback;
use crate::socket::Socket;

/// A generator of reproducible pseudorandom numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a length: mostly short, sometimes much longer than the buffers.
    fn length(&mut self) -> usize {
        let bits = self.next() % 20;
        (self.next() % (1 << bits) + 1) as usize
    }
}

/// Returns the byte at an offset of a stream.
fn byte(seed: u64, at: usize) -> u8 {
    (at as u64).wrapping_mul(0x9e37_79b9).wrapping_add(seed) as u8 ^ (at >> 11) as u8
}

fn send_stream(socket: &Socket, seed: u64, total: usize) {
    let (mut numbers, mut at) = (Numbers(seed), 0);
    while at < total {
        let length = numbers.length().min(total - at);
        let bytes: Vec<u8> = (at..at + length).map(|at| byte(seed, at)).collect();
        assert_eq!(socket.send(&bytes, 0), Ok(length));
        at += length;
    }
}

fn receive_stream(socket: &Socket, seed: u64, total: usize) {
    let (mut numbers, mut at) = (Numbers(seed + 99), 0);
    let mut bytes = vec![0; 1 << 20];
    while at < total {
        let length = numbers.length();
        let got = socket.receive(&mut bytes[..length], 0).unwrap();
        assert!(got > 0 && got <= length, "the stream ended at {at}");
        for (place, found) in bytes[..got].iter().enumerate() {
            assert_eq!(*found, byte(seed, at + place), "at {}", at + place);
        }
        at += got;
    }
    assert_eq!(at, total);
}

/// Lets a call that waits sleep until it is woken: a missed wakeup hangs the test. By
/// default a call checks its socket every 5 seconds.
fn never_check_again() {
    // SAFETY: only this thread, and those it starts, see another /etc.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
    for arguments in ["--make-rprivate /", "-t tmpfs tmpfs /etc"] {
        let done = Command::new("mount")
            .args(arguments.split(' '))
            .status()
            .unwrap();
        assert!(done.success(), "mount {arguments}");
    }
    std::fs::create_dir_all("/etc/rdma/rsocket").unwrap();
    std::fs::write("/etc/rdma/rsocket/wake_up_interval", "3600000").unwrap();
}

#[test]
fn hundred_megabytes_in_both_directions_arrive_in_order() {
    on_loopback(
        "streams::hundred_megabytes_in_both_directions_arrive_in_order",
        |_| {
            const TOTAL: usize = 100 << 20;
            let (client, server) = Socket::pair();
            thread::scope(|scope| {
                scope.spawn(|| send_stream(&client, 1, TOTAL));
                scope.spawn(|| send_stream(&server, 2, TOTAL));
                scope.spawn(|| receive_stream(&client, 2, TOTAL));
                scope.spawn(|| receive_stream(&server, 1, TOTAL));
            });
        },
    );
}

#[test]
fn smallest_queues_and_buffers_carry_streams() {
    on_loopback("streams::smallest_queues_and_buffers_carry_streams", |_| {
        never_check_again();
        let (listener, addr) = Socket::listener();
        listener.set(0x10000, 0, 16).unwrap();
        listener.set(0x10000, 1, 16).unwrap();
        for name in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
            listener.set(libc::SOL_SOCKET, name, 1).unwrap();
        }
        let client = Socket::stream();
        client.set(0x10000, 2, 0).unwrap();
        let (client, server) = Socket::pair_of(&listener, &addr, client);
        thread::scope(|scope| {
            scope.spawn(|| send_stream(&client, 1, 5 << 20));
            scope.spawn(|| send_stream(&server, 2, 5 << 20));
            scope.spawn(|| receive_stream(&client, 2, 5 << 20));
            scope.spawn(|| receive_stream(&server, 1, 5 << 20));
        });
    });
}

#[test]
fn vectored_io_works_over_ipv6() {
    on_loopback("streams::vectored_io_works_over_ipv6", |_| {
        let listener = Socket::new(libc::AF_INET6, libc::SOCK_STREAM);
        listener.bind("[::1]:0").unwrap();
        assert_eq!(ferroce_abi::exports::rlisten(listener.0, 1), 0);
        let addr = format!("[::1]:{}", listener.port());
        let client = Socket::new(libc::AF_INET6, libc::SOCK_STREAM);
        let (client, server) = Socket::pair_of(&listener, &addr, client);
        assert_eq!(client.peer_port(), Ok(listener.port()));
        assert_eq!(server.peer_port(), Ok(client.port()));
        let mut parts = [*b"hello", *b" worl"].map(|part| part.to_vec());
        let vectors = parts.each_mut().map(|part| libc::iovec {
            iov_base: part.as_mut_ptr().cast(),
            iov_len: part.len(),
        });
        let sent = unsafe { ferroce_abi::exports::rwritev(client.0, vectors.as_ptr(), 2) };
        assert_eq!(sent, 10);
        let mut peeked = [0; 4];
        assert_eq!(server.receive(&mut peeked, libc::MSG_PEEK), Ok(4));
        assert_eq!(&peeked, b"hell");
        assert_eq!(server.receive_all(10), b"hello worl");
    });
}
