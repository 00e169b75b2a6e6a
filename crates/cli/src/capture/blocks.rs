//! Blocks of pcapng files: a section header, interfaces, packets.
//!
//! Written here: `pcap-file` 2 depends on second versions of syn and thiserror, which deny.toml does
//! not allow, and `pcap-file` 3 is a release candidate (3.0.0-rc.3) for Rust 1.93, newer than the
//! `rust-version` of this workspace. Tests read the files with `pcap-file` 2 and with tshark.

use std::io::{self, Write};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const ETHERNET: u16 = 1;

/// Numbers of options.
const COMMENT: u16 = 1;
const USER_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_DESCRIPTION: u16 = 3;
const TIME_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;

/// Timestamps count units of 10^-9 s.
const NANOSECONDS: u8 = 9;

/// A packet.
#[derive(Debug)]
pub(crate) struct PacketBlock<'a> {
    /// Number of the interface.
    pub(crate) interface: u32,
    /// Nanoseconds since 1970.
    pub(crate) time_ns: u64,
    /// The captured bytes.
    pub(crate) bytes: &'a [u8],
    /// Bytes of the whole packet.
    pub(crate) length: u32,
    /// The direction: 1 received, 2 sent.
    pub(crate) flags: u32,
    /// Comments.
    pub(crate) comments: &'a [String],
}

/// Begins a file.
pub(crate) fn section_header(file: &mut impl Write, application: &str) -> io::Result<()> {
    let mut body = Vec::new();
    body.extend(BYTE_ORDER_MAGIC.to_le_bytes());
    // Version 1.0, and a section of unknown length.
    body.extend([1, 0, 0, 0]);
    body.extend((-1i64).to_le_bytes());
    option(&mut body, USER_APPLICATION, application.as_bytes());
    block(file, SECTION_HEADER, body)
}

/// Describes an Ethernet interface, which gets the next number.
pub(crate) fn interface(
    file: &mut impl Write,
    snap: u32,
    name: &str,
    description: &str,
) -> io::Result<()> {
    let mut body = Vec::new();
    body.extend(ETHERNET.to_le_bytes());
    body.extend([0, 0]);
    body.extend(snap.to_le_bytes());
    option(&mut body, INTERFACE_NAME, name.as_bytes());
    option(&mut body, INTERFACE_DESCRIPTION, description.as_bytes());
    option(&mut body, TIME_RESOLUTION, &[NANOSECONDS]);
    block(file, INTERFACE, body)
}

/// Writes a packet.
pub(crate) fn packet(file: &mut impl Write, packet: &PacketBlock<'_>) -> io::Result<()> {
    let mut body = Vec::with_capacity(packet.bytes.len() + 64);
    body.extend(packet.interface.to_le_bytes());
    body.extend(((packet.time_ns >> 32) as u32).to_le_bytes());
    body.extend((packet.time_ns as u32).to_le_bytes());
    body.extend((packet.bytes.len() as u32).to_le_bytes());
    body.extend(packet.length.to_le_bytes());
    body.extend(packet.bytes);
    pad(&mut body);
    option(&mut body, PACKET_FLAGS, &packet.flags.to_le_bytes());
    for comment in packet.comments {
        option(&mut body, COMMENT, comment.as_bytes());
    }
    block(file, ENHANCED_PACKET, body)
}

/// Adds an option. The length of an option has 16 bits: a longer value is cut.
fn option(body: &mut Vec<u8>, number: u16, value: &[u8]) {
    let value = &value[..value.len().min(0xfffc)];
    body.extend(number.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    pad(body);
}

/// Fills up to a multiple of 4 bytes. Every body begins at one.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Writes a block: its length stands at both ends. Ends the list of options.
fn block(file: &mut impl Write, kind: u32, mut body: Vec<u8>) -> io::Result<()> {
    body.extend([0; 4]);
    let length = (body.len() as u32 + 12).to_le_bytes();
    file.write_all(&kind.to_le_bytes())?;
    file.write_all(&length)?;
    file.write_all(&body)?;
    file.write_all(&length)
}
