//! Questions about a packet that its opcode byte answers, without parsing it.

use crate::{Aeth, Bth, ICRC_LEN, Opcode, Operation, Transport};

/// Bytes of an acknowledgement or NAK, ICRC included.
pub const ACKNOWLEDGE_LEN: usize = Bth::LEN + Aeth::LEN + ICRC_LEN;

const RC_ACKNOWLEDGE: u8 = Opcode::new(Transport::Rc, Operation::Acknowledge)
    .unwrap()
    .byte();

/// Returns true for a packet of UC or UD, which no peer acknowledges.
#[inline]
pub fn is_unreliable(packet: &[u8]) -> bool {
    const UC: u8 = Transport::Uc as u8;
    const UD: u8 = Transport::Ud as u8;
    matches!(packet.first().map(|opcode| opcode >> 5), Some(UC | UD))
}

/// Returns true for a packet of UD.
#[inline]
pub fn is_datagram(packet: &[u8]) -> bool {
    packet.first().map(|opcode| opcode >> 5) == Some(Transport::Ud as u8)
}

/// Returns the packet if it is an acknowledgement or NAK of RC.
#[inline]
pub fn rc_acknowledge(packet: &[u8]) -> Option<[u8; ACKNOWLEDGE_LEN]> {
    let bytes = <[u8; ACKNOWLEDGE_LEN]>::try_from(packet).ok()?;
    (bytes[0] == RC_ACKNOWLEDGE).then_some(bytes)
}

/// Returns true for the last packet of an RC message that completes a receive.
#[inline]
pub fn completes_rc_receive(packet: &[u8]) -> bool {
    let opcode = packet.first().and_then(|&byte| Opcode::from_byte(byte));
    opcode.is_some_and(|opcode| {
        opcode.transport() == Transport::Rc
            && opcode.ends_message()
            && (opcode.is_send() || opcode.has_immediate())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_uc_and_ud_are_unreliable() {
        for (opcode, unreliable) in [(0x04, false), (0x24, true), (0x64, true), (0xa4, false)] {
            assert_eq!(is_unreliable(&[opcode, 0]), unreliable, "{opcode:#x}");
        }
        assert!(!is_unreliable(&[]));
    }

    #[test]
    fn rc_acknowledge_has_one_opcode_and_one_length() {
        let mut packet = [0; ACKNOWLEDGE_LEN];
        packet[0] = RC_ACKNOWLEDGE;
        assert_eq!(rc_acknowledge(&packet), Some(packet));
        assert_eq!(rc_acknowledge(&packet[1..]), None);
        assert_eq!(rc_acknowledge(&[7; ACKNOWLEDGE_LEN]), None);
    }

    #[test]
    fn rc_messages_that_complete_a_receive_end_with_these_opcodes() {
        let completes = |opcode: &u8| completes_rc_receive(&[*opcode]);
        let opcodes = (0..=u8::MAX).filter(completes);
        assert!(opcodes.eq([2, 3, 4, 5, 9, 11, 22, 23]));
        assert!(!completes_rc_receive(&[]));
    }
}
