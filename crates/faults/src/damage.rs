//! Changes of packets: inverted bits, and NAKs in place of ACKs.

use ferroce_wire::{Aeth, Bth, Flow, ICRC_LEN, Opcode, Operation, Packet, icrc};

use crate::fate::Damage;
use crate::plan::Answer;
use crate::random::below;

/// Inverts one bit of a packet. Detected damage is anywhere but in the byte that the ICRC does
/// not cover. Undetected damage is in the payload, and the ICRC for the identification `ip_id`
/// fits it; a packet without payload stays as it is. Returns true if the packet was changed.
pub fn damage(packet: &mut [u8], flow: &Flow, ip_id: u16, damage: Damage) -> bool {
    if !damage.undetected {
        // Byte 4 of the BTH has ECN bits and reserved ones: routers may change it.
        let places = packet.len().saturating_sub(1) as u64 * 8;
        if places == 0 {
            return false;
        }
        let bit = below(damage.place, places) as usize;
        let byte = if bit / 8 >= 4 { bit / 8 + 1 } else { bit / 8 };
        packet[byte] ^= 1 << (bit % 8);
        return true;
    }
    let Ok(parsed) = Packet::parse(packet) else {
        return false;
    };
    let (header, length) = (parsed.opcode().header_len(), parsed.payload().len());
    if length == 0 {
        return false;
    }
    let bit = below(damage.place, length as u64 * 8) as usize;
    packet[header + bit / 8] ^= 1 << (bit % 8);
    let (body, trailer) = packet.split_at_mut(packet.len() - ICRC_LEN);
    trailer.copy_from_slice(&icrc::compute(flow, ip_id, body));
    true
}

/// Returns the packet with which a responder answers in place of `packet`, an ACK or a response
/// with an AETH. Returns none for other packets.
pub fn answer_instead(packet: &[u8], flow: &Flow, ip_id: u16, answer: Answer) -> Option<Vec<u8>> {
    let parsed = Packet::parse(packet).ok()?;
    let aeth = parsed.aeth()?;
    let opcode = Opcode::new(parsed.opcode().transport(), Operation::Acknowledge)?;
    let mut bytes = vec![0; Bth::LEN + Aeth::LEN];
    bytes[..Bth::LEN].copy_from_slice(packet.get(..Bth::LEN)?);
    bytes[0] = opcode.byte();
    // No pad bytes: an acknowledgement has no payload.
    bytes[1] &= !0x30;
    let syndrome = answer.syndrome();
    Aeth { syndrome, ..aeth }.emit(&mut bytes[Bth::LEN..]);
    let trailer = icrc::compute(flow, ip_id, &bytes);
    bytes.extend_from_slice(&trailer);
    Some(bytes)
}
