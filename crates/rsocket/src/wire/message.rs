//! Immediate data of a stream's RDMA WRITEs: 3 bits of type, 29 bits of value.

/// The meaning of an RDMA WRITE with immediate data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Message {
    /// This many bytes of the stream were written to the receive buffer.
    Data(u32),
    /// Data messages below this sequence number may be sent. The sender of the credits may
    /// have published another region before.
    Credits(u16),
    /// An entry of the receiver's table of iomaps was written.
    Iomap(u16),
    /// A control message.
    Control(Control),
    /// A message of an unassigned type, or an unknown control message.
    Reserved(u32),
}

/// A control message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Control {
    /// Both directions end.
    Disconnect,
    /// The sender is alive.
    Keepalive,
    /// The sender sends no more data.
    Shutdown,
}

const VALUE_BITS: u32 = 29;
const VALUE: u32 = (1 << VALUE_BITS) - 1;

impl Message {
    /// Returns the immediate data in host byte order.
    pub(crate) fn encode(self) -> u32 {
        let (kind, value) = match self {
            Message::Data(bytes) => (0, bytes & VALUE),
            Message::Credits(limit) => (4, limit.into()),
            Message::Iomap(index) => (6, index.into()),
            Message::Control(Control::Disconnect) => (7, 0),
            Message::Control(Control::Keepalive) => (7, 1),
            Message::Control(Control::Shutdown) => (7, 2),
            Message::Reserved(whole) => return whole,
        };
        kind << VALUE_BITS | value
    }

    /// Reads immediate data in host byte order.
    pub(crate) fn decode(whole: u32) -> Message {
        let value = whole & VALUE;
        match (whole >> VALUE_BITS, value) {
            (0, _) => Message::Data(value),
            // Only the lower half of the value counts.
            (4, _) => Message::Credits(value as u16),
            (6, _) => Message::Iomap(value as u16),
            (7, 0) => Message::Control(Control::Disconnect),
            (7, 1) => Message::Control(Control::Keepalive),
            (7, 2) => Message::Control(Control::Shutdown),
            _ => Message::Reserved(whole),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Immediate data of `rsocket-v4.pcap`.
    #[test]
    fn captured_messages_round_trip() {
        for (whole, message) in [
            (0x8000_0180, Message::Credits(384)),
            (0x0000_0010, Message::Data(16)),
            (0x0000_07d0, Message::Data(2000)),
            (0xe000_0000, Message::Control(Control::Disconnect)),
        ] {
            assert_eq!(Message::decode(whole), message);
            assert_eq!(message.encode(), whole);
        }
    }

    #[test]
    fn every_immediate_value_round_trips() {
        let mut samples: Vec<u32> = (0..8)
            .flat_map(|k| (0..4).map(move |v| k << 29 | v))
            .collect();
        samples.extend([0x1fff_ffff, 0x8000_ffff, 0xc000_ffff, u32::MAX]);
        for whole in samples {
            assert_eq!(Message::decode(whole).encode(), whole, "{whole:#x}");
        }
    }
}
