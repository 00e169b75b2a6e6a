//! A received acknowledgement that arrived together with a message.
//!
//! A program that polls waits for the message. The core delivers the message first, and the
//! acknowledgement in the next turn: when the program polls again, or when the progress
//! thread comes. So the program sees its message sooner.
//!
//! The core defers no acknowledgement behind an answer if both complete in one queue: there
//! the program expects the completion of its request first.

use ferroce_roce::Datagram;
use ferroce_wire::{ACKNOWLEDGE_LEN, rc_acknowledge};

/// Room for one acknowledgement.
#[derive(Debug)]
pub(crate) struct DeferredAck {
    bytes: [u8; ACKNOWLEDGE_LEN],
    /// The datagram, with an empty payload.
    datagram: Option<Datagram<'static>>,
}

impl Default for DeferredAck {
    fn default() -> DeferredAck {
        DeferredAck {
            bytes: [0; ACKNOWLEDGE_LEN],
            datagram: None,
        }
    }
}

impl DeferredAck {
    pub(crate) fn is_empty(&self) -> bool {
        self.datagram.is_none()
    }

    /// Stores a datagram and returns true, if it is an acknowledgement and there is room.
    #[inline]
    pub(crate) fn store(&mut self, datagram: &Datagram<'_>) -> bool {
        let Some(bytes) = rc_acknowledge(datagram.payload).filter(|_| self.is_empty()) else {
            return false;
        };
        self.bytes = bytes;
        self.datagram = Some(Datagram {
            payload: &[],
            ..*datagram
        });
        true
    }

    /// Passes the stored datagram, if any, to `deliver`.
    #[inline]
    pub(crate) fn release(&mut self, deliver: impl FnOnce(&Datagram<'_>)) {
        if let Some(datagram) = self.datagram.take() {
            deliver(&Datagram {
                payload: &self.bytes,
                ..datagram
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use ferroce_roce::IpId;
    use ferroce_wire::{Opcode, Operation, Transport};

    use super::*;

    fn datagram(payload: &[u8]) -> Datagram<'_> {
        Datagram {
            source: [127, 0, 0, 1].into(),
            destination: [127, 0, 0, 2].into(),
            source_port: 0xc001,
            traffic_class: 2,
            hop_limit: 64,
            ip_id: IpId::Unseen(1),
            payload,
        }
    }

    #[test]
    fn one_acknowledgement_is_stored_and_released_unchanged() {
        let mut deferred = DeferredAck::default();
        let mut packet = [7; ACKNOWLEDGE_LEN];
        let opcode = Opcode::new(Transport::Rc, Operation::Acknowledge);
        packet[0] = opcode.unwrap().byte();
        assert!(!deferred.store(&datagram(&packet[1..])), "too short");
        let other = [7; ACKNOWLEDGE_LEN];
        assert!(!deferred.store(&datagram(&other)), "another opcode");
        assert!(deferred.is_empty());
        assert!(deferred.store(&datagram(&packet)));
        assert!(!deferred.store(&datagram(&packet)), "no room for a second");
        let mut released = 0;
        for _ in 0..2 {
            deferred.release(|stored| {
                assert_eq!(format!("{stored:?}"), format!("{:?}", datagram(&packet)));
                released += 1;
            });
            assert!(deferred.is_empty());
        }
        assert_eq!(released, 1);
    }
}
