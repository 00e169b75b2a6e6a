//! Messages between programs and ferroced.
//!
//! One message is one packet of a `SOCK_SEQPACKET` unix socket: JSON, and with some
//! messages descriptors (SCM_RIGHTS). The first request of a connection is
//! [`Request::Hello`], answered by [`Reply::Welcome`]. Every later request carries a
//! [`RequestNumber`], which the client chooses, and so do all replies to it:
//!
//! ```text
//!   {"hello":{"protocol":14,"program":"ib_send_bw"}}   ->
//!                                                     <-  {"welcome":{...}}
//!   [1,"links"]                                       ->
//!   [2,{"cm":{"bind":{...}}}]                         ->
//!                                                     <-  [1,{"link":{...}}]
//!                                                     <-  {"event":{...}}
//!                                                     <-  [2,{"cm_answer":{...}}]
//!                                                     <-  [1,"done"]
//! ```
//!
//! Several requests may be in flight on one connection, and their replies may come in any
//! order. Replies that consist of several packets end with [`Reply::Done`]. Events carry no
//! number and arrive at any time. Hello and Welcome have the same form in every version, so
//! that both ends can name a version that they do not speak.
//!
//! ferroced closes a connection on which it receives a message that it does not understand:
//! all messages of the same [`PROTOCOL`] are known.

use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::cm::{CmAnswer, CmCall, CmEvent};
use crate::link::{LinkConfig, LinkEvent, LinkInfo};
use crate::resources::CmIdResource;

/// The version of the protocol. It changes whenever a message does, and whenever programs exchange
/// something through memory that earlier ones do not understand: ferroced introduces only programs
/// of its own version to each other. From version 12 on, datagrams travel through shared memory, and
/// from version 13 on, streams; version 13 also lists addresses in GID tables during duplicate address
/// detection. From version 14 on, a writer returns to the start of its ring when the ring is empty.
pub const PROTOCOL: u32 = 14;
/// The longest request that ferroced takes.
pub const MAX_REQUEST: usize = 64 << 10;
/// The longest reply: a full GID table is longer than the longest request.
pub const MAX_REPLY: usize = 160 << 10;
/// Most shards of one attachment: their descriptors must fit into one message.
pub const MAX_SHARDS: u8 = 60;

/// Number of a request. A client uses each number once per connection.
pub type RequestNumber = u64;

/// Number of an attachment. A client uses each number once per connection, and may have
/// several attachments on it.
pub type AttachmentNumber = u64;

/// A request of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// The first message of a connection: [`Reply::Welcome`].
    Hello {
        /// Protocol version of the program.
        protocol: u32,
        /// Name of the program, for messages.
        program: String,
    },
    /// Adds a link: [`Reply::Done`].
    LinkAdd(LinkConfig),
    /// Deletes a link: [`Reply::Done`].
    LinkDelete {
        /// Name of the link.
        name: String,
        /// True to delete the link even while programs use it: they lose their device.
        force: bool,
    },
    /// Changes a link: [`Reply::Done`]. Attributes that are None stay as they are.
    LinkSet {
        /// Name of the link.
        name: String,
        /// New name of the link.
        rename: Option<String>,
        /// Largest packet payload; 0 selects the largest that the netdev carries.
        mtu: Option<u32>,
        /// True if programs that open the link from now on check ICRCs.
        crc: Option<bool>,
        /// True if LIDs stand for IPv4 addresses.
        lids: Option<bool>,
        /// Seconds of silence before a peer may be declared dead, for programs that open
        /// the link from now on.
        patience: Option<u32>,
        /// Speed in Mb/s that programs see; 0 selects the netdev's.
        speed: Option<u32>,
        /// True if packets to programs of the same user on this host travel through shared
        /// memory, for queue pairs that are connected from now on.
        local: Option<bool>,
        /// Mode of strict checks for programs that open the link from now on: `on`, `error`
        /// or `off`.
        strict: Option<String>,
        /// Profile of limits for programs that open the link from now on; `off` for none.
        profile: Option<String>,
    },
    /// Puts faults in force on a link, also for running programs, or ends them:
    /// [`Reply::Done`].
    LinkFaults {
        /// Name of the link.
        name: String,
        /// The faults, in the grammar of `ferroce-faults`; empty for none.
        faults: String,
    },
    /// Puts faults in force for the messages of the connection manager that this client's
    /// connections send: [`Reply::Done`].
    Faults {
        /// The faults.
        text: String,
    },
    /// Lists all links: [`Reply::Link`] for each, then [`Reply::Done`].
    Links,
    /// Opens a link without slots, until the connection is closed: [`Reply::Watched`]. Events
    /// of the link follow.
    Watch {
        /// Name of the link.
        link: String,
    },
    /// Takes slots for a program: [`Reply::Attached`]. Events of the link follow.
    Attach {
        /// Number of the attachment, which the client chooses.
        attachment: AttachmentNumber,
        /// Name of the link.
        link: String,
        /// Number of slots.
        shards: u8,
    },
    /// Gives the slots of an attachment back: [`Reply::Done`]. An Attach with this number
    /// that is not answered yet is refused.
    Detach {
        /// Number of the attachment.
        attachment: AttachmentNumber,
    },
    /// Registers slots that the program had before ferroced was restarted: [`Reply::Resumed`].
    /// Descriptors: the socket escrow's two and the credit page, or with
    /// [`SlotKind::Streams`] the counters of each slot.
    Resume {
        /// Number of the attachment on this connection.
        attachment: AttachmentNumber,
        /// Name of the link.
        link: String,
        /// The kind of the slots.
        kind: SlotKind,
        /// The slots.
        slots: Vec<u8>,
    },
    /// Gives back slots that the program had before ferroced was restarted, and did not resume:
    /// [`Reply::Done`].
    Release {
        /// The kind of the slots.
        kind: SlotKind,
        /// The slots of one attachment.
        slots: Vec<u8>,
    },
    /// Asks for a channel through shared memory to a program of the same user:
    /// [`Reply::Introduced`]. The other program receives [`Reply::Introduced`] as an event.
    Introduce {
        /// Number of the attachment.
        attachment: AttachmentNumber,
        /// A slot of the attachment.
        slot: u8,
        /// The slot of the other program.
        peer: u8,
    },
    /// Offers a channel through shared memory for a TCP connection, whose other end may ask for it:
    /// [`Reply::Done`]. If it does, the program receives [`Reply::StreamIntroduced`] as an event.
    OfferStream {
        /// Number of the attachment.
        attachment: AttachmentNumber,
        /// A slot of the attachment.
        slot: u8,
        /// Address of the connection at this end.
        local: SocketAddr,
        /// Address of the connection at the other end.
        peer: SocketAddr,
    },
    /// Asks for a channel through shared memory for a TCP connection, whose other end is a program
    /// of the same user that has offered it: [`Reply::StreamIntroduced`].
    IntroduceStream {
        /// Number of the attachment.
        attachment: AttachmentNumber,
        /// A slot of the attachment.
        slot: u8,
        /// Address of the connection at this end.
        local: SocketAddr,
        /// Address of the connection at the other end.
        peer: SocketAddr,
    },
    /// Subscribes to events of all links: [`Reply::Done`], then events.
    Subscribe,
    /// Reads counters: [`Reply::Counters`] for each link, then [`Reply::Done`].
    Counters {
        /// The only link to report; None for all.
        link: Option<String>,
        /// True to report each running program as well.
        processes: bool,
    },
    /// Lists objects of programs: [`Reply::Resources`] for each program on a link and
    /// [`Reply::CmId`] for each of their connections, then [`Reply::Done`].
    Resources {
        /// The only link to report; None for all.
        link: Option<String>,
    },
    /// Captures packets of programs until the connection is closed: [`Reply::Done`]. An event
    /// [`Reply::Captured`] arrives for each program, also for those that start later.
    Capture(CaptureOptions),
    /// Lists the journals of programs that run, and of some that have ended: [`Reply::Story`] for
    /// each, then [`Reply::Done`].
    Journals,
    /// Calls the connection manager: [`Reply::CmAnswer`] or [`Reply::Error`].
    /// [`Reply::CmEvent`]s follow.
    Cm(CmCall),
    /// Calls the connection manager several times, without any reply: for calls that return
    /// objects, whose refusal means that the object has ended already.
    CmNotices(Vec<CmCall>),
    /// Ends ferroced: [`Reply::Done`]. Programs and their slots stay.
    Shutdown,
}

/// A reply or an event of ferroced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The reply to [`Request::Hello`].
    Welcome {
        /// Protocol version of ferroced.
        protocol: u32,
        /// Release of ferroced.
        version: String,
        /// Process number of ferroced in its own PID namespace.
        pid: u32,
    },
    /// Success, or the end of a list.
    Done,
    /// One link of the list.
    Link(LinkInfo),
    /// The link is open on this connection.
    Watched {
        /// Current state of the link.
        link: LinkInfo,
    },
    /// The requested slots. Descriptors: the escrow's two, the credit page, then those of each
    /// slot. With [`SlotKind::Streams`] only the counters of each slot.
    Attached {
        /// Number of the attachment.
        attachment: AttachmentNumber,
        /// Current state of the link.
        link: LinkInfo,
        /// The slots.
        slots: Vec<SlotGrant>,
    },
    /// The slots belong to the program again.
    Resumed {
        /// Current state of the link; None if it was deleted.
        link: Option<LinkInfo>,
    },
    /// A channel to another program, as a reply to [`Request::Introduce`] or as an event. Two
    /// descriptors: the shared memory, and this program's socket.
    Introduced {
        /// Number of the attachment.
        attachment: AttachmentNumber,
        /// The slot of the attachment.
        slot: u8,
        /// The slot of the other program.
        peer: u8,
        /// True for the program that asked for the channel.
        asked: bool,
    },
    /// A channel for a TCP connection, as a reply to [`Request::IntroduceStream`], or as an event
    /// for the program that has offered it. Two descriptors: the shared memory, and this
    /// program's socket.
    StreamIntroduced {
        /// Number of the attachment.
        attachment: AttachmentNumber,
        /// The slot of the attachment.
        slot: u8,
        /// Address of the connection at this end.
        local: SocketAddr,
        /// Address of the connection at the other end.
        peer: SocketAddr,
    },
    /// Counters of a link, or of one program on a link.
    Counters(LinkCounters),
    /// A program on a link. One descriptor: the stream of its list of
    /// [`Resources`](crate::resources::Resources); none if the program does not read its
    /// connection. A program has one reply per attachment.
    Resources {
        /// Name of the link.
        link: String,
        /// The program.
        process: Process,
    },
    /// A connection of a program.
    CmId(CmIdResource),
    /// Event: a client of [`Request::Resources`] wants a report of an attachment. One
    /// descriptor: the stream to write the report to.
    Report {
        /// The attachment whose objects are wanted.
        attachment: AttachmentNumber,
        /// True if the report may contain keys and addresses.
        keys: bool,
    },
    /// Event: a program that is captured. Two descriptors: the ring of its packets, and a socket
    /// on which it wakes the reader.
    Captured {
        /// Name of the link.
        link: String,
        /// The program.
        process: Process,
    },
    /// Event: packets of an attachment are wanted. Two descriptors: the ring to write them to,
    /// and a socket to wake the reader. The event may precede [`Reply::Attached`].
    Tap {
        /// The attachment.
        attachment: AttachmentNumber,
    },
    /// Event: the journal of an attachment, to which the program writes failures. One descriptor:
    /// its shared memory. The event may precede [`Reply::Attached`].
    Journal {
        /// The attachment.
        attachment: AttachmentNumber,
    },
    /// The journal of a program. One descriptor: its shared memory.
    Story {
        /// Name of the link.
        link: String,
        /// The program.
        process: Process,
        /// Seconds since the program ended; None if it runs.
        ended_ago: Option<u64>,
    },
    /// The answer of the connection manager.
    CmAnswer(CmAnswer),
    /// Event of a connection or of a SIDR request.
    CmEvent(Box<CmEvent>),
    /// The request is refused.
    Error {
        /// Reason as an errno.
        errno: i32,
        /// Reason in words, with the remedy.
        message: String,
    },
    /// Event of a link.
    Event(LinkEvent),
}

/// The packets of a capture.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureOptions {
    /// The only link; None for all.
    pub link: Option<String>,
    /// The only process, by its number in ferroced's PID namespace.
    pub pid: Option<u32>,
    /// The only program, by the name in its Hello.
    pub program: Option<String>,
    /// The only queue pair, at either end of a packet.
    pub qpn: Option<u32>,
    /// Most bytes of each packet, from the BTH on.
    pub snap: u32,
}

/// The kind of an attachment's slots. Each kind has numbers of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotKind {
    /// Slots of the group of sockets on UDP port 4791, for RoCE.
    #[default]
    Udp,
    /// Slots without sockets, for iWARP: programs open their own TCP sockets. A slot gives the
    /// queue pairs their numbers, and has counters.
    Streams,
}

impl SlotKind {
    /// Returns the kind of slots that a link has.
    pub fn of(link: &LinkInfo) -> SlotKind {
        match link.is_iwarp() {
            true => SlotKind::Streams,
            false => SlotKind::Udp,
        }
    }
}

/// One slot. Its descriptors are the IPv4 socket, the IPv6 socket if there is one, and the
/// counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotGrant {
    /// Slot number: the top byte of its QPNs.
    pub slot: u8,
    /// True if there is an IPv6 socket.
    pub v6: bool,
}

/// Values of counters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounters {
    /// Name of the link.
    pub link: String,
    /// The program that has counted; None for the whole link.
    pub process: Option<Process>,
    /// Names and values, in the order of rxe.
    pub values: Vec<(String, u64)>,
}

/// A program that uses a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process number in ferroced's PID namespace.
    pub pid: u32,
    /// Name from the program's Hello.
    pub program: String,
    /// Slots of the program on the link.
    pub slots: Vec<u8>,
}

impl Reply {
    /// Returns an error reply.
    pub fn error(errno: i32, message: impl Into<String>) -> Reply {
        Reply::Error {
            errno,
            message: message.into(),
        }
    }
}

/// The error for a packet that is not a message of this protocol.
#[derive(Debug, thiserror::Error)]
#[error("not a message of control protocol {PROTOCOL}: {0}")]
pub struct Garbage(serde_json::Error);

/// Encodes a message that has no number: Hello, Welcome or an event.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Plain enums with string keys: serde_json has nothing to refuse.
    serde_json::to_vec(message).expect("messages are valid JSON")
}

/// Encodes a message with its request number, if it has one.
pub fn encode_numbered<T: Serialize>(number: Option<RequestNumber>, message: &T) -> Vec<u8> {
    match number {
        Some(number) => encode(&(number, message)),
        None => encode(message),
    }
}

/// Decodes a message that has no number from bytes that any process may have sent.
pub fn decode<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, Garbage> {
    serde_json::from_slice(bytes).map_err(Garbage)
}

/// Decodes a message and its request number, if it has one.
pub fn decode_numbered<T: for<'de> Deserialize<'de>>(
    bytes: &[u8],
) -> Result<(Option<RequestNumber>, T), Garbage> {
    // No message is a JSON array itself.
    match bytes.first() {
        Some(b'[') => decode(bytes).map(|(number, message)| (Some(number), message)),
        _ => decode(bytes).map(|message| (None, message)),
    }
}
