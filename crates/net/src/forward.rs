//! Forwarding of packets that the kernel delivered to the wrong slot.
//!
//! UDP_GRO, and a segmented send over loopback, merge packets of one flow into one
//! buffer. The group's BPF program looks at the first packet only. If packets to different
//! slots share a source port, a slot receives packets of other slots behind its own. The
//! slot must not drop them: the sender would merge the retransmitted packets again.
//!
//! A UDP socket cannot send from another host's address. So the slot puts the addresses in
//! front of the packet and sends both from its own socket to 127.0.0.1, port 4791. There
//! the same BPF program steers them:
//!
//! ```text
//!   0        4     5      6    7    8       10       11  12        16       32       48
//!   | "\xffFWD" | 1 | slot | tc | hl | port | family | 0 | ifindex | source | dest. | packet
//! ```
//!
//! The receiver recognises forwarded packets by their source, 127.0.0.1 and port 4791. No
//! other process can send from there: only ferroced hands out sockets of the group, and
//! packets from 127.0.0.1 never come from a network. So a source address in this header
//! is as trustworthy as one in an IP header. The first byte is an opcode that no standard
//! packet has, so that packet captures show the difference.
//!
//! A packet is forwarded at most once. The first packet of a buffer is never forwarded:
//! the kernel did steer that one, so if it names another slot, that slot does not exist.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;

use ferroce_roce::{Datagram, IpId};
use ferroce_wire::ROCE_PORT;

use crate::address::{self, Name};
use crate::incoming::Incoming;
use crate::sender::RUN_LIMITS;
use crate::steering;
use crate::syscall::{self, Outgoing};

const MAGIC: [u8; 5] = *b"\xffFWD\x01";
const HEADER: usize = 48;
/// Most bytes of a UDP datagram, and so of a segmented send.
const ROOM: usize = 65_507;

/// Returns true if addresses and port say that another slot forwarded the datagram.
pub(crate) fn is_forwarded(source: IpAddr, source_port: u16, destination: IpAddr) -> bool {
    source_port == ROCE_PORT
        && source == IpAddr::V4(Ipv4Addr::LOCALHOST)
        && destination == IpAddr::V4(Ipv4Addr::LOCALHOST)
}

/// Decodes a packet that another slot forwarded.
pub(crate) fn unwrap(bytes: &[u8]) -> Option<Incoming<'_>> {
    let (header, payload) = bytes.split_first_chunk::<HEADER>()?;
    if header[..5] != MAGIC {
        return None;
    }
    let read = |bytes| match header[10] {
        4 => address::v4(bytes).map(IpAddr::V4),
        6 => address::v6(bytes).map(IpAddr::V6),
        _ => None,
    };
    Some(Incoming {
        datagram: Datagram {
            source: read(&header[16..])?,
            source_port: u16::from_be_bytes([header[8], header[9]]),
            destination: read(&header[32..])?,
            traffic_class: header[6],
            hop_limit: header[7],
            ip_id: IpId::UNSEEN,
            payload,
        },
        ifindex: u32::from_be_bytes(*header[12..].first_chunk()?),
    })
}

fn wrap(packet: &Incoming<'_>, slot: u8) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..5].copy_from_slice(&MAGIC);
    header[steering::SLOT_OFFSET] = slot;
    header[6] = packet.traffic_class;
    header[7] = packet.hop_limit;
    header[8..10].copy_from_slice(&packet.source_port.to_be_bytes());
    header[10] = if packet.source.is_ipv4() { 4 } else { 6 };
    header[12..16].copy_from_slice(&packet.ifindex.to_be_bytes());
    write_address(&mut header[16..32], packet.source);
    write_address(&mut header[32..48], packet.destination);
    header
}

fn write_address(out: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(v4) => out[..4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => out.copy_from_slice(&v6.octets()),
    }
}

/// Collects packets of one size for one slot, and forwards them in one system call.
pub(crate) struct Forwarder {
    wrapped: Vec<u8>,
    slot: u8,
    segment: usize,
    count: usize,
    gso: bool,
    warned: bool,
}

/// Number of packets that were forwarded and that could not be.
#[derive(Copy, Clone, Default)]
pub(crate) struct Flushed {
    pub(crate) sent: usize,
    pub(crate) lost: usize,
}

impl Forwarder {
    pub(crate) fn new(gso: bool) -> Forwarder {
        Forwarder {
            wrapped: Vec::new(),
            slot: 0,
            segment: 0,
            count: 0,
            gso,
            warned: false,
        }
    }

    /// Adds a packet. If it cannot share a system call with the packets before it, this
    /// sends those first.
    pub(crate) fn push(&mut self, fd: &impl AsFd, packet: &Incoming<'_>) -> Flushed {
        let slot = steering::slot_of(packet.payload);
        let len = HEADER + packet.payload.len();
        let flushed = match self.takes(slot, len) {
            true => Flushed::default(),
            false => self.flush(fd),
        };
        if len > ROOM {
            return flushed.plus(Flushed { sent: 0, lost: 1 });
        }
        if self.count == 0 {
            // Only the first packet ever forwarded allocates.
            self.wrapped.reserve(ROOM);
            self.slot = slot;
            self.segment = len;
        }
        self.wrapped.extend_from_slice(&wrap(packet, slot));
        self.wrapped.extend_from_slice(packet.payload);
        self.count += 1;
        flushed
    }

    fn takes(&self, slot: u8, len: usize) -> bool {
        let whole = self.wrapped.len() == self.count * self.segment;
        self.count == 0
            || self.gso
                && whole
                && slot == self.slot
                && len <= self.segment
                && self.count < RUN_LIMITS.packets
                && self.wrapped.len() + len <= ROOM
    }

    /// Sends the collected packets.
    pub(crate) fn flush(&mut self, fd: &impl AsFd) -> Flushed {
        if self.count == 0 {
            return Flushed::default();
        }
        let count = std::mem::take(&mut self.count);
        let result = self.send(fd, count);
        self.wrapped.clear();
        match result {
            Ok(()) => Flushed {
                sent: count,
                lost: 0,
            },
            Err(error) => {
                if !std::mem::replace(&mut self.warned, true) {
                    tracing::warn!(
                        %error,
                        slot = self.slot,
                        "cannot forward a packet of another slot over 127.0.0.1; \
                         is the interface lo up?"
                    );
                }
                Flushed {
                    sent: 0,
                    lost: count,
                }
            }
        }
    }

    fn send(&self, fd: &impl AsFd, count: usize) -> std::io::Result<()> {
        let (name, name_len) = Name::new(Ipv4Addr::LOCALHOST.into(), ROCE_PORT, 0);
        let mut message = Outgoing {
            name,
            name_len,
            body: &self.wrapped,
            ..Outgoing::EMPTY
        };
        if count > 1 {
            let segment = (self.segment as u16).to_ne_bytes();
            let control = &mut message.control;
            message.control_len = control.put(0, libc::SOL_UDP, libc::UDP_SEGMENT, segment);
        }
        syscall::send(fd, &message)
    }
}

impl Flushed {
    pub(crate) fn plus(self, other: Flushed) -> Flushed {
        Flushed {
            sent: self.sent + other.sent,
            lost: self.lost + other.lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_packet_is_unwrapped_to_itself() {
        for (source, destination) in [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "ff02::9")] {
            let packet = Incoming {
                datagram: Datagram {
                    source: source.parse().unwrap(),
                    source_port: 0xc0de,
                    destination: destination.parse().unwrap(),
                    traffic_class: 0x69,
                    hop_limit: 63,
                    ip_id: IpId::UNSEEN,
                    payload: &[1, 2, 3, 4, 5, 6, 7, 8],
                },
                ifindex: 0x0102_0304,
            };
            let mut bytes = wrap(&packet, 6).to_vec();
            bytes.extend_from_slice(packet.payload);
            assert_eq!(steering::slot_of(&bytes), 6);
            let read = unwrap(&bytes).unwrap();
            assert_eq!(format!("{read:?}"), format!("{packet:?}"));
            for len in 0..HEADER {
                assert!(unwrap(&bytes[..len]).is_none(), "{len} bytes");
            }
            bytes[10] = 5;
            assert!(unwrap(&bytes).is_none(), "no such family");
        }
    }

    #[test]
    fn only_loopback_and_the_groups_port_mark_a_forwarded_packet() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let local = ip("127.0.0.1");
        assert!(is_forwarded(local, ROCE_PORT, local));
        assert!(!is_forwarded(local, 0xc000, local));
        assert!(!is_forwarded(ip("127.0.0.2"), ROCE_PORT, local));
        assert!(!is_forwarded(ip("192.0.2.1"), ROCE_PORT, ip("192.0.2.1")));
    }
}
