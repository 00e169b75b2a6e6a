//! The messages.
//!
//! One message is one packet of a `SOCK_SEQPACKET` unix socket: JSON, and with some
//! messages descriptors (SCM_RIGHTS). The first request of a connection is
//! [`Request::Hello`]. Each request is answered; answers that consist of several
//! packets end with [`Reply::Done`]. Events come in between at any time.
//!
//! A daemon that meets a message it does not understand closes the connection: two
//! ends of the same [`PROTOCOL`] have nothing unknown to say to each other.

use serde::{Deserialize, Serialize};

use crate::cm::{CmAnswer, CmCall, CmEvent};
use crate::link::{LinkConfig, LinkEvent, LinkInfo};
use crate::resources::CmIdResource;

/// The version of the protocol. It changes whenever a message does.
pub const PROTOCOL: u32 = 5;
/// The longest request that ferroced takes.
pub const MAX_REQUEST: usize = 64 << 10;
/// The longest reply: a full GID table is longer than the longest request.
pub const MAX_REPLY: usize = 160 << 10;
/// Most shards of one attachment: their descriptors must fit into one message.
pub const MAX_SHARDS: u8 = 60;

/// What programs ask of ferroced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// The first message. Answered by [`Reply::Welcome`].
    Hello {
        /// The version that the program speaks.
        protocol: u32,
        /// Its name, for people.
        program: String,
    },
    /// Adds a link: [`Reply::Done`].
    LinkAdd(LinkConfig),
    /// Deletes a link: [`Reply::Done`].
    LinkDelete {
        /// Which.
        name: String,
        /// Even while programs use it: their device goes away.
        force: bool,
    },
    /// Changes a link: [`Reply::Done`]. What is not given stays as it is.
    LinkSet {
        /// Which.
        name: String,
        /// What it shall be called from now on.
        rename: Option<String>,
        /// The largest packet payload; 0 is what the netdev allows.
        mtu: Option<u32>,
        /// Whether ICRCs are checked, by programs that open the link from now on.
        crc: Option<bool>,
        /// Whether LIDs stand for IPv4 addresses.
        lids: Option<bool>,
        /// Seconds of silence after which a peer may be declared dead at the earliest, for
        /// programs that open the link from now on.
        patience: Option<u32>,
    },
    /// All links: [`Reply::Link`] for each, then [`Reply::Done`].
    Links,
    /// Slots for a program: [`Reply::Attached`]. Events of the link follow by themselves.
    Attach {
        /// The link to use.
        link: String,
        /// How many slots.
        shards: u8,
    },
    /// Slots that the program had before ferroced was restarted, with the two
    /// descriptors of its parcel and the credit page: [`Reply::Resumed`].
    Resume {
        /// The link.
        link: String,
        /// The slots.
        slots: Vec<u8>,
    },
    /// Events of all links: [`Reply::Done`], then events.
    Subscribe,
    /// Counters: [`Reply::Counters`] for each link, then [`Reply::Done`].
    Counters {
        /// Of this link only.
        link: Option<String>,
        /// Those of each running program as well.
        processes: bool,
    },
    /// What programs have: [`Reply::Resources`] for each program on a link and
    /// [`Reply::CmId`] for each of their connections, then [`Reply::Done`].
    Resources {
        /// On this link only.
        link: Option<String>,
    },
    /// Something for the connection manager: [`Reply::CmAnswer`] or [`Reply::Error`].
    /// [`Reply::CmEvent`] follow by themselves.
    Cm(CmCall),
    /// Asks ferroced to end: [`Reply::Done`]. Programs and their slots stay.
    Shutdown,
}

/// What ferroced says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The answer to Hello.
    Welcome {
        /// The version that ferroced speaks.
        protocol: u32,
        /// Its release.
        version: String,
        /// Its process.
        pid: u32,
    },
    /// It is done, or there is no more to list.
    Done,
    /// One link of the list.
    Link(LinkInfo),
    /// The slots asked for. Descriptors: the parcel's two, the credit page, then those
    /// of each slot.
    Attached {
        /// The link now.
        link: LinkInfo,
        /// The slots.
        slots: Vec<SlotGrant>,
    },
    /// The slots are the program's again.
    Resumed {
        /// The link now, if it still exists.
        link: Option<LinkInfo>,
    },
    /// Counters of a link, or of one program on a link.
    Counters(LinkCounters),
    /// A program on a link. One descriptor: the stream of its
    /// [`Resources`](crate::resources::Resources); none if it does not listen.
    Resources {
        /// The name of the link.
        link: String,
        /// The program.
        process: Process,
    },
    /// A connection of a program.
    CmId(CmIdResource),
    /// Somebody wants to know what this program has. One descriptor: the stream to
    /// write it to.
    Report {
        /// Whether they may know keys and addresses.
        keys: bool,
    },
    /// What the connection manager answers.
    CmAnswer(CmAnswer),
    /// Something happened to a connection.
    CmEvent(Box<CmEvent>),
    /// No.
    Error {
        /// The reason as an errno.
        errno: i32,
        /// The reason in words, with the remedy.
        message: String,
    },
    /// Something happened to a link.
    Event(LinkEvent),
}

/// One slot, and which descriptors come with it: the IPv4 socket, then the IPv6 socket
/// if there is one, then the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotGrant {
    /// Its number: the top byte of its QPNs.
    pub slot: u8,
    /// Whether there is an IPv6 socket.
    pub v6: bool,
}

/// Values of counters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounters {
    /// The link.
    pub link: String,
    /// The program whose share this is; none for the whole link.
    pub process: Option<Process>,
    /// Name and value, in the order of rxe.
    pub values: Vec<(String, u64)>,
}

/// A program that uses a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its process number, as ferroced sees it.
    pub pid: u32,
    /// The name it gave.
    pub program: String,
    /// Its slots on the link.
    pub slots: Vec<u8>,
}

impl Reply {
    /// An error reply.
    pub fn error(errno: i32, message: impl Into<String>) -> Reply {
        Reply::Error {
            errno,
            message: message.into(),
        }
    }
}

/// What a packet that cannot be understood is.
#[derive(Debug, thiserror::Error)]
#[error("not a message of control protocol {PROTOCOL}: {0}")]
pub struct Garbage(serde_json::Error);

/// A message as bytes.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Plain enums with string keys: serde_json has nothing to refuse.
    serde_json::to_vec(message).expect("messages are valid JSON")
}

/// A message from bytes that anybody may have sent.
pub fn decode<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, Garbage> {
    serde_json::from_slice(bytes).map_err(Garbage)
}
