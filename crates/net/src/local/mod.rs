//! The local wire: packets between two programs of one host, through memory that they share.
//!
//! ```text
//!   program A, slot 3                                     program B, slot 5
//!   HostSender -- copy in --> ring 0 (shared memory) -- copy out --> HostWire
//!   HostWire  <-- copy out -- ring 1 (shared memory) <-- copy in --- HostSender
//!       ^                                                               |
//!       '---- a pair of unix sockets: the bells, and the end; bells -----'
//! ```
//!
//! ferroced creates the memory and the sockets for two slots ([`create_channel`]) and sends
//! them to the two programs. It keeps neither: the programs need it no more. Each program
//! makes an [`End`] of them.
//!
//! * [`ring`] is the protocol of one direction, without I/O. `memory` is the mapping, and the
//!   only unsafe code.
//! * [`End`] is a program's end of a channel. The kernel closes the socket of a process that
//!   dies, and so the other end learns of it.
//! * [`Doorbell`] makes a descriptor readable when a packet arrives while a thread sleeps: that of its
//!   bell, a pipe that the other ends write to.
//! * [`Inbound`] and [`Outbound`] are the channels of a slot, without I/O: records of runs, wakeups,
//!   full rings, and the end of the other process. The simulator runs them, too.
//! * [`StreamEnd`] carries the bytes of one iWARP connection through a channel of its own.
//! * [`HostWire`] is the wire of a program: UDP sockets, and channels. The path of a packet
//!   names the wire.
//!
//! Packets are the same on both wires, except that no ICRC is computed in memory. Long
//! messages travel as runs, as UDP_SEGMENT and UDP_GRO carry them.

mod bell;
mod bugs;
mod channels;
#[cfg(test)]
mod crash_tests;
mod doorbell;
mod end;
#[cfg(test)]
mod front_tests;
mod host_addresses;
mod host_wire;
mod memory;
mod record;
pub mod ring;
mod stream;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;
mod this_process;

#[cfg(feature = "bugs")]
pub use bugs::{Bug, Injected};
pub use channels::{Endpoint, Inbound, Outbound, is_enough};
pub use doorbell::Doorbell;
pub use end::{End, Readiness, Side, create_channel};
pub use host_addresses::HostLookup;
pub use host_wire::{HostSender, HostWire};
pub use memory::{CHANNEL_SIZE, RingView};
pub use record::encode as encode_record;
pub use stream::{MAX_STREAM_RECORD, StreamEnd};

/// The atomics of [`ring`]. `loom/` compiles the same file with atomics of its own.
mod sync {
    pub(super) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
