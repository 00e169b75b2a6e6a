//! Iomaps.

use ferroce_abi::exports::*;

use crate::common::{errno, on_loopback};
use crate::socket::Socket;

const LENGTH: usize = 300_000;

#[test]
fn peer_writes_to_mapped_memory_only() {
    on_loopback("iomaps::peer_writes_to_mapped_memory_only", |_| {
        let (listener, addr) = Socket::listener();
        listener.set(0x10000, RDMA_IOMAPSIZE, 4).unwrap();
        let client = Socket::stream();
        client.set(0x10000, RDMA_IOMAPSIZE, 4).unwrap();
        let (client, server) = Socket::pair_of(&listener, &addr, client);
        let mut memory = vec![0_u8; LENGTH];
        let place = memory.as_mut_ptr().cast();
        let bytes: Vec<u8> = (0..LENGTH).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        unsafe {
            assert_eq!(
                riomap(server.0, place, LENGTH, libc::PROT_WRITE, 0, 1000),
                1000
            );
            // The announcement is sent before the data, so the peer knows the iomap then.
            server.send(b"mapped", 0).unwrap();
            assert_eq!(client.receive_all(6), b"mapped");
            let from = bytes.as_ptr().cast();
            assert_eq!(riowrite(client.0, from, LENGTH, 1000, 0), LENGTH);
            client.send(b"written", 0).unwrap();
            assert_eq!(server.receive_all(7), b"written");
            assert_eq!(memory, bytes);
            assert_eq!(riowrite(client.0, from, 1, 999, 0), usize::MAX);
            assert_eq!(errno(), libc::EINVAL);
            assert_eq!(riounmap(server.0, place, LENGTH), 0);
            assert_eq!(riounmap(server.0, place, LENGTH), -1);
        }
    });
}

#[test]
fn mapping_needs_room_in_the_table_of_the_peer() {
    on_loopback(
        "iomaps::mapping_needs_room_in_the_table_of_the_peer",
        |_| {
            let (_client, server) = Socket::pair();
            let mut memory = vec![0_u8; 4096];
            let place = memory.as_mut_ptr().cast();
            unsafe {
                assert_eq!(riomap(server.0, place, 4096, libc::PROT_WRITE, 0, -1), -1);
                assert_eq!(errno(), libc::ENOMEM);
                // A mapping that the peer may not write to needs no room in its table.
                assert!(riomap(server.0, place, 4096, libc::PROT_NONE, 0, -1) > 0);
            }
        },
    );
}
