//! What the stage tells the workers.

use std::net::{IpAddr, SocketAddr};

use ferroce_endpoint::Introduction;
use serde::{Deserialize, Serialize};

/// The path MTUs that are measured; endpoints are numbered like them.
pub(crate) const MTUS: [u32; 2] = [1024, 4096];

/// An order. Each is answered: with what is said beside it, or by the worker's end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Make a link. Answered with `()`.
    Link { name: String, netdev: String },
    /// Open a device with an endpoint for each MTU. Answered with their introductions.
    Open { link: String, gid_index: u8 },
    /// Connect the endpoints. Answered with `()`.
    Connect(Vec<Introduction>),
    /// Open plain sockets on this address, of both kinds. Answered with where they are.
    Plain(IpAddr),
    /// Connect the plain sockets. Answered with `()`.
    Reach([SocketAddr; 2]),
    /// Do the answering half of a task. Answered with `()`, once before and once after.
    Answer(Task),
    /// Do the asking half of a task. Answered with a [`Figure`].
    Ask(Task),
}

/// Something to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Task {
    /// WRITEs of so many bytes through an endpoint, for so many milliseconds.
    Write { end: usize, size: u32, ms: u64 },
    /// WRITEs of eight bytes back and forth, so many round trips.
    WritePingPong { end: usize, times: u32 },
    /// SENDs of eight bytes back and forth.
    SendPingPong { end: usize, times: u32 },
    /// Runs of plain datagrams with so many bytes of payload each.
    BareStream { payload: usize, ms: u64 },
    /// Plain datagrams back and forth.
    BarePingPong { times: u32 },
    /// The same, the way a reliable queue pair must send and receive them.
    FramedPingPong { times: u32 },
    /// Nothing, for so many milliseconds.
    Idle { ms: u64 },
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Figure {
    /// Bytes a second.
    Rate(f64),
    /// Seconds one way.
    Latency(f64),
    /// What our threads did meanwhile.
    Idle { wakeups: u64, cpu_ns: u64 },
}
