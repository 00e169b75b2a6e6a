//! Events for the caller of the connection manager.

use crate::message::SidrStatus;
use crate::{Address, ConnId, Ece, IpHeader, Kind, ListenerId, PrivateData, Reason, SidrId};

/// An event of a connection or of a service ID resolution (SIDR).
///
/// A connection is gone after [`Event::Unreachable`], [`Event::TimewaitExit`], or an
/// [`Event::Rejected`] whose `timewait` is false.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Event {
    /// A peer requests a connection. Answer with `accept` or `reject`.
    Request(Box<Incoming>),
    /// The peer has accepted our request. Modify the queue pair, then call `establish`.
    Response {
        /// The connection.
        conn: ConnId,
        /// Concurrent READs and atomics that our responder must serve.
        responder_resources: u8,
        /// READs and atomics that our requester may have outstanding.
        initiator_depth: u8,
        /// True if the peer uses end-to-end flow control.
        flow_control: bool,
        /// True if the peer's queue pair uses a shared receive queue.
        srq: bool,
        /// Enhanced connection establishment.
        ece: Ece,
        /// Private data.
        private_data: Box<PrivateData<196>>,
    },
    /// The peer has received our REP. Only the passive side gets this event.
    Established {
        /// The connection.
        conn: ConnId,
    },
    /// The peer has sent a REJ.
    Rejected {
        /// The connection.
        conn: ConnId,
        /// Reason of the REJ.
        reason: Reason,
        /// Additional reject information.
        ari: Vec<u8>,
        /// Private data.
        private_data: Box<PrivateData<148>>,
        /// True if TIMEWAIT follows and, after it, [`Event::TimewaitExit`].
        timewait: bool,
    },
    /// The peer has not answered our REQ or REP. The connection is gone.
    Unreachable {
        /// The connection.
        conn: ConnId,
    },
    /// The connection is closed.
    Disconnected {
        /// The connection.
        conn: ConnId,
        /// The way in which the connection was closed.
        by: Closed,
        /// Private data of the DREQ or DREP.
        private_data: Box<PrivateData<224>>,
    },
    /// The queue pair may be used again. The connection is gone.
    TimewaitExit {
        /// The connection.
        conn: ConnId,
    },
    /// A peer asks which queue pair serves a datagram service. Answer with `sidr_answer`.
    SidrRequest(Box<SidrIncoming>),
    /// The answer to our SIDR request, which is gone.
    SidrReply {
        /// The SIDR request.
        sidr: SidrId,
        /// Status. `qpn` and `qkey` are valid if this is [`SidrStatus::VALID`].
        status: SidrStatus,
        /// Number of the queue pair that serves the service.
        qpn: u32,
        /// Q_Key that datagrams to this queue pair must carry.
        qkey: u32,
        /// Enhanced connection establishment.
        ece: Ece,
        /// Private data.
        private_data: Box<PrivateData<136>>,
    },
    /// The peer has not answered our SIDR request, which is gone.
    SidrUnreachable {
        /// The SIDR request.
        sidr: SidrId,
    },
}

/// The way in which a connection was closed.
#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Closed {
    /// The peer has sent a DREQ.
    Peer {
        /// True if the program must answer with `disconnect`. False if our DREQ crossed the
        /// peer's: the DREP has been sent.
        answer_owed: bool,
    },
    /// The peer has answered our DREQ with a DREP.
    Local,
    /// The peer has not answered our DREQ.
    TimedOut,
    /// The peer has sent a REJ after the connection was established.
    Rejected(Reason),
}

/// A received connection request (REQ).
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Incoming {
    /// The connection that `accept` establishes.
    pub conn: ConnId,
    /// The listener that the request is for.
    pub listener: ListenerId,
    /// Addresses of this node and the peer.
    pub address: Address,
    /// The requested service.
    pub service_id: u64,
    /// The IP addresses in the rdma_cm header, if the request has one.
    pub ip: Option<IpHeader>,
    /// Kind of the connection.
    pub kind: Kind,
    /// Number of the peer's queue pair.
    pub remote_qpn: u32,
    /// READs and atomics that our responder may have to serve: the peer's initiator depth.
    pub responder_resources: u8,
    /// READs and atomics that our requester may have outstanding: the peer's responder
    /// resources.
    pub initiator_depth: u8,
    /// True if the peer uses end-to-end flow control.
    pub flow_control: bool,
    /// Retry count that the peer requests.
    pub retry_count: u8,
    /// RNR retry count that the peer requests.
    pub rnr_retry_count: u8,
    /// True if the peer's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Enhanced connection establishment.
    pub ece: Ece,
    /// Private data as received, including the rdma_cm header if there is one.
    pub private_data: PrivateData<92>,
}

impl Incoming {
    /// Returns the private data of the peer's program, without the rdma_cm header.
    pub fn user_data(&self) -> &[u8] {
        user_data(self.ip.is_some(), &self.private_data.0)
    }
}

/// A received SIDR request.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct SidrIncoming {
    /// The SIDR request.
    pub sidr: SidrId,
    /// The listener that the request is for.
    pub listener: ListenerId,
    /// Addresses of this node and the peer.
    pub address: Address,
    /// The requested service.
    pub service_id: u64,
    /// The IP addresses in the rdma_cm header, if the request has one.
    pub ip: Option<IpHeader>,
    /// Private data as received, including the rdma_cm header if there is one.
    pub private_data: PrivateData<216>,
}

impl SidrIncoming {
    /// Returns the private data of the peer's program, without the rdma_cm header.
    pub fn user_data(&self) -> &[u8] {
        user_data(self.ip.is_some(), &self.private_data.0)
    }
}

fn user_data(header: bool, data: &[u8]) -> &[u8] {
    &data[if header { IpHeader::LEN } else { 0 }..]
}

impl Event {
    /// Returns the connection of the event.
    pub fn conn(&self) -> Option<ConnId> {
        match self {
            Event::Request(incoming) => Some(incoming.conn),
            Event::Response { conn, .. }
            | Event::Established { conn }
            | Event::Rejected { conn, .. }
            | Event::Unreachable { conn }
            | Event::Disconnected { conn, .. }
            | Event::TimewaitExit { conn } => Some(*conn),
            Event::SidrRequest(_) | Event::SidrReply { .. } | Event::SidrUnreachable { .. } => None,
        }
    }

    /// Returns the SIDR request of the event.
    pub fn sidr(&self) -> Option<SidrId> {
        match self {
            Event::SidrRequest(incoming) => Some(incoming.sidr),
            Event::SidrReply { sidr, .. } | Event::SidrUnreachable { sidr } => Some(*sidr),
            _ => None,
        }
    }
}
