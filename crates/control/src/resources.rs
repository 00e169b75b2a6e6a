//! The objects of a program on a link, as `rdma resource` shows them.
//!
//! Only the program knows them. Who asks ferroced gets the end of a stream for each
//! program; the program gets the other end, and its control thread writes a
//! [`Resources`] into it as JSON. ferroced waits for nobody, and a program that nobody
//! asks has nothing to do.
//!
//! Numbers of objects are those of the program, below the number of its first slot:
//! no two programs of a link have the same.

use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde::{Deserialize, Serialize};

use crate::protocol::Process;

/// The longest report that is read.
const MAX_REPORT: u64 = 256 << 20;
/// How long a program may say nothing. One that is stopped says nothing at all.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a program has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // they are what they are called
pub struct Resources {
    /// The number of the open device.
    pub ctxn: u32,
    pub pds: Vec<PdResource>,
    pub cqs: Vec<CqResource>,
    pub qps: Vec<QpResource>,
    pub mrs: Vec<MrResource>,
    pub srqs: Vec<SrqResource>,
}

/// A protection domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PdResource {
    /// Its number.
    pub pdn: u32,
    /// Objects in it.
    pub users: u32,
}

/// A completion queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CqResource {
    /// Its number.
    pub cqn: u32,
    /// How many completions it holds.
    pub cqe: u32,
    /// Queues that complete in it.
    pub users: u32,
}

/// A queue pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpResource {
    /// Its number.
    pub lqpn: u32,
    /// Its protection domain.
    pub pdn: Option<u32>,
    /// The peer's number, if it is connected.
    pub rqpn: Option<u32>,
    /// The type, in iproute2's words.
    #[serde(rename = "type")]
    pub kind: String,
    /// The state, in iproute2's words.
    pub state: String,
    /// The PSN that is expected next; datagrams have none.
    pub rq_psn: Option<u32>,
    /// The PSN that is sent next.
    pub sq_psn: u32,
    /// Its shared receive queue.
    pub srqn: Option<u32>,
    /// Sends that are posted and not done.
    pub sends: u32,
    /// Receives that are posted and not done.
    pub receives: u32,
}

/// A memory region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MrResource {
    /// Its number.
    pub mrn: u32,
    /// Its keys and address, for those who may know.
    pub keys: Option<MrKeys>,
    /// Its length in bytes.
    pub mrlen: u64,
    /// Its protection domain.
    pub pdn: u32,
}

/// What lets a peer reach memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // as in libibverbs
pub struct MrKeys {
    pub rkey: u32,
    pub lkey: u32,
    pub iova: u64,
}

/// A shared receive queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SrqResource {
    /// Its number.
    pub srqn: u32,
    /// Whether it is one for XRC.
    pub xrc: bool,
    /// Its protection domain.
    pub pdn: u32,
    /// Where its receives complete, if it is one for XRC.
    pub cqn: Option<u32>,
}

/// A connection of a program, or a port that it listens on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmIdResource {
    /// The link.
    pub link: String,
    /// Its number.
    pub cm_idn: u32,
    /// The queue pair, if there is one.
    pub lqpn: Option<u32>,
    /// The type of that queue pair, in iproute2's words.
    pub qp_type: Option<String>,
    /// The state, in iproute2's words.
    pub state: String,
    /// The port space, in iproute2's words.
    pub ps: String,
    /// Whose it is.
    pub pid: u32,
    /// The program's name.
    pub comm: String,
    /// Our address, and the port where it is known.
    pub source: Option<(IpAddr, Option<u16>)>,
    /// The peer's.
    pub destination: Option<(IpAddr, Option<u16>)>,
}

/// A program on a link, and the stream of what it has.
#[derive(Debug)]
pub struct Reporter {
    /// The name of the link.
    pub link: String,
    /// Who.
    pub process: Process,
    /// Where the report comes from; none if the program does not listen.
    pub stream: Option<OwnedFd>,
}

impl Reporter {
    /// Reads the report.
    ///
    /// # Errors
    /// If the program does not answer, or with something else.
    pub fn read(self) -> io::Result<Resources> {
        let silent = || io::Error::new(io::ErrorKind::TimedOut, "it does not answer");
        let stream = self.stream.ok_or_else(silent)?;
        set_socket_timeout(&stream, Timeout::Recv, Some(PATIENCE))?;
        let stream = std::os::unix::net::UnixStream::from(stream);
        let mut text = Vec::new();
        match stream.take(MAX_REPORT).read_to_end(&mut text) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(silent()),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        Ok(serde_json::from_slice(&text)?)
    }
}
