//! A wrapper that drops packets works over a wire of real sockets.

#[path = "support/connection.rs"]
#[allow(dead_code)] // other tests use the rest
mod connection;
#[path = "support/drop_tenth.rs"]
mod drop_tenth;

use connection::write_arrives;
use drop_tenth::DropTenth;
use ferroce_net::{Receiver, Sender, UdpWire, create_slot};
use ferroce_testnet::isolated;

#[test]
fn write_arrives_complete_over_udp_without_every_tenth_packet() {
    isolated(
        "write_arrives_complete_over_udp_without_every_tenth_packet",
        || {
            let wires = [0, 1].map(|slot| {
                let sockets = create_slot(slot).expect("a slot");
                let receiver = Receiver::new(slot, sockets);
                DropTenth::new(UdpWire::new(receiver, Sender::new(), 1))
            });
            let addresses = ["127.0.0.1", "127.0.0.2"].map(|address| address.parse().unwrap());
            let ends = write_arrives(wires, addresses, |_, _| {});
            let received = ends[1].core.wire().received;
            assert!(
                received > 256,
                "{received} packets, more than the WRITE has"
            );
        },
    );
}
