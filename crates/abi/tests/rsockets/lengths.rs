//! Lengths that no memory has, and buffers that overlap.

use core::ptr;

use ferroce_abi::exports::*;
use libc::iovec;

use ferroce_testnet::{isolated, netdev};

use crate::common::{Ferroced, LINK, errno, ferroced, on_loopback, zeros};
use crate::socket::Socket;

fn part(bytes: &mut [u8], length: usize) -> iovec {
    iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: length,
    }
}

#[track_caller]
fn refused(returned: isize, why: i32) {
    let errno = errno();
    assert_eq!((returned, errno), (-1, why));
}

#[test]
fn impossible_lengths_are_refused() {
    on_loopback("lengths::impossible_lengths_are_refused", |_| unsafe {
        let (client, _server) = Socket::pair();
        let mut byte = [7];
        for length in [usize::MAX, isize::MAX as usize + 1] {
            let mut parts = [part(&mut byte, length)];
            refused(rwritev(client.0, parts.as_ptr(), 1), libc::EINVAL);
            refused(rreadv(client.0, parts.as_ptr(), 1), libc::EINVAL);
            let mut message: libc::msghdr = zeros();
            message.msg_iov = parts.as_mut_ptr();
            message.msg_iovlen = 1;
            refused(rsendmsg(client.0, &message, 0), libc::EINVAL);
            refused(rrecvmsg(client.0, &mut message, 0), libc::EINVAL);
            let written = riowrite(client.0, byte.as_ptr().cast(), length, 0, 0);
            refused(written.cast_signed(), libc::EFAULT);
        }
        refused(rreadv(client.0, ptr::null(), 1), libc::EFAULT);
        refused(rreadv(client.0, ptr::null(), -1), libc::EINVAL);
        refused(rpoll(ptr::null_mut(), u64::MAX, 0) as isize, libc::EINVAL);
    });
}

#[test]
fn datagram_that_is_too_long_is_refused() {
    on_loopback(
        "lengths::datagram_that_is_too_long_is_refused",
        |_| unsafe {
            let receiver = Socket::new(libc::AF_INET, libc::SOCK_DGRAM);
            receiver.bind("127.0.0.1:0").unwrap();
            let sender = Socket::new(libc::AF_INET, libc::SOCK_DGRAM);
            sender
                .connect(&format!("127.0.0.1:{}", receiver.port()))
                .unwrap();
            // The kernel refuses the length before it reads the bytes.
            let parts = [part(&mut [], 0), part(&mut [7], 0x7000_0000)];
            refused(rwritev(sender.0, parts.as_ptr(), 2), libc::EMSGSIZE);
        },
    );
}

#[test]
fn overlapping_buffers_are_filled_one_after_another() {
    let name = "lengths::overlapping_buffers_are_filled_one_after_another";
    on_loopback(name, |_| unsafe {
        let (client, server) = Socket::pair();
        client.send(b"abcdef", 0).unwrap();
        let mut peeked = [0; 6];
        let all = libc::MSG_PEEK | libc::MSG_WAITALL;
        assert_eq!(server.receive(&mut peeked, all), Ok(6));
        let mut bytes = [0; 4];
        let first = part(&mut bytes, 4);
        let second = iovec {
            iov_len: 2,
            ..first
        };
        let received = rreadv(server.0, [first, second].as_ptr(), 2);
        assert_eq!((received, &bytes), (6, b"efcd"));
    });
}

/// Posted, the datagram would put the queue pair into the error state, and nothing would arrive any
/// more.
#[test]
fn datagram_longer_than_the_mtu_is_refused_and_the_socket_stays_usable() {
    let name = "lengths::datagram_longer_than_the_mtu_is_refused_and_the_socket_stays_usable";
    isolated(name, || {
        netdev::set_mtu("lo", 1500);
        let _ferroced = Ferroced::start();
        ferroced::add_link(LINK, "lo");
        let receiver = Socket::new(libc::AF_INET, libc::SOCK_DGRAM);
        receiver.bind("127.0.0.1:0").unwrap();
        let addr = format!("127.0.0.1:{}", receiver.port());
        let sender = Socket::new(libc::AF_INET, libc::SOCK_DGRAM);
        // The port's MTU is 1024, and the header of an IPv4 address has 8 bytes.
        const LONGEST: usize = 1024 - 8;
        let exchange = |bytes: &[u8]| {
            assert_eq!(sender.send_to(bytes, &addr), Ok(bytes.len()));
            let (got, port) = receiver.receive_from(0).unwrap();
            assert_eq!(got, bytes);
            let back = format!("127.0.0.1:{port}");
            assert_eq!(receiver.send_to(bytes, &back), Ok(bytes.len()));
            assert_eq!(sender.receive_from(0).unwrap().0, bytes);
        };
        // The first datagrams use UDP, later ones the queue pairs.
        for _ in 0..5 {
            exchange(&[1; LONGEST]);
            let refused = sender.send_to(&[2; LONGEST + 1], &addr);
            assert_eq!(refused, Err(libc::EMSGSIZE));
            exchange(&[3; 100]);
        }
    });
}
