//! Sockets on an iWARP link, whose peer is a TCP socket of the test.

#![allow(clippy::disallowed_methods)] // both ends of a connection run in threads

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use ferroce_rsocket::{AddressFamily, SendFlags, Stream};
use ferroce_testnet::isolated;

#[path = "../../abi/tests/common/ferroced.rs"]
#[allow(dead_code)] // not all of its functions are needed here
mod ferroced;

/// Bytes of the stream: more than the peer's receive buffer takes, and less than the send buffer.
const LENGTH: usize = 100 << 10;
/// Bytes that the peer's socket receives before it is read; the kernel doubles it.
const RECEIVE_BUFFER: usize = 4 << 10;
/// The buffers of the rsocket. Half of the receive buffer is published at a time.
const RSOCKET_BUFFER: u32 = 1 << 18;

/// Bytes of an MPA frame without private data.
const MPA: usize = 20;
/// An FPDU with a WRITE of no bytes.
const EMPTY_WRITE: [u8; 20] = [
    0, 14, 0xc1, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];
/// Bytes of an FPDU with a SEND, in front of its payload and behind its padding.
const SEND_HEADER: usize = 20;
const CRC: usize = 4;
/// Opcode of a SEND, in the fourth byte of an FPDU.
const SEND: u8 = 3;
/// Messages of an rsocket: their kind, bytes of the stream, and the end of both directions.
const KIND: u32 = 7 << 29;
const DATA: u32 = 0;
const DISCONNECT: u32 = 7 << 29;

fn on_siw(name: &str, body: impl FnOnce()) {
    isolated(name, || {
        let _ferroced = ferroced::Ferroced::start();
        ferroced::add_link_of("siw", "siw0", "lo");
        body();
    });
}

/// Accepts a connection, and answers its Request with the private data that it carries: the
/// peer publishes the same buffers as the rsocket.
fn accept(listener: &TcpListener) -> TcpStream {
    let (mut peer, _) = listener.accept().unwrap();
    let mut frame = [0; MPA];
    peer.read_exact(&mut frame).unwrap();
    let length = u16::from_be_bytes([frame[18], frame[19]]);
    let mut private_data = vec![0; length.into()];
    peer.read_exact(&mut private_data).unwrap();
    frame[..16].copy_from_slice(b"MPA ID Rep Frame");
    peer.write_all(&[&frame, &private_data[..]].concat())
        .unwrap();
    peer
}

/// Reads the rest of a stream slowly, and sends a message after each part: a socket that is
/// closed answers a message with a reset, and drops the bytes that it has not sent.
fn read_and_answer(peer: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut part = [0; 512];
    loop {
        // The other end may be closed.
        let _reset = peer.write(&EMPTY_WRITE);
        match peer.read(&mut part) {
            Ok(0) => return bytes,
            Ok(length) => bytes.extend(&part[..length]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return bytes,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns the number of bytes that the messages in a stream of FPDUs announce, and the last message.
/// The WRITE of the bytes precedes a message.
fn announced_and_last_message(mut stream: &[u8]) -> (usize, u32) {
    let (mut announced, mut last) = (0, 0);
    while let Some(length) = stream.first_chunk().map(|l| u16::from_be_bytes(*l)) {
        let whole = (usize::from(length) + 2).next_multiple_of(4) + CRC;
        let Some((fpdu, rest)) = stream.split_at_checked(whole) else {
            break;
        };
        if fpdu[3] & 0xf == SEND {
            last = u32::from_ne_bytes(*fpdu[SEND_HEADER..].first_chunk().unwrap());
            if last & KIND == DATA {
                announced += last as usize;
            }
        }
        stream = rest;
    }
    (announced, last)
}

#[test]
fn close_waits_until_tcp_has_delivered_the_stream() {
    on_siw("close_waits_until_tcp_has_delivered_the_stream", || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, RECEIVE_BUFFER).unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let (sent, is_sent) = std::sync::mpsc::channel();
            let closer = scope.spawn(move || {
                let stream = Arc::new(Stream::new(AddressFamily::INET).unwrap());
                for buffer in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
                    let size = RSOCKET_BUFFER.to_ne_bytes();
                    stream.set_option(libc::SOL_SOCKET, buffer, &size).unwrap();
                }
                stream.connect(&addr).unwrap();
                let bytes = vec![7; LENGTH];
                assert_eq!(stream.send(&bytes, SendFlags::empty()), Ok(LENGTH));
                sent.send(()).unwrap();
                // Its socket is closed with it.
                drop(stream);
            });
            let mut peer = accept(&listener);
            is_sent.recv().unwrap();
            let bytes = read_and_answer(&mut peer);
            closer.join().unwrap();
            assert_eq!(announced_and_last_message(&bytes), (LENGTH, DISCONNECT));
        });
    });
}
