//! What the connection manager tells its caller.

use crate::message::SidrStatus;
use crate::{Address, ConnId, Ece, IpHeader, Kind, ListenerId, PrivateData, Reason, SidrId};

/// Something has happened.
///
/// A connection ends with [`Event::Rejected`], [`Event::Unreachable`] or
/// [`Event::TimewaitExit`]: after the first two it is gone unless they say that
/// TIMEWAIT follows; after the last it is gone.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Event {
    /// Somebody wants to connect: answer with `accept` or `reject`.
    Request(Box<Incoming>),
    /// Our request was accepted: move the queue pair, then `establish`.
    Response {
        /// The connection.
        conn: ConnId,
        /// READs and atomics that we may serve.
        responder_resources: u8,
        /// READs and atomics that we may have outstanding.
        initiator_depth: u8,
        /// End-to-end flow control.
        flow_control: bool,
        /// The peer uses a shared receive queue.
        srq: bool,
        /// Enhanced connection establishment.
        ece: Ece,
        /// Private data.
        private_data: Box<PrivateData<196>>,
    },
    /// The peer has our acceptance. Only the passive side is told.
    Established {
        /// The connection.
        conn: ConnId,
    },
    /// The peer refused.
    Rejected {
        /// The connection.
        conn: ConnId,
        /// Why.
        reason: Reason,
        /// Additional information.
        ari: Vec<u8>,
        /// Private data.
        private_data: Box<PrivateData<148>>,
        /// TIMEWAIT follows, and [`Event::TimewaitExit`].
        timewait: bool,
    },
    /// The peer does not answer our REQ or REP. The connection is gone.
    Unreachable {
        /// The connection.
        conn: ConnId,
    },
    /// The connection is closed.
    Disconnected {
        /// The connection.
        conn: ConnId,
        /// How.
        by: Closed,
        /// Private data of the DREQ or DREP.
        private_data: Box<PrivateData<224>>,
    },
    /// The queue pair may be used again. The connection is gone.
    TimewaitExit {
        /// The connection.
        conn: ConnId,
    },
    /// Somebody wants to know a queue pair for datagrams: answer with
    /// `sidr_answer`.
    SidrRequest(Box<SidrIncoming>),
    /// The answer to a question for a queue pair. The question is gone.
    SidrReply {
        /// The question.
        sidr: SidrId,
        /// Whether the rest is of use.
        status: SidrStatus,
        /// The queue pair.
        qpn: u32,
        /// The key that lets datagrams in.
        qkey: u32,
        /// Enhanced connection establishment.
        ece: Ece,
        /// Private data.
        private_data: Box<PrivateData<136>>,
    },
    /// Nobody answers. The question is gone.
    SidrUnreachable {
        /// The question.
        sidr: SidrId,
    },
}

/// How a connection was closed.
#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Closed {
    /// The peer asks for it. `disconnect` answers, unless we had asked too.
    Peer {
        /// Whether an answer is still owed.
        answer_owed: bool,
    },
    /// We asked and the peer agrees.
    Local,
    /// We asked, and the peer does not answer.
    TimedOut,
    /// The peer rejected what was already established.
    Rejected(Reason),
}

/// A request that has arrived.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Incoming {
    /// The connection that it may become.
    pub conn: ConnId,
    /// For whom it is.
    pub listener: ListenerId,
    /// Where it came from and to.
    pub address: Address,
    /// The service that is asked for.
    pub service_id: u64,
    /// Addresses in the terms of rdma_cm, if it is a request of rdma_cm.
    pub ip: Option<IpHeader>,
    /// Kind of the connection.
    pub kind: Kind,
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// READs and atomics that we may serve: the peer's depth.
    pub responder_resources: u8,
    /// READs and atomics that we may have outstanding: the peer's resources.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries that the peer wishes for.
    pub retry_count: u8,
    /// RNR retries that the peer wishes for.
    pub rnr_retry_count: u8,
    /// The peer uses a shared receive queue.
    pub srq: bool,
    /// Enhanced connection establishment.
    pub ece: Ece,
    /// Private data as it came, with the header of rdma_cm if there is one.
    pub private_data: PrivateData<92>,
}

impl Incoming {
    /// What the program passed: without the header of rdma_cm.
    pub fn user_data(&self) -> &[u8] {
        user_data(self.ip.is_some(), &self.private_data.0)
    }
}

/// A question for a queue pair that has arrived.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct SidrIncoming {
    /// The question.
    pub sidr: SidrId,
    /// For whom it is.
    pub listener: ListenerId,
    /// Where it came from and to.
    pub address: Address,
    /// The service that is asked for.
    pub service_id: u64,
    /// Addresses in the terms of rdma_cm, if it is a request of rdma_cm.
    pub ip: Option<IpHeader>,
    /// Private data as it came, with the header of rdma_cm if there is one.
    pub private_data: PrivateData<216>,
}

impl SidrIncoming {
    /// What the program passed: without the header of rdma_cm.
    pub fn user_data(&self) -> &[u8] {
        user_data(self.ip.is_some(), &self.private_data.0)
    }
}

fn user_data(header: bool, data: &[u8]) -> &[u8] {
    &data[if header { IpHeader::LEN } else { 0 }..]
}

impl Event {
    /// The connection it is about.
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

    /// The question it is about.
    pub fn sidr(&self) -> Option<SidrId> {
        match self {
            Event::SidrRequest(incoming) => Some(incoming.sidr),
            Event::SidrReply { sidr, .. } | Event::SidrUnreachable { sidr } => Some(*sidr),
            _ => None,
        }
    }
}
