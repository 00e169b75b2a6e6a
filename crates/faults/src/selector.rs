//! Selection of packets: by direction, queue pair, peer, transport and kind.

use std::net::IpAddr;

use ferroce_wire::{Aeth, Bth, Opcode, Operation, Syndrome, Transport};

/// The direction of a packet, seen from the program.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
}

/// A kind of packets.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PacketKind {
    /// Any packet, messages of the connection manager included.
    All,
    /// Any packet of a program.
    Packet,
    /// A request: SEND, WRITE, READ, atomic and the like.
    Request,
    /// An ACK, without NAKs.
    Ack,
    /// A NAK, RNR included.
    Nak,
    /// An RNR NAK.
    Rnr,
    /// A SEND, with or without immediate.
    Send,
    /// An RDMA WRITE, with or without immediate.
    Write,
    /// An RDMA READ request.
    Read,
    /// A response to an RDMA READ.
    Response,
    /// An atomic request.
    Atomic,
    /// A congestion notification.
    Cnp,
    /// One operation of the wire, such as SEND_ONLY.
    Operation(Operation),
    /// A message of the connection manager; none for all of them.
    Cm(Option<CmMessage>),
}

/// A message of the connection manager.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the names are those of IBTA chapter 12
pub enum CmMessage {
    Req,
    Mra,
    Rej,
    Rep,
    Rtu,
    Dreq,
    Drep,
    SidrReq,
    SidrRep,
}

impl CmMessage {
    /// All messages, with their names.
    pub const ALL: [(&'static str, CmMessage); 9] = [
        ("REQ", CmMessage::Req),
        ("MRA", CmMessage::Mra),
        ("REJ", CmMessage::Rej),
        ("REP", CmMessage::Rep),
        ("RTU", CmMessage::Rtu),
        ("DREQ", CmMessage::Dreq),
        ("DREP", CmMessage::Drep),
        ("SIDR_REQ", CmMessage::SidrReq),
        ("SIDR_REP", CmMessage::SidrRep),
    ];

    /// Returns the message with an attribute ID of the MAD header.
    pub fn from_attribute(attribute: u16) -> Option<CmMessage> {
        Some(match attribute {
            0x10 => CmMessage::Req,
            0x11 => CmMessage::Mra,
            0x12 => CmMessage::Rej,
            0x13 => CmMessage::Rep,
            0x14 => CmMessage::Rtu,
            0x15 => CmMessage::Dreq,
            0x16 => CmMessage::Drep,
            0x17 => CmMessage::SidrReq,
            0x18 => CmMessage::SidrRep,
            _ => return None,
        })
    }
}

impl PacketKind {
    /// Returns the kind with this name, in upper or lower case.
    pub(crate) fn parse(word: &str) -> Option<PacketKind> {
        let upper = word.to_ascii_uppercase();
        Some(match upper.as_str() {
            "ALL" => PacketKind::All,
            "PACKET" | "PACKETS" => PacketKind::Packet,
            "REQUEST" | "REQUESTS" => PacketKind::Request,
            "ACK" | "ACKS" => PacketKind::Ack,
            "NAK" | "NAKS" => PacketKind::Nak,
            "RNR_NAK" => PacketKind::Rnr,
            "SEND" | "SENDS" => PacketKind::Send,
            "WRITE" | "WRITES" => PacketKind::Write,
            "READ" | "READS" => PacketKind::Read,
            "RESPONSE" | "RESPONSES" => PacketKind::Response,
            "ATOMIC" | "ATOMICS" => PacketKind::Atomic,
            "CNP" | "CNPS" => PacketKind::Cnp,
            "CM" => PacketKind::Cm(None),
            name => {
                let cm = CmMessage::ALL.iter().find(|(known, _)| *known == name);
                let operation = || Operation::ALL.iter().find(|known| known.name() == name);
                match cm {
                    Some((_, message)) => PacketKind::Cm(Some(*message)),
                    None => PacketKind::Operation(*operation()?),
                }
            }
        })
    }

    /// Returns true for messages of the connection manager alone.
    pub fn is_cm(self) -> bool {
        matches!(self, PacketKind::Cm(_))
    }
}

/// The packets that a rule applies to.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Select {
    /// The direction; none for both.
    pub direction: Option<Direction>,
    /// Destination queue pair.
    pub qp: Option<u32>,
    /// Address of the other end.
    pub peer: Option<IpAddr>,
    /// Transport service.
    pub transport: Option<Transport>,
    /// Kind of packets.
    pub kind: PacketKind,
}

impl Default for Select {
    fn default() -> Select {
        Select {
            direction: None,
            qp: None,
            peer: None,
            transport: None,
            kind: PacketKind::Packet,
        }
    }
}

/// The facts of a packet that rules look at.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) direction: Direction,
    pub(crate) peer: IpAddr,
    pub(crate) qpn: u32,
    opcode: Option<Opcode>,
    syndrome: Option<Syndrome>,
    pub(crate) cm: Option<CmMessage>,
    pub(crate) is_cm: bool,
    /// Length of the IP packet.
    pub(crate) ip_len: usize,
}

impl Facts {
    /// Returns the facts of a packet from BTH to ICRC.
    pub(crate) fn of_packet(direction: Direction, peer: IpAddr, packet: &[u8]) -> Facts {
        let opcode = packet.first().and_then(|&byte| Opcode::from_byte(byte));
        let qpn = packet.get(5..8).map_or(0, |bytes| {
            u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
        });
        let aeth = packet.get(Bth::LEN..Bth::LEN + Aeth::LEN);
        let has_aeth = opcode.is_some_and(|opcode| opcode.has_aeth());
        Facts {
            direction,
            peer,
            qpn,
            opcode,
            syndrome: aeth
                .filter(|_| has_aeth)
                .map(|bytes| Aeth::parse(bytes).syndrome),
            cm: None,
            is_cm: false,
            ip_len: packet.len() + if peer.is_ipv4() { 28 } else { 48 },
        }
    }

    /// Returns the facts of a MAD of the connection manager.
    pub(crate) fn of_mad(direction: Direction, peer: IpAddr, mad: &[u8]) -> Facts {
        let attribute = mad.get(16..18).map(|a| u16::from_be_bytes([a[0], a[1]]));
        Facts {
            direction,
            peer,
            qpn: 1,
            opcode: None,
            syndrome: None,
            cm: attribute.and_then(CmMessage::from_attribute),
            is_cm: true,
            ip_len: mad.len() + if peer.is_ipv4() { 28 } else { 48 } + 24,
        }
    }

    /// Returns true if the packet is a positive acknowledgement or response: one that can be
    /// replaced by a NAK.
    pub(crate) fn is_positive_response(&self) -> bool {
        matches!(self.syndrome, Some(Syndrome::Ack { .. }))
    }

    fn operation(&self) -> Option<Operation> {
        self.opcode.map(Opcode::operation)
    }
}

impl Select {
    /// Returns true if the rule applies to a packet.
    pub(crate) fn selects(&self, facts: &Facts) -> bool {
        self.direction
            .is_none_or(|direction| direction == facts.direction)
            && self.qp.is_none_or(|qp| qp == facts.qpn)
            && self.peer.is_none_or(|peer| peer == facts.peer)
            && self.transport.is_none_or(|wanted| {
                facts
                    .opcode
                    .is_some_and(|opcode| opcode.transport() == wanted)
            })
            && self.is_kind(facts)
    }

    fn is_kind(&self, facts: &Facts) -> bool {
        use Operation::*;
        if let PacketKind::Cm(message) = self.kind {
            return facts.is_cm && message.is_none_or(|message| facts.cm == Some(message));
        }
        if self.kind == PacketKind::All || facts.is_cm {
            return self.kind == PacketKind::All;
        }
        let Some(operation) = facts.operation() else {
            return self.kind == PacketKind::Packet;
        };
        let is_cnp = facts
            .opcode
            .is_some_and(|opcode| opcode.transport() == Transport::Cnp);
        if is_cnp {
            return matches!(self.kind, PacketKind::Packet | PacketKind::Cnp);
        }
        match self.kind {
            PacketKind::All | PacketKind::Packet => true,
            PacketKind::Request => facts.opcode.is_some_and(Opcode::is_request),
            PacketKind::Ack => operation == Acknowledge && facts.is_positive_response(),
            PacketKind::Nak => operation == Acknowledge && !facts.is_positive_response(),
            PacketKind::Rnr => matches!(facts.syndrome, Some(Syndrome::RnrNak { .. })),
            PacketKind::Send => facts.opcode.is_some_and(Opcode::is_send),
            PacketKind::Write => facts.opcode.is_some_and(Opcode::is_write),
            PacketKind::Read => operation == ReadRequest,
            PacketKind::Response => facts.opcode.is_some_and(Opcode::is_read_response),
            PacketKind::Atomic => matches!(operation, CompareSwap | FetchAdd),
            PacketKind::Cnp => false,
            PacketKind::Operation(wanted) => operation == wanted,
            PacketKind::Cm(_) => false,
        }
    }
}
