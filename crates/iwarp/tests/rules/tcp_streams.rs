//! Reads the TCP streams of captures.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;

use pcap_file::pcap::PcapReader;

/// A direction of a TCP connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    /// The bytes, in order.
    pub(crate) bytes: Vec<u8>,
    /// Lengths of the TCP segments that carried them.
    pub(crate) segments: Vec<usize>,
}

/// Returns the connections of a capture: the streams of client and server.
pub(crate) fn connections(name: &str) -> Vec<(Stream, Stream)> {
    let mut streams: BTreeMap<(u16, u16), Stream> = BTreeMap::new();
    let mut order = Vec::new();
    let mut next_sequence: BTreeMap<(u16, u16), u32> = BTreeMap::new();
    for ip in ip_packets(name) {
        let Some(tcp) = tcp_segment(&ip) else {
            continue;
        };
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let (from, to) = (port(0), port(2));
        let sequence = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
        let flags = tcp[13];
        let data = &tcp[usize::from(tcp[12] >> 4) * 4..];
        let syn = flags & 2 != 0;
        if syn && flags & 16 == 0 {
            order.push((from, to));
        }
        if syn {
            next_sequence.insert((from, to), sequence.wrapping_add(1));
        }
        let expected = next_sequence.get_mut(&(from, to)).expect("a SYN before");
        if !data.is_empty() && sequence == *expected {
            *expected = expected.wrapping_add(data.len() as u32);
            let stream = streams.entry((from, to)).or_default();
            stream.bytes.extend(data);
            stream.segments.push(data.len());
        }
    }
    let take = |key: (u16, u16)| streams.get(&key).cloned().unwrap_or_default();
    order
        .into_iter()
        .map(|(client, server)| (take((client, server)), take((server, client))))
        .collect()
}

/// Returns the TCP segment of an IP packet.
fn tcp_segment(ip: &[u8]) -> Option<&[u8]> {
    let length = |at: usize| usize::from(u16::from_be_bytes([ip[at], ip[at + 1]]));
    let (protocol, start, end) = match ip[0] >> 4 {
        4 => (ip[9], usize::from(ip[0] & 15) * 4, length(2)),
        _ => (ip[6], 40, 40 + length(4)),
    };
    (protocol == 6).then(|| &ip[start..end])
}

/// Returns the IP packets of a capture, without Ethernet header.
fn ip_packets(name: &str) -> Vec<Vec<u8>> {
    // The captures of iWARP lie with the others, which crate `wire` reads.
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/tests/data/captures");
    let path: PathBuf = [folder, name].iter().collect();
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
