//! The runtime: what makes engines work inside a program.
//!
//! ```text
//!   program's threads: post, poll, arm         ferroced
//!        |                                        | link, slots, events
//!        v                                        v
//!   +--------------------- Device: one link ---------------------+
//!   |  Shard: Engine + sockets + lock          control thread    |
//!   |    ^ progress thread                                       |
//!   +------------------------------------------------------------+
//!        |  ProcessMemory: guarded access to what is registered
//! ```
//!
//! This is the only place that touches the program's memory, and the only one
//! with threads and clocks. It decides nothing about the protocol.

mod address;
mod channel;
mod clock;
mod counters;
mod cq;
mod credits;
mod device;
mod error;
mod event_queue;
mod fork;
mod host;
mod mapping;
mod memory;
mod progress;
mod qp;
mod resources;
mod sched_policy;
mod shard;
mod signals;
mod supervisor;
mod token_pipe;

pub use address::AhAttr;
pub use channel::Channel;
pub use cq::Cq;
pub use device::Device;
pub use error::Error;
pub use event_queue::AsyncEvent;
pub use ferroce_control::{LinkInfo, list_links};
pub use ferroce_transport as transport;
pub use memory::ProcessMemory;
pub use qp::{Posting, Qp};
pub use signals::{Blocked, block_all};
