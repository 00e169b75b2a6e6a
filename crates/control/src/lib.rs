//! What programs and ferroced say to each other.
//!
//! ```text
//!   program (device layer)                                ferroced
//!   ----------------------                                --------
//!   attach(link, shards)   -- Hello, Attach ------------>  picks slots
//!      Attachment          <- Attached + descriptors ----  sockets, counters, parcel
//!   Connection::try_event  <- Event ---------------------  netlink: addresses, MTU, carrier
//!        ...                                               killed
//!   Watch, resume(parcel)  -- Hello, Resume + parcel --->  a new one: same slots, same group
//! ```
//!
//! The layer knows messages ([`Request`], [`Reply`]), where the socket lies ([`path`]),
//! how descriptors travel, the [`Parcel`] that keeps a socket group alive, and the
//! [`counters`] in shared memory. It does not know what ferroced decides, nor what
//! a program does with its slots.
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
pub mod parcel;
pub mod path;
pub mod protocol;
pub mod resources;
mod runtime_dir;
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
pub use parcel::{Parcel, SlotFds};
pub use path::{RUNTIME_DIR_VARIABLE, RuntimeDir, create_own_dir, runtime_dirs};
pub use protocol::{LinkCounters, MAX_SHARDS, PROTOCOL, Process, Reply, Request, RequestNumber};
pub use resources::{Reporter, Resources};
pub use start::{find_or_start, start};
