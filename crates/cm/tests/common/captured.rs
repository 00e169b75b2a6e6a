//! Reads the MADs of the captures.

use std::fs::File;
use std::net::IpAddr;
use std::path::PathBuf;

use ferroce_wire::ip::Frame;
use ferroce_wire::{Packet, ParseError};
use pcap_file::pcap::PcapReader;

/// A captured MAD.
pub(crate) struct Captured {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) bytes: Vec<u8>,
}

/// Returns all datagrams to queue pair 1 of a capture, in order.
pub(crate) fn mads(name: &str) -> Vec<Captured> {
    let path: PathBuf = [
        env!("CARGO_MANIFEST_DIR"),
        "../wire/tests/data/captures",
        name,
    ]
    .iter()
    .collect();
    let path = path.with_extension("pcap");
    let file = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut reader = PcapReader::new(file).unwrap();
    let mut found = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let frame = packet.unwrap().data;
        found.extend(Frame::parse(&frame[14..]).ok().and_then(mad));
    }
    found
}

fn mad(frame: Frame<'_>) -> Option<Captured> {
    let packet: Result<Packet<'_>, ParseError> = Packet::parse(frame.udp_payload);
    let packet = packet.expect("captures hold packets");
    (packet.dest_qpn() == 1).then(|| Captured {
        source: frame.flow.source,
        destination: frame.flow.destination,
        bytes: packet.payload().to_vec(),
    })
}
