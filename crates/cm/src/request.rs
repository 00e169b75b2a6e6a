//! The parameters of `connect` and `accept`.

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
    /// Returns the transport and extended transport fields of a REQ.
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

/// Enhanced connection establishment (ECE): options that adapters of one vendor negotiate.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Ece {
    /// Vendor of the options, 24 bits.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

/// The parameters of a connection request.
#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Request {
    /// Addresses of this node and the peer.
    pub address: Address,
    /// The requested service.
    pub service_id: u64,
    /// Kind of the connection.
    pub kind: Kind,
    /// Number of our queue pair.
    pub qpn: u32,
    /// True if our queue pair uses a shared receive queue.
    pub srq: bool,
    /// True if our queue pair uses end-to-end flow control.
    pub flow_control: bool,
    /// Concurrent READs and atomics that our responder serves.
    pub responder_resources: u8,
    /// READs and atomics that our requester may have outstanding.
    pub initiator_depth: u8,
    /// Retry count, at most 7.
    pub retry_count: u8,
    /// RNR retry count, at most 7.
    pub rnr_retry_count: u8,
    /// Path MTU as an enumeration: 1 is 256 bytes, 5 is 4096.
    pub path_mtu: u8,
    /// Longest travel time of a packet; a time code.
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
    /// Private data. For a service of rdma_cm it starts with the rdma_cm header.
    pub private_data: PrivateData<92>,
}

impl Request {
    /// Returns a request with the kernel's default values.
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

/// Returns the flow label of a connection between two ports. Both ends derive the same UDP
/// source port from it.
pub fn flow_label(source_port: u16, destination_port: u16) -> u32 {
    (u32::from(source_port) * 31 + u32::from(destination_port)) & 0xf_ffff
}

/// The parameters with which a program accepts a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Accept {
    /// Number of our queue pair.
    pub qpn: u32,
    /// True if our queue pair uses a shared receive queue.
    pub srq: bool,
    /// True if our queue pair uses end-to-end flow control.
    pub flow_control: bool,
    /// Concurrent READs and atomics that our responder serves.
    pub responder_resources: u8,
    /// READs and atomics that our requester may have outstanding.
    pub initiator_depth: u8,
    /// RNR retry count for the peer's queue pair, at most 7.
    pub rnr_retry_count: u8,
    /// Enhanced connection establishment.
    pub ece: Ece,
    /// Private data.
    pub private_data: PrivateData<196>,
}

impl Accept {
    /// Returns default parameters for this queue pair.
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
