//! An acknowledgement that came along with a message.
//!
//! A program that polls waits for the message, and looks at it sooner if nothing is done
//! before that can be done after. It polls again as soon as it has answered; then the
//! acknowledgement is taken in, or when the progress thread comes.

use ferroce_transport::Datagram;
use ferroce_wire::{Aeth, Bth, ICRC_LEN, Opcode, Operation, Transport};

const ACKNOWLEDGE: u8 = Opcode::new(Transport::Rc, Operation::Acknowledge)
    .unwrap()
    .byte();
const LENGTH: usize = Bth::LEN + Aeth::LEN + ICRC_LEN;

/// Room for one.
#[derive(Debug, Default)]
pub(crate) struct Late {
    bytes: [u8; LENGTH],
    /// With no payload of its own.
    datagram: Option<Datagram<'static>>,
}

impl Late {
    pub(crate) fn is_empty(&self) -> bool {
        self.datagram.is_none()
    }

    /// Keeps a datagram if it is an acknowledgement.
    #[inline]
    pub(crate) fn keep(&mut self, datagram: &Datagram<'_>) -> bool {
        let Ok(bytes) = <[u8; LENGTH]>::try_from(datagram.payload) else {
            return false;
        };
        if bytes[0] != ACKNOWLEDGE || self.datagram.is_some() {
            return false;
        }
        self.bytes = bytes;
        self.datagram = Some(Datagram {
            payload: &[],
            ..*datagram
        });
        true
    }

    /// Lets it go.
    #[inline]
    pub(crate) fn release(&mut self, take: impl FnOnce(&Datagram<'_>)) {
        if let Some(datagram) = self.datagram.take() {
            take(&Datagram {
                payload: &self.bytes,
                ..datagram
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use ferroce_transport::IpId;

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
    fn one_acknowledgement_is_kept_and_comes_out_as_it_was() {
        let mut late = Late::default();
        let mut packet = [7; LENGTH];
        packet[0] = ACKNOWLEDGE;
        assert!(!late.keep(&datagram(&packet[1..])), "something shorter");
        assert!(!late.keep(&datagram(&[7; LENGTH])), "something else");
        assert!(late.is_empty());
        assert!(late.keep(&datagram(&packet)));
        assert!(!late.keep(&datagram(&packet)), "another");
        let mut came = 0;
        for _ in 0..2 {
            late.release(|kept| {
                assert_eq!(format!("{kept:?}"), format!("{:?}", datagram(&packet)));
                came += 1;
            });
            assert!(late.is_empty());
        }
        assert_eq!(came, 1);
    }
}
