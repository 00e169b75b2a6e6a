//! Invalid packets, which must change nothing.

use std::net::{IpAddr, UdpSocket};

use ferroce_device::transport::QpType;
use ferroce_wire::{Flow, icrc};

use crate::support::{Endpoint, Introduction, Puppet, V4, V6, on_loopback, pair, pattern};

const MESSAGE: u32 = 100_000;
const ROUNDS: u32 = 20;
const PACKETS_EACH: u32 = 200;

/// A reproducible stream of random numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// Returns random bytes, or a packet that is almost valid.
fn junk(numbers: &mut Numbers, targets: &[Introduction], flow: &Flow) -> Vec<u8> {
    let length = numbers.below(1500) as usize;
    let mut packet = numbers.bytes(length);
    let target = &targets[numbers.below(targets.len() as u64) as usize];
    let qpn = match numbers.below(4) {
        0 => return packet,
        1 => numbers.next() as u32,
        2 => (target.qpn & 0xff_0000) | numbers.below(1 << 16) as u32,
        _ => target.qpn,
    };
    let header = [
        numbers.next() as u8,
        numbers.next() as u8 & 0xf0,
        0xff,
        0xff,
    ];
    let rest = [&header[..], &(qpn & 0xff_ffff).to_be_bytes()].concat();
    for (place, byte) in packet.iter_mut().zip(rest) {
        *place = byte;
    }
    // The ICRC is right, unless the packet would be valid for one of the queue pairs.
    if !targets.iter().any(|target| target.qpn == qpn & 0xff_ffff) {
        packet.extend(icrc::compute(flow, 0, &packet));
    }
    packet
}

fn storm(gid_index: u8, to: &str) {
    let (ours, mut theirs): (Endpoint, Puppet) = pair(QpType::Rc, gid_index);
    let targets = [ours.introduction(), theirs.introduction];
    let any = if gid_index == V6 {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    #[allow(
        clippy::disallowed_methods,
        reason = "the test is a peer without Ferroce"
    )]
    let socket = UdpSocket::bind(any).expect("a socket");
    let address: IpAddr = to.parse().expect("an address");
    let flow = Flow {
        source: address,
        destination: address,
        source_port: socket.local_addr().expect("bound").port(),
    };
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for seed in 0..ROUNDS {
        ours.put(0, &pattern(seed, MESSAGE));
        ours.write(u64::from(seed), 0, MESSAGE);
        ours.read(u64::from(seed), 1 << 20, MESSAGE);
        for _ in 0..PACKETS_EACH {
            // A full buffer holds enough packets.
            let _ = socket.send_to(&junk(&mut numbers, &targets, &flow), (address, 4791));
        }
        ours.succeed(2);
        theirs.expect(&format!("check {seed} 0 {MESSAGE}"), "right");
    }
    theirs.expect("state", "Rts");
}

#[test]
fn invalid_packets_over_ipv4_change_nothing() {
    on_loopback(
        "storm::invalid_packets_over_ipv4_change_nothing",
        |_ferroced| storm(V4, "127.0.0.1"),
    );
}

#[test]
fn invalid_packets_over_ipv6_change_nothing() {
    on_loopback(
        "storm::invalid_packets_over_ipv6_change_nothing",
        |_ferroced| storm(V6, "::1"),
    );
}
