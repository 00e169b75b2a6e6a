//! What programs say when they connect and accept.

use crate::message::Transport;
use crate::{Address, PrivateData};

/// Kind of a connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub enum Kind {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection.
    Xrc,
}

impl Kind {
    /// As a REQ says it: the transport and the extended transport.
    pub(crate) fn to_wire(self) -> (Transport, u8) {
        match self {
            Kind::Rc => (Transport::Rc, 0),
            Kind::Uc => (Transport::Uc, 0),
            Kind::Xrc => (Transport::Extended, 1),
        }
    }

    pub(crate) fn from_wire(transport: Transport, extended: u8) -> Option<Kind> {
        match (transport, extended) {
            (Transport::Rc, _) => Some(Kind::Rc),
            (Transport::Uc, _) => Some(Kind::Uc),
            (Transport::Extended, 1) => Some(Kind::Xrc),
            _ => None,
        }
    }
}

/// Enhanced connection establishment: what vendors negotiate.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Ece {
    /// Whose options, 24 bits.
    pub vendor_id: u32,
    /// Which.
    pub options: u32,
}

/// A connection that a program wants.
#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Request {
    /// From where to where.
    pub address: Address,
    /// For whom.
    pub service_id: u64,
    /// Kind of the connection.
    pub kind: Kind,
    /// Our queue pair.
    pub qpn: u32,
    /// Our queue pair uses a shared receive queue.
    pub srq: bool,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// READs and atomics that we serve at once.
    pub responder_resources: u8,
    /// READs and atomics that we have outstanding.
    pub initiator_depth: u8,
    /// Retries, at most 7.
    pub retry_count: u8,
    /// RNR retries, at most 7.
    pub rnr_retry_count: u8,
    /// Path MTU as an enumeration: 1 is 256 bytes, 5 is 4096.
    pub path_mtu: u8,
    /// How long a packet travels at most; a time code.
    pub packet_life_time: u8,
    /// Flow label: see [`flow_label`].
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// Enhanced connection establishment.
    pub ece: Ece,
    /// Private data, with the header of rdma_cm if it is one of its services.
    pub private_data: PrivateData<92>,
}

impl Request {
    /// A request with the kernel's usual values.
    pub fn new(address: Address, service_id: u64, qpn: u32) -> Request {
        Request {
            address,
            service_id,
            kind: Kind::Rc,
            qpn,
            srq: false,
            flow_control: false,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            path_mtu: 3,
            packet_life_time: 16,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            sl: 0,
            ece: Ece::default(),
            private_data: PrivateData::EMPTY,
        }
    }
}

/// The flow label of a connection between two ports, from which both ends derive
/// the same UDP source port.
pub fn flow_label(source_port: u16, destination_port: u16) -> u32 {
    (u32::from(source_port) * 31 + u32::from(destination_port)) & 0xf_ffff
}

/// A program's yes to a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Accept {
    /// Our queue pair.
    pub qpn: u32,
    /// Our queue pair uses a shared receive queue.
    pub srq: bool,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// READs and atomics that we serve at once.
    pub responder_resources: u8,
    /// READs and atomics that we have outstanding.
    pub initiator_depth: u8,
    /// RNR retries that the peer shall make, at most 7.
    pub rnr_retry_count: u8,
    /// Enhanced connection establishment.
    pub ece: Ece,
    /// Private data.
    pub private_data: PrivateData<196>,
}

impl Accept {
    /// A yes without wishes.
    pub fn new(qpn: u32) -> Accept {
        Accept {
            qpn,
            srq: false,
            flow_control: false,
            responder_resources: 0,
            initiator_depth: 0,
            rnr_retry_count: 7,
            ece: Ece::default(),
            private_data: PrivateData::EMPTY,
        }
    }
}
