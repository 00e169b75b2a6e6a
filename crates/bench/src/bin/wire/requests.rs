//! The requests of the coordinator to the workers.

use std::net::{IpAddr, SocketAddr};

use ferroce_endpoint::Introduction;
use serde::{Deserialize, Serialize};

/// The measured path MTUs. The endpoint with the same index uses each of them.
pub(crate) const MTUS: [u32; 2] = [1024, 4096];

/// A request to a worker. The reply is stated for each; after an error the worker exits
/// instead.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Add a link. Reply: `()`.
    Link { name: String, netdev: String },
    /// Open a device with an endpoint for each MTU. Reply: their introductions.
    Open { link: String, gid_index: u8 },
    /// Connect the endpoints. Reply: `()`.
    Connect(Vec<Introduction>),
    /// Open plain sockets of both kinds on this address. Reply: their addresses.
    Plain(IpAddr),
    /// Connect the plain sockets. Reply: `()`.
    Reach([SocketAddr; 2]),
    /// Run the passive half of a task. Replies: `()` before and `()` after it.
    Respond(Task),
    /// Run the active half of a task. Reply: a [`Figure`].
    Initiate(Task),
}

/// A measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Task {
    /// WRITEs of `size` bytes through an endpoint, for `ms` milliseconds.
    Write { end: usize, size: u32, ms: u64 },
    /// Ping-pong of 8-byte WRITEs, `times` round trips.
    WritePingPong { end: usize, times: u32 },
    /// Ping-pong of 8-byte SENDs.
    SendPingPong { end: usize, times: u32 },
    /// Runs of plain datagrams with `payload` bytes each.
    BareStream { payload: usize, ms: u64 },
    /// Ping-pong of plain datagrams.
    BarePingPong { times: u32 },
    /// Ping-pong of plain datagrams, sent and received as an RC queue pair must.
    FloorPingPong { times: u32 },
    /// No work for `ms` milliseconds.
    Idle { ms: u64 },
}

/// The result of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Figure {
    /// Bytes per second.
    Rate(f64),
    /// Seconds of half a round trip.
    Latency(f64),
    /// Activity of the device's threads.
    Idle { wakeups: u64, cpu_ns: u64 },
}
