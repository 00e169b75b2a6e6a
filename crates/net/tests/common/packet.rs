//! Packets and paths for tests.

use std::net::IpAddr;

use ferroce_roce::Path;
use ferroce_wire::{Flow, icrc};

/// Returns a path from one address to another.
pub(crate) fn path(source: &str, destination: &str, source_port: u16) -> Path {
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let flow = Flow {
        source: ip(source),
        destination: ip(destination),
        source_port,
    };
    Path::new(flow, 0, 64)
}

/// Returns a packet of `len` bytes from BTH to ICRC, for identification `id`. `mark` tells
/// it from others.
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

/// Returns the packets of a run, for the identifications 0, 1, 2, ... if `numbered`. Each
/// has `len` bytes, the last one `last`.
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
