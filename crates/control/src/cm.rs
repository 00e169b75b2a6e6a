//! Messages between the rdma_cm client of a program and the connection manager in ferroced.
//!
//! ferroced owns queue pair 1 and one `ferroce_cm::Cm` for each link. A program calls it
//! with [`CmCall`]s over one connection of the control protocol. Ports, connections and
//! SIDR requests belong to that connection and end with it, as they would with the process.
//! After a restart of ferroced the program binds its ports again by number, listens again,
//! and hands back the records of its established connections ([`CmCall::Resume`]).

use ferroce_cm::ports::Host;
use ferroce_cm::{
    Accept, ConnId, Event, PortSpace, PrivateData, QpParameters, Reason, Request as Connect,
    SidrAnswer, SidrId, SidrRequest, Snapshot,
};
use serde::{Deserialize, Serialize};

/// Handle of a bound port. ferroced uses each number once per connection.
pub type CmPort = u64;

/// Handle of a connection or of a SIDR request on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CmId<T> {
    /// Index of the link.
    pub link: u32,
    /// The connection or SIDR request on the link.
    pub id: T,
}

/// A call of a program to the connection manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CmCall {
    /// Binds to a port: [`CmAnswer::Bound`].
    Bind {
        /// Port space.
        space: PortSpace,
        /// Local address.
        source: Host,
        /// Port number; 0 selects an ephemeral port.
        port: u16,
        /// Address and port of the peer, if they are known.
        destination: Option<(Host, u16)>,
        /// True to share the port with other binds that set this.
        reuse: bool,
        /// True to bind for the IP version of `source` only.
        af_only: bool,
    },
    /// Sets the addresses of the connection from a bound port: [`CmAnswer::Done`].
    SetRoute {
        /// The port.
        port: CmPort,
        /// Local address.
        source: Host,
        /// Address and port of the peer.
        destination: (Host, u16),
    },
    /// Releases a port and stops listening on it: [`CmAnswer::Done`]. Connection requests
    /// that the program has not taken are rejected.
    Release {
        /// The port.
        port: CmPort,
    },
    /// Listens on a bound port: [`CmAnswer::Done`]. A wildcard address covers all links,
    /// including links that are added later.
    Listen {
        /// The port.
        port: CmPort,
        /// Connection requests that may wait for the program.
        backlog: u32,
    },
    /// Sends a connection request to a peer: [`CmAnswer::Connection`].
    Connect {
        /// Index of the link.
        link: u32,
        /// The request. Its queue pair must belong to this process.
        request: Box<Connect>,
    },
    /// Reports that the program has taken a connection request from its event queue, so
    /// that it no longer counts against the backlog: [`CmAnswer::Done`].
    Taken {
        /// The request.
        conn: CmId<ConnId>,
    },
    /// Accepts a connection request: [`CmAnswer::Done`].
    Accept {
        /// The request.
        conn: CmId<ConnId>,
        /// The reply. Its queue pair must belong to this process.
        accept: Box<Accept>,
    },
    /// Rejects a connection request or a response: [`CmAnswer::Done`].
    Reject {
        /// The request or response.
        conn: CmId<ConnId>,
        /// Reason.
        reason: Reason,
        /// Private data.
        private_data: Box<PrivateData<148>>,
    },
    /// Reports that the queue pair is ready after a response, and sends the RTU:
    /// [`CmAnswer::Established`].
    Establish {
        /// The connection.
        conn: CmId<ConnId>,
    },
    /// Reports that data has arrived before the RTU: [`CmAnswer::Done`].
    CommunicationEstablished {
        /// The connection.
        conn: CmId<ConnId>,
    },
    /// Disconnects, or answers the peer's disconnect request: [`CmAnswer::Done`].
    Disconnect {
        /// The connection.
        conn: CmId<ConnId>,
    },
    /// Destroys a connection in any state: [`CmAnswer::Done`]. No more events follow.
    Destroy {
        /// The connection.
        conn: CmId<ConnId>,
    },
    /// Restores a connection that was established before ferroced was restarted:
    /// [`CmAnswer::Connection`].
    Resume {
        /// Index of the link.
        link: u32,
        /// Record of the connection.
        snapshot: Box<Snapshot>,
    },
    /// Sends a SIDR request, which asks a peer for the queue pair of a datagram service:
    /// [`CmAnswer::SidrRequested`].
    SidrRequest {
        /// Index of the link.
        link: u32,
        /// The request.
        request: Box<SidrRequest>,
    },
    /// Reports that the program has taken a SIDR request from its event queue:
    /// [`CmAnswer::Done`].
    SidrTaken {
        /// The SIDR request.
        sidr: CmId<SidrId>,
    },
    /// Answers a peer's SIDR request: [`CmAnswer::Done`].
    SidrAnswer {
        /// The SIDR request.
        sidr: CmId<SidrId>,
        /// The answer. Its queue pair must belong to this process.
        answer: Box<SidrAnswer>,
    },
    /// Destroys a SIDR request, ours or a peer's: [`CmAnswer::Done`].
    SidrDestroy {
        /// The SIDR request.
        sidr: CmId<SidrId>,
    },
}

/// An answer of the connection manager. A call that it refuses is answered by
/// [`Reply::Error`](crate::Reply::Error).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CmAnswer {
    /// Success.
    Done,
    /// The port is bound.
    Bound {
        /// Handle of the port.
        port: CmPort,
        /// Port number.
        number: u16,
    },
    /// The connection exists.
    Connection {
        /// Handle of the connection.
        conn: CmId<ConnId>,
    },
    /// The connection is established.
    Established {
        /// Record of the connection, for a ferroced that is started later.
        snapshot: Box<Snapshot>,
    },
    /// The SIDR request was sent.
    SidrRequested {
        /// Handle of the SIDR request.
        sidr: CmId<SidrId>,
    },
}

/// An event of a connection or of a SIDR request of the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmEvent {
    /// Index of the link.
    pub link: u32,
    /// The event.
    pub event: Event,
    /// Port at which a connection request or SIDR request has arrived; None for other events.
    pub port: Option<CmPort>,
    /// Parameters of the queue pair; with connection requests and responses.
    pub qp: Option<QpParameters>,
    /// Record of a connection that is now established.
    pub snapshot: Option<Snapshot>,
}
