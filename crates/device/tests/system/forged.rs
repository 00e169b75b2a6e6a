//! Packets that other processes of this host forge: they can send from all its addresses.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use ferroce_control::find_daemon;
use ferroce_device::transport::{QpState, QpType};
use ferroce_testnet::deadline;
use ferroce_wire::{Bth, Flow, FlowIcrc, ICRC_LEN, Opcode, Operation, ROCE_PORT, Transport};

use crate::support::{LINK, V4, on_loopback, pair, pattern};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Returns the number of packets dropped because they are not from the peer.
fn wrong_peers() -> u64 {
    let mut ferroced = find_daemon().expect("known").expect("ferroced runs");
    let counters = ferroced.counters(Some(LINK), false).expect("counted");
    let values = counters.iter().flat_map(|link| &link.values);
    let found = values.filter(|(name, _)| name == "rx_wrong_peer");
    found.map(|(_, value)| value).sum()
}

/// Sends a SEND without data that is valid except for its UDP source port.
fn forge(socket: &UdpSocket, qpn: u32, psn: u32) {
    let opcode = Opcode::new(Transport::Rc, Operation::SendOnly).expect("it exists");
    let mut packet = vec![0; Bth::LEN + ICRC_LEN];
    packet[0] = opcode.byte();
    packet[2..4].copy_from_slice(&[0xff, 0xff]);
    packet[4..8].copy_from_slice(&qpn.to_be_bytes());
    packet[8..12].copy_from_slice(&psn.to_be_bytes());
    let source_port = socket.local_addr().expect("bound").port();
    let flow = Flow {
        source: HERE,
        destination: HERE,
        source_port,
    };
    let (covered, icrc) = packet.split_at_mut(Bth::LEN);
    icrc.copy_from_slice(&FlowIcrc::new(&flow).compute(0, covered));
    socket.send_to(&packet, (HERE, ROCE_PORT)).expect("sent");
}

#[test]
#[allow(clippy::disallowed_methods)] // the forger's socket
fn packet_from_another_local_port_is_dropped() {
    let name = "forged::packet_from_another_local_port_is_dropped";
    on_loopback(name, |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        // Both ends have learned the port of their peer.
        ours.put(0, &pattern(1, 1000));
        ours.write(1, 0, 1000);
        ours.succeed(1);
        theirs.expect("write 1 1000", "done");
        let socket = UdpSocket::bind((HERE, 0)).expect("a port");
        let qp = ours.qp.query().expect("it exists");
        ours.receive(7, 0, 1000);
        forge(&socket, ours.qp.qpn(), qp.attr.rq_psn.value());
        deadline::until("the forged packet is dropped", || {
            // A poll receives the packets.
            ours.cq
                .poll(1, |wc| panic!("the forged packet was accepted: {wc:?}"));
            wrong_peers() == 1
        });
        theirs.expect("write 1 1000", "done");
        assert_eq!(ours.state(), QpState::Rts);
    });
}
