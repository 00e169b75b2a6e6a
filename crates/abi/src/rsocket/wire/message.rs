//! The 32 bits of immediate data: three of type, 29 of value.

/// What an RDMA WRITE with immediate data means.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Message {
    /// So many bytes of the stream were written into the receive buffer.
    Data(u32),
    /// Data messages up to this number may be sent; a region may have been published.
    Credits(u16),
    /// An entry of the receiver's table of iomaps was written.
    Iomap(u16),
    Control(Control),
    /// Of a type that nobody uses.
    Reserved(u32),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Control {
    /// No more data in either direction.
    Disconnect,
    Keepalive,
    /// No more data from the sender of this.
    Shutdown,
}

const VALUE_BITS: u32 = 29;
const VALUE: u32 = (1 << VALUE_BITS) - 1;

impl Message {
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
    fn messages_of_the_capture() {
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
    fn every_number_means_something_and_comes_back() {
        let mut samples: Vec<u32> = (0..8)
            .flat_map(|k| (0..4).map(move |v| k << 29 | v))
            .collect();
        samples.extend([0x1fff_ffff, 0x8000_ffff, 0xc000_ffff, u32::MAX]);
        for whole in samples {
            assert_eq!(Message::decode(whole).encode(), whole, "{whole:#x}");
        }
    }
}
