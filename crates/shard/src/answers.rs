//! ACKs behind answers.
//!
//! On adapters a request completes before the answer to it: the responder acknowledges a message before its
//! program sees that message. Programs depend on this order. libiscsi crashes, librpma gives up, and DiSNI waits
//! for ever if a receive completes before the send that it answers.
//!
//! An ACK of its own would cost a system call, so the engine sends it behind the answers, in the same run. The
//! receiver processes it first, if its program sees the order of both completions: if they share a
//! completion queue or a completion channel.

use ferroce_roce::Datagram;
use ferroce_wire::{ACKNOWLEDGE_LEN, completes_rc_receive, rc_acknowledge};

/// Returns the ACK behind the messages at the front of a run, if all of them complete receives, and the
/// bytes in front of it. Packets of other kinds are not skipped: an ACK must not overtake a READ response.
#[inline]
pub(crate) fn ack_behind_answers<'a>(
    run: &Datagram<'a>,
    segment: usize,
) -> Option<(Datagram<'a>, usize)> {
    let last = run.payload.len() % segment.max(1);
    // Only the last packet of a run can be shorter than the others.
    if segment != ACKNOWLEDGE_LEN && last != ACKNOWLEDGE_LEN {
        return None;
    }
    let mut rest = *run;
    while !rest.payload.is_empty() {
        let packet = rest.first_payload(segment);
        if !completes_rc_receive(packet) {
            let before = run.payload.len() - rest.payload.len();
            rest.payload = packet;
            return rc_acknowledge(packet).map(|_| (rest, before));
        }
        rest.skip(1, segment);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_datagram::datagram;

    const SEND: u8 = 4;
    const READ_RESPONSE: u8 = 16;
    const ACK: u8 = 17;

    /// Returns true if an ACK is found in a run of packets with these opcodes.
    fn finds(opcodes: &[u8], segment: usize) -> bool {
        let packet = |&opcode: &u8| {
            let length = if opcode == ACK {
                ACKNOWLEDGE_LEN
            } else {
                segment
            };
            let mut packet = vec![0; length];
            packet[0] = opcode;
            packet
        };
        let payload = opcodes.iter().flat_map(packet).collect::<Vec<u8>>();
        ack_behind_answers(&datagram(&payload), segment).is_some_and(|(ack, before)| {
            ack.payload[0] == ACK && payload[before..].starts_with(ack.payload)
        })
    }

    #[test]
    fn ack_is_found_behind_messages_that_complete_receives() {
        for segment in [ACKNOWLEDGE_LEN, 80] {
            assert!(finds(&[SEND, ACK], segment));
            assert!(finds(&[SEND, SEND, SEND, ACK], segment));
            assert!(!finds(&[SEND, SEND], segment));
            assert!(!finds(&[SEND, READ_RESPONSE, ACK], segment));
        }
        assert!(finds(&[SEND, ACK, SEND, ACK], ACKNOWLEDGE_LEN));
    }
}
