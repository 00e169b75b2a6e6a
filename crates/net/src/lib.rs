//! UDP sockets for RoCEv2: one port, 4791, shared by all processes of the machine.
//!
//! ```text
//!                     UDP port 4791, one group of sockets per IP family
//!   network --> BPF: byte 5 of the payload, the top byte of the destination QPN
//!                 |        |        |
//!              slot 0   slot 1   slot 2  ...   SlotSockets, created in order by ferroced,
//!                 |        |        |          sent to the programs that own them
//!              Receiver Receiver Receiver      reads batches, returns runs of datagrams
//!                          |        ^
//!                          '--------'          forward: packets of another slot
//!
//!   Sender: sockets of their own, one per UDP source port --> network
//! ```
//!
//! This is the only layer with sockets that carry packets. It knows addresses, ports,
//! system calls, and one byte of each packet: the slot. Headers, checksums,
//! acknowledgements and losses are the transport's. The layer has no threads, no clock
//! and no state per peer.
//!
//! * [`create_slot`] creates the sockets of a slot.
//! * [`Receiver`] reads one slot's sockets with `recvmmsg` and `UDP_GRO`, and returns the
//!   fields of the IP header with each datagram.
//! * [`Sender`] sends runs of packets with `UDP_SEGMENT`. Source port, addresses, traffic
//!   class and hop limit come from the [`Path`](ferroce_roce::Path).
//! * [`Wire`] is the interface of a shard to the network; [`UdpWire`] implements it.
//! * [`Features`] lists the kernel features in use. Each has a fallback, except the BPF
//!   program that steers packets to slots.
//!
//! Sending and receiving allocate nothing and never block.

mod address;
mod bind_error;
mod control;
mod features;
mod forward;
mod host;
mod incoming;
pub mod local;
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
pub use host::has_address;
pub use incoming::{Incoming, IncomingRun};
pub use path_probe::{Passage, probe_path};
pub use port_table::tcp_port_holder;
pub use private::{enter_private_network, set_loopback_up};
pub use receiver::{ReceiveStats, Receiver};
pub use send_error::{PartialSend, SendError};
pub use sender::{RUN_LIMITS, Sender, TxRun};
pub use slot::{SlotSockets, create_slot, create_slot_with};
pub use steering::{qpns_of_slot, slot_of_qpn};
pub use udp_wire::{UdpSender, UdpWire};
pub use wire::{IpIds, Properties, Scope, Source, Wire, WireSender};
