//! What librdmacm and the connection manager in ferroced say to each other.
//!
//! ferroced has queue pair 1 and, for each link, one `ferroce_cm::Cm`; programs
//! have rdma_cm's ids. A program's line for connections is a connection of its
//! own. What it owns (ports, connections, questions) ends with the line, as it
//! would with the process. After a restart of ferroced the program binds its
//! ports again, by number, listens again, and hands back the records of its
//! established connections ([`CmCall::Resume`]).

use ferroce_cm::ports::Host;
use ferroce_cm::{
    Accept, ConnId, Event, PortSpace, PrivateData, QpParameters, Reason, Request as Connect,
    SidrAnswer, SidrId, SidrRequest, Snapshot,
};
use serde::{Deserialize, Serialize};

/// A bound port, as ferroced numbers them; never used twice on one line.
pub type CmPort = u64;

/// A connection or a question (of service ID resolution): one of a link's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CmId<T> {
    /// The index of the link.
    pub link: u32,
    /// The connection or question on it.
    pub id: T,
}

/// What a program asks of the connection manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CmCall {
    /// Binds to a port: [`CmAnswer::Bound`].
    Bind {
        /// In which port space.
        space: PortSpace,
        /// For which of our addresses.
        source: Host,
        /// Which port; 0 is any.
        port: u16,
        /// Where the connection is to lead, if that is known.
        destination: Option<(Host, u16)>,
        /// Share the port with others who say so too.
        reuse: bool,
        /// Do not mind the other IP version.
        af_only: bool,
    },
    /// Where the connection from a bound port leads: [`CmAnswer::Done`].
    SetRoute {
        /// The port.
        port: CmPort,
        /// From which address.
        source: Host,
        /// Where to.
        destination: (Host, u16),
    },
    /// Gives up a port, and stops listening on it: [`CmAnswer::Done`]. Requests
    /// that the program has not taken are refused.
    Release {
        /// The port.
        port: CmPort,
    },
    /// Listens on a bound port: [`CmAnswer::Done`]. On a wildcard address that
    /// means all links, those to come as well.
    Listen {
        /// The port.
        port: CmPort,
        /// How many requests may wait for the program.
        backlog: u32,
    },
    /// Asks a peer for a connection: [`CmAnswer::Connection`].
    Connect {
        /// The link to use.
        link: u32,
        /// What to ask. Its queue pair must be one of this process.
        request: Box<Connect>,
    },
    /// The program has taken a request from its queue: [`CmAnswer::Done`].
    Taken {
        /// The request.
        conn: CmId<ConnId>,
    },
    /// Says yes to a request: [`CmAnswer::Done`].
    Accept {
        /// The request.
        conn: CmId<ConnId>,
        /// The yes. Its queue pair must be one of this process.
        accept: Box<Accept>,
    },
    /// Says no to a request or to a response: [`CmAnswer::Done`].
    Reject {
        /// The request or response.
        conn: CmId<ConnId>,
        /// Why.
        reason: Reason,
        /// Private data.
        private_data: Box<PrivateData<148>>,
    },
    /// The queue pair is ready after a response: [`CmAnswer::Established`].
    Establish {
        /// The connection.
        conn: CmId<ConnId>,
    },
    /// Data has arrived before the RTU: [`CmAnswer::Done`].
    CommunicationEstablished {
        /// The connection.
        conn: CmId<ConnId>,
    },
    /// Ends a connection, or agrees to its end: [`CmAnswer::Done`].
    Disconnect {
        /// The connection.
        conn: CmId<ConnId>,
    },
    /// The program is done with a connection in whatever state:
    /// [`CmAnswer::Done`]. There are no more events.
    Destroy {
        /// The connection.
        conn: CmId<ConnId>,
    },
    /// An established connection from before ferroced was restarted:
    /// [`CmAnswer::Connection`].
    Resume {
        /// The link.
        link: u32,
        /// Its record.
        snapshot: Box<Snapshot>,
    },
    /// Asks a peer for a queue pair for datagrams: [`CmAnswer::Question`].
    Ask {
        /// The link to use.
        link: u32,
        /// What to ask.
        question: Box<SidrRequest>,
    },
    /// The program has taken a question from its queue: [`CmAnswer::Done`].
    TakenQuestion {
        /// The question.
        question: CmId<SidrId>,
    },
    /// Answers a question: [`CmAnswer::Done`].
    Answer {
        /// The question.
        question: CmId<SidrId>,
        /// The answer. Its queue pair must be one of this process.
        answer: Box<SidrAnswer>,
    },
    /// Gives up a question, ours or a peer's: [`CmAnswer::Done`].
    DropQuestion {
        /// The question.
        question: CmId<SidrId>,
    },
}

/// What the connection manager answers. A call that cannot be served is answered by
/// [`Reply::Error`](crate::Reply::Error).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CmAnswer {
    /// It is done.
    Done,
    /// A port is bound.
    Bound {
        /// What names it in other calls.
        port: CmPort,
        /// Its number.
        number: u16,
    },
    /// A connection has come to be.
    Connection {
        /// Its name.
        conn: CmId<ConnId>,
    },
    /// A connection is established.
    Established {
        /// Its record, for a ferroced that is started later.
        snapshot: Box<Snapshot>,
    },
    /// A question was sent.
    Question {
        /// Its name.
        question: CmId<SidrId>,
    },
}

/// Something that happened to a connection or question of the program's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmEvent {
    /// The index of the link.
    pub link: u32,
    /// What happened.
    pub event: Event,
    /// The port at which a request or question has arrived; else none.
    pub port: Option<CmPort>,
    /// What is now known for the queue pair: with requests and responses.
    pub qp: Option<QpParameters>,
    /// The record of a connection that is now established.
    pub snapshot: Option<Snapshot>,
}
