//! Packets to send, and ways to send them.

use std::net::IpAddr;

use ferroce_transport::Path;
use ferroce_wire::{Flow, icrc};

/// A way from one address to another.
pub(crate) fn path(source: &str, destination: &str, source_port: u16) -> Path {
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let flow = Flow {
        source: ip(source),
        destination: ip(destination),
        source_port,
    };
    Path::new(flow, 0, 64)
}

/// A packet of `len` bytes from BTH to ICRC, for identification `id`. `mark`
/// tells it from others.
pub(crate) fn packet(flow: &Flow, id: u16, qpn: u32, len: usize, mark: u8) -> Vec<u8> {
    assert!(len >= 16, "BTH and ICRC");
    let [_, q0, q1, q2] = qpn.to_be_bytes();
    // RC WRITE middle; P_Key 0xffff; PSN from the mark.
    let mut bytes = vec![0x07, 0, 0xff, 0xff, 0, q0, q1, q2, 0, 0, 0, mark];
    bytes.extend((bytes.len()..len - 4).map(|i| (i as u8).wrapping_mul(31) ^ mark));
    let crc = icrc::compute(flow, id, &bytes);
    bytes.extend_from_slice(&crc);
    bytes
}

/// Packets for a run, numbered from 0 if `numbered`: of `len` bytes but the last,
/// which has `last`.
pub(crate) fn run(
    flow: &Flow,
    numbered: bool,
    qpns: &[u32],
    len: usize,
    last: usize,
) -> Vec<Vec<u8>> {
    let count = qpns.len();
    qpns.iter()
        .enumerate()
        .map(|(i, qpn)| {
            let id = if numbered { i as u16 } else { 0 };
            let len = if i + 1 == count { last } else { len };
            packet(flow, id, *qpn, len, i as u8)
        })
        .collect()
}
