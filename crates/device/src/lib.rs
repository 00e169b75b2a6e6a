//! The runtime: it runs the shards of a device inside a program.
//!
//! ```text
//!   program's threads: post, poll, arm         control client of the process
//!        |                                        | link, slots, events
//!        v                                        v
//!   +----- Device: objects, events -----+ +--- Device ... ---+
//!   +------------------------------------------------------------+
//!   |  SharedLink: the slots of one link                         |
//!   |  Shard: Core + lock          Directory   Supervisor        |
//!   |    ^ progress thread                                       |
//!   +------------------------------------------------------------+
//!        |  ProcessMemory: guarded access to registered memory
//! ```
//!
//! Only this crate accesses the program's memory. It has the clock and the threads of the data
//! path; `ferroce_rdmacm` and `ferroce_rsocket` have threads of their own for connections and
//! keepalives. It makes no decision about packets: `ferroce_shard` and `ferroce_roce` do.
//!
//! # Using it
//!
//! The objects and their rules are those of verbs. A program opens a [`Device`], registers
//! memory, creates a [`Cq`] and a [`Qp`], moves the queue pair to RTS, posts work requests and
//! polls for completions. `examples/write.rs` is a whole program: an RDMA WRITE between two
//! processes.
//!
//! ```no_run
//! use std::sync::Arc;
//! use ferroce_device::transport::{Access, QpCap, QpInit, QpType};
//! use ferroce_device::{Buffer, Device};
//!
//! let device = Device::open("rxe0")?;
//! let pd = device.alloc_pd();
//! let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
//! let buffer = Buffer::new(&device, &pd, 4096, access)?;
//! let cq = device.create_cq(16, None)?;
//! let init = QpInit {
//!     qp_type: QpType::Rc,
//!     pd: Some(pd),
//!     send_cq: Some(Arc::clone(cq.queue())),
//!     recv_cq: Some(Arc::clone(cq.queue())),
//!     srq: None,
//!     xrcd: None,
//!     cap: QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
//!     sq_sig_all: true,
//! };
//! let qp = device.create_qp(&init, &[&cq])?;
//! println!("queue pair {:#x}, rkey {:#x}", qp.qpn(), buffer.rkey());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Memory safety
//!
//! Scatter/gather elements and remote addresses are numbers, and posting them is safe:
//!
//! - No number gives access by itself. For each packet the engine checks the key, the
//!   permissions and the range against the regions that are registered at that time. A
//!   wrong number fails the work request.
//! - A region is memory of a [`Buffer`], or its registration was an unsafe call of
//!   [`Device::register`], whose caller keeps the memory until deregistration.
//! - The result of a check is used under the lock of the shard that made it, and not kept:
//!   payload is copied into the packet, or out of it, before the lock is released.
//! - [`Device::deregister`] removes the key first, and then takes and releases the lock of
//!   every shard. When it returns, copies under way have ended, and later checks fail. So the
//!   owner of the memory may free it, whatever work requests still name it.
//!
//! A window gives access to a part of a region, and a region cannot be deregistered while a
//! window is bound to it. A [`Buffer`] that is dropped then leaks its memory.

mod adapter;
mod address;
mod assistant;
mod awaited_writes;
mod buffer;
mod busy_shards;
mod channel;
mod clock;
mod completion_channel;
mod core;
mod counters;
mod cpu_time;
mod cq;
mod credits;
mod datagram_routes;
mod device;
mod directory;
mod error;
mod event_queue;
mod event_spin;
pub mod faults;
mod fork;
mod free_cores;
mod gpu;
mod late_events;
mod lazy_pipe;
mod link_watch;
mod local;
mod mapping;
mod memory;
mod polls;
mod progress;
mod qp;
mod resources;
mod sched_policy;
mod shard;
mod shard_setup;
mod shards;
mod shared_link;
mod slowness;
mod stream_channels;
mod streams;
mod supervisor;
mod taps;
mod tentative;
mod token_pipe;

pub use address::AhAttr;
pub use buffer::Buffer;
pub use channel::Channel;
pub use completion_channel::CompletionChannel;
pub use cq::Cq;
pub use device::Device;
pub use error::Error;
pub use event_queue::AsyncEvent;
pub use ferroce_control::{LinkInfo, generation, list_links, start_thread};
pub use ferroce_iwarp as iwarp;
pub use ferroce_roce as transport;
pub use gpu::read_gpu_memory;
pub use memory::{ProcessMemory, observed};
pub use qp::{Posting, Qp};
pub use streams::{StreamSetup, StreamUser};
