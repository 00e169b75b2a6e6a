//! Decodes a packet into values and encodes them again.

use ferroce_wire::{HeaderBuf, Packet};

/// Returns the packet encoded from the values that its accessors return. The ICRC and the
/// pad bytes are copied, because pad bytes have no accessor.
pub(crate) fn reencode(packet: &Packet<'_>) -> Vec<u8> {
    let mut header = HeaderBuf::new(&packet.bth());
    macro_rules! push {
        ($($name:ident)*) => {
            $(if let Some(value) = packet.$name() {
                header.$name(&value);
            })*
        };
    }
    push!(rdeth deth xrceth feth reth atomic_eth aeth atomic_ack immediate ieth);
    let bytes = packet.bytes();
    let trailer = &bytes[bytes.len() - 4 - packet.pad()..];
    let mut out = header.finish().as_bytes().to_vec();
    out.extend_from_slice(packet.payload());
    out.extend_from_slice(&trailer[..packet.pad()]);
    out.extend_from_slice(&packet.icrc().to_le_bytes());
    out
}

/// Returns the bytes of the packet with all reserved bits zero, as [`reencode`] writes them.
pub(crate) fn without_reserved_bits(packet: &Packet<'_>) -> Vec<u8> {
    let opcode = packet.opcode();
    let mut bytes = packet.bytes().to_vec();
    bytes[4] &= 0xc0;
    bytes[8] &= 0x80;
    let mut at = 12;
    if opcode.has_rdeth() {
        bytes[at] = 0;
        at += 4;
    }
    if opcode.has_deth() {
        bytes[at + 4] = 0;
        at += 8;
    }
    if opcode.has_xrceth() {
        bytes[at] = 0;
        at += 4;
    }
    if opcode.has_feth() {
        bytes[at..at + 3].fill(0);
        bytes[at + 3] &= 0x3f;
    }
    bytes
}
