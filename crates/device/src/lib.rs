//! The runtime: it runs the shards of a device inside a program.
//!
//! ```text
//!   program's threads: post, poll, arm         ferroced
//!        |                                        | link, slots, events
//!        v                                        v
//!   +--------------------- Device: one link ---------------------+
//!   |  Shard: Core + lock                      control thread    |
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
//! use std::sync::atomic::AtomicU8;
//! use ferroce_device::Device;
//! use ferroce_device::transport::{Access, QpCap, QpInit, QpType};
//!
//! let device = Device::open("rxe0")?;
//! let pd = device.alloc_pd();
//! // The device writes to registered memory at any time, so it consists of atomics.
//! let memory: Vec<AtomicU8> = (0..4096).map(|_| AtomicU8::new(0)).collect();
//! let addr = memory.as_ptr().expose_provenance() as u64;
//! let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
//! let mr = device.register(&pd, addr, 4096, addr, access)?;
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
//! println!("queue pair {:#x}, rkey {:#x}", qp.qpn(), mr.rkey());
//! # device.deregister(&mr)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
pub use ferroce_roce as transport;
pub use memory::ProcessMemory;
pub use qp::{Posting, Qp};
pub use signals::{Blocked, block_all};
