//! The objects of a program on a link, as `rdma resource` shows them.
//!
//! Only the program has this data. A client of `rdma resource` receives one end of a socket
//! pair per program. The program receives the other end, and its control thread writes a list
//! of [`Resources`] as JSON, one for each open device. ferroced does not wait for programs, and a program does this work
//! only when a client asks.
//!
//! The numbers of objects are those of the program, with its first slot in the upper bits:
//! they are unique among the programs of a link.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde::{Deserialize, Serialize};

use crate::protocol::Process;

/// Longest report that a client reads.
const MAX_REPORT: u64 = 256 << 20;
/// Time to wait for data of a program, which may be stopped.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The objects of a program on one open device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it
pub struct Resources {
    /// The number of the open device.
    pub ctxn: u32,
    pub pds: Vec<PdResource>,
    pub cqs: Vec<CqResource>,
    pub qps: Vec<QpResource>,
    pub mrs: Vec<MrResource>,
    pub srqs: Vec<SrqResource>,
    /// Connections on a link of type siw, which only the program knows. The first device of a
    /// program has those of all its devices on the link.
    #[serde(default)]
    pub streams: Vec<StreamResource>,
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
    /// Capacity in completions.
    pub cqe: u32,
    /// Queues that use it.
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
    /// The next expected PSN; none for datagram queue pairs.
    pub rq_psn: Option<u32>,
    /// The next PSN to send.
    pub sq_psn: u32,
    /// Its shared receive queue.
    pub srqn: Option<u32>,
    /// The reason of its last failure.
    pub failure: Option<String>,
    /// Posted sends that are not completed.
    pub sends: u32,
    /// Posted receives that are not completed.
    pub receives: u32,
    /// The wire of a connected queue pair, or that of the last datagram: `local` for shared
    /// memory, `udp` or `tcp`.
    pub wire: Option<String>,
    /// Its packets in flight and its retries.
    #[serde(default)]
    pub activity: QpActivity,
}

/// The packets in flight and the retries of a queue pair. All are 0 for iWARP, where TCP has
/// them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpActivity {
    /// Bytes that may be in flight.
    pub window: u32,
    /// Bytes in flight.
    pub in_flight: u32,
    /// Smoothed round trip in nanoseconds; 0 before the first measurement.
    pub rtt_ns: u32,
    /// The oldest unacknowledged PSN.
    pub una: u32,
    /// Request packets that are not acknowledged.
    pub unacked: u32,
    /// Retries so far.
    pub retries: u32,
    /// RNR NAKs received so far.
    pub rnr_rcvd: u32,
    /// RNR NAKs sent so far.
    pub rnr_sent: u32,
}

/// A memory region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MrResource {
    /// Its number.
    pub mrn: u32,
    /// Keys and address, if the client may see them.
    pub keys: Option<MrKeys>,
    /// Its length in bytes.
    pub mrlen: u64,
    /// Its protection domain.
    pub pdn: u32,
}

/// Keys and address of a memory region.
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
    /// True for an XRC shared receive queue.
    pub xrc: bool,
    /// Its protection domain.
    pub pdn: u32,
    /// Completion queue of an XRC shared receive queue.
    pub cqn: Option<u32>,
}

/// A connection on a link of type siw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamResource {
    /// Its number.
    pub cm_idn: u32,
    /// The queue pair, if there is one.
    pub lqpn: Option<u32>,
    /// The state, in iproute2's words.
    pub state: String,
    /// The local address and port.
    pub source: Option<SocketAddr>,
    /// The peer's address and port.
    pub destination: Option<SocketAddr>,
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
    /// PID of the program.
    pub pid: u32,
    /// The program's name.
    pub comm: String,
    /// The local address, and the port if known.
    pub source: Option<(IpAddr, Option<u16>)>,
    /// The peer's address, and the port if known.
    pub destination: Option<(IpAddr, Option<u16>)>,
}

/// A program on a link, and the stream of its report.
#[derive(Debug)]
pub struct Reporter {
    /// The name of the link.
    pub link: String,
    /// The program.
    pub process: Process,
    /// The stream of the report; none if the program has no control thread.
    pub stream: Option<OwnedFd>,
}

impl Reporter {
    /// Reads the report of the program: the objects of each open device.
    ///
    /// # Errors
    /// If the program does not answer in time, or sends an invalid report.
    pub fn read(self) -> io::Result<Vec<Resources>> {
        let silent = || io::Error::new(io::ErrorKind::TimedOut, "the program does not answer");
        let stream = self.stream.ok_or_else(silent)?;
        set_socket_timeout(&stream, Timeout::Recv, Some(TIMEOUT))?;
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
