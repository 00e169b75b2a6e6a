//! The control protocol between programs and ferroced.
//!
//! ```text
//!   program (device layer)                                 ferroced
//!   ----------------------                                 --------
//!   Client::attach(link, shards) -- Hello, Attach ------->  picks slots
//!      OpenLink                 <- Attached + descriptors -  sockets, counters, escrow
//!      LinkUser::changed        <- Event ------------------  netlink: addresses, MTU, carrier
//!        ...                                                killed
//!      LinkUser::resumed        -- Hello, Resume + escrow ->  a new ferroced: same slots and group
//!      drop                     -- Detach ---------------->  takes the slots back
//! ```
//!
//! This crate holds the messages ([`Request`], [`Reply`]), the path of the control socket
//! ([`path`]), the transfer of descriptors, the [`SocketEscrow`] that keeps a socket group
//! open, and the [`counters`] in shared memory. It makes no decisions of ferroced and does
//! not use the slots.
//!
//! Programs use the [`client`], which is one connection for the whole process; tools use a
//! [`Connection`] of their own; ferroced uses the parts.

pub mod attach;
pub mod capture;
pub mod client;
mod clock;
pub mod cm;
pub mod connection;
pub mod counters;
pub mod credit_page;
pub mod error;
mod generation;
pub mod link;
pub mod name;
pub mod packet;
pub mod path;
mod per_process;
pub mod protocol;
pub mod resources;
mod runtime_dir;
mod signals;
pub mod socket_escrow;
pub mod sockopt;
mod split;
pub mod start;
pub mod temporary;
mod threads;
pub mod unix;

pub use attach::{AttachedSlot, Attachment, ResumeDescriptors, Watch, attach, attach_on, resume};
pub use capture::{Captured, Story};
pub use client::{Client, list_links, watch_link};
pub use cm::{CmAnswer, CmCall, CmEvent, CmId, CmPort};
pub use connection::{ANSWER_TIMEOUT, Connection, find_daemon, next_request_number};
pub use counters::{CounterPage, CounterValues, PAGE_HEADER, PAGE_SIZE, PageError};
pub use credit_page::{CREDIT_ENTRY_SIZE, CREDIT_PAGE_SIZE, CreditPage};
pub use error::Error;
pub use generation::generation;
pub use link::{Gid, LinkConfig, LinkEvent, LinkEventKind, LinkInfo, PhysicalState, PortState};
pub use name::{NameError, check_name};
pub use path::{RUNTIME_DIR_VARIABLE, RuntimeDir, create_own_dir, runtime_dirs};
pub use per_process::PerProcess;
pub use protocol::{
    AttachmentNumber, LinkCounters, MAX_SHARDS, PROTOCOL, Process, Reply, Request, RequestNumber,
    SlotKind,
};
pub use resources::{Reporter, Resources};
pub use signals::{Handlers, catch_end, handlers};
pub use socket_escrow::{SlotFds, SocketEscrow};
pub use start::{find_or_start, start, wait_for};
pub use threads::start_thread;
