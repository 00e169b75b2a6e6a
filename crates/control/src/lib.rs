//! The control protocol between programs and ferroced.
//!
//! ```text
//!   program (device layer)                                ferroced
//!   ----------------------                                --------
//!   attach(link, shards)   -- Hello, Attach ------------>  picks slots
//!      Attachment          <- Attached + descriptors ----  sockets, counters, escrow
//!   Connection::try_event  <- Event ---------------------  netlink: addresses, MTU, carrier
//!        ...                                               killed
//!   Watch, resume(escrow)  -- Hello, Resume + escrow --->  a new ferroced: same slots and group
//! ```
//!
//! This crate holds the messages ([`Request`], [`Reply`]), the path of the control socket
//! ([`path`]), the transfer of descriptors, the [`SocketEscrow`] that keeps a socket group
//! open, and the [`counters`] in shared memory. It makes no decisions of ferroced and does
//! not use the slots.
//!
//! Programs use [`attach()`], [`list_links`], [`resume`] and [`Connection`]; ferroced uses
//! the parts.

pub mod attach;
mod clock;
pub mod cm;
pub mod connection;
pub mod counters;
pub mod credit_page;
pub mod error;
pub mod link;
pub mod name;
pub mod packet;
pub mod path;
pub mod protocol;
pub mod resources;
mod runtime_dir;
pub mod socket_escrow;
pub mod sockopt;
pub mod start;
pub mod temporary;
pub mod unix;

pub use attach::{AttachedSlot, Attachment, Watch, attach, attach_on, list_links, resume};
pub use cm::{CmAnswer, CmCall, CmEvent, CmId, CmPort};
pub use connection::{
    ANSWER_TIMEOUT, Connection, ReplyReceiver, RequestSender, find_daemon, next_request_number,
};
pub use counters::{CounterPage, CounterValues, PAGE_HEADER, PAGE_SIZE, PageError};
pub use credit_page::{CREDIT_ENTRY_SIZE, CREDIT_PAGE_SIZE, CreditPage};
pub use error::Error;
pub use link::{Gid, LinkConfig, LinkEvent, LinkEventKind, LinkInfo, PhysicalState, PortState};
pub use name::{NameError, check_name};
pub use path::{RUNTIME_DIR_VARIABLE, RuntimeDir, create_own_dir, runtime_dirs};
pub use protocol::{LinkCounters, MAX_SHARDS, PROTOCOL, Process, Reply, Request, RequestNumber};
pub use resources::{Reporter, Resources};
pub use socket_escrow::{SlotFds, SocketEscrow};
pub use start::{find_or_start, start};
