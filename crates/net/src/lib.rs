//! How packets travel: UDP port 4791, shared by every process of the machine.
//!
//! ```text
//!                     UDP port 4791, one group of sockets per IP family
//!   network --> BPF: byte 5 of the payload, the top byte of the destination QPN
//!                 |        |        |
//!              slot 0   slot 1   slot 2  ...   SlotSockets, made in order by the daemon,
//!                 |        |        |          passed to their owners
//!              Receiver Receiver Receiver      batches in, runs of datagrams out
//!                          |        ^
//!                          '--------'          forward: foreign packets of merged buffers
//!
//!   Sender: sockets of their own, one per UDP source port --> network
//! ```
//!
//! This is the only layer with sockets. It knows addresses, ports, system calls
//! and which slot a packet is for (one byte); what else is in a packet, who
//! acknowledges it and whether it was lost is the transport's business. It has no
//! threads, no clock and no memory of peers.
//!
//! * [`create_slot`] makes the sockets of a slot.
//! * [`Receiver`] reads one slot's sockets: `recvmmsg`, `UDP_GRO`, and for each
//!   datagram what its IP header said.
//! * [`Sender`] writes runs of packets: `UDP_SEGMENT`, source port, address,
//!   traffic class and hop limit as the [`Path`](ferroce_transport::Path) says.
//! * [`Wire`] is what a shard needs of all this; [`UdpWire`] is its implementation.
//! * [`Features`] says what the kernel lacks; everything has a fallback except the
//!   steering itself.
//!
//! No packet costs an allocation. Nothing blocks.

mod address;
mod bind_error;
mod control;
mod features;
mod forward;
mod incoming;
mod multicast;
mod path_probe;
mod port_table;
mod private;
mod receiver;
mod recv_ring;
mod segments;
mod send_error;
mod sender;
mod slot;
mod socket;
mod sorter;
mod steering;
mod syscall;
mod tx_message;
mod tx_ports;
mod udp_wire;
mod wire;

pub use bind_error::{BindError, Holder};
pub use features::{Features, probe};
pub use incoming::{Incoming, IncomingRun};
pub use path_probe::{Passage, probe_path};
pub use private::{enter_private_network, set_loopback_up};
pub use receiver::{ReceiveStats, Receiver};
pub use send_error::{PartialSend, SendError};
pub use sender::{RUN_LIMITS, Sender, TxRun};
pub use slot::{SlotSockets, create_slot, create_slot_with};
pub use steering::{qpns_of_slot, slot_of_qpn};
pub use udp_wire::UdpWire;
pub use wire::{IpIds, Properties, Scope, Source, Wire};
