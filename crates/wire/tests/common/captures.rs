//! Reads the packets of the captures.

use std::fs::File;
use std::path::PathBuf;

use pcap_file::pcap::PcapReader;

/// Returns the IP packets of a capture in `tests/data/captures`, without Ethernet header.
pub(crate) fn ip_packets(name: &str) -> Vec<Vec<u8>> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/data/captures", name]
        .iter()
        .collect();
    let path = path.with_extension("pcap");
    let file = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut reader = PcapReader::new(file).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let frame = packet.unwrap().data;
        if let [0x08, 0x00] | [0x86, 0xdd] = frame[12..14] {
            packets.push(frame[14..].to_vec());
        }
    }
    packets
}
