//! ferroced: what the kernel's RDMA core does for rxe, as a process.
//!
//! ```text
//!   ferroce link add ...      programs                     the kernel
//!         |                      |  attach, resume             |  addresses, MTU, carrier
//!         v                      v                             v
//!   +-----------------------------------------------------------------+
//!   |  requests, attachments        server (epoll)        netlink      |
//!   |     |            |                                     |         |
//!   |   links  <---- GID tables  <--------------------  netdevs        |
//!   |     |            |                                               |
//!   |   counters     slots, group of sockets on UDP port 4791          |
//!   |                            | slot 0: queue pair 1                |
//!   |   connections: ports, and one connection manager for each link   |
//!   +--------------------------------|---------------------------------+
//!                                 state file: what the next ferroced must know
//!                                 files as in sysfs, for programs that look there
//! ```
//!
//! It holds links, GID tables, slots and counters of one network namespace, and connects
//! queue pairs for programs. It carries no payload. It has one thread and sleeps unless somebody wants something. It can be
//! killed at any moment: programs keep the sockets alive (see
//! [`ferroce_control::socket_escrow`]), the state file says who has what, and the next one goes
//! on.
//!
//! `links`, `gids`, `netdevs`, `slots`, `connections`, `sysfs` and `access` decide and do no
//! input or output; the rest does it for them.

mod access;
mod attachments;
mod background;
mod client;
pub mod config;
mod connecting;
mod connections;
mod ethtool;
mod gids;
mod group;
mod links;
mod listener;
mod log;
mod netdevs;
mod netlink;
mod notes;
mod options;
mod owner;
mod poller;
mod process;
mod qp1;
mod refusal;
mod requests;
mod resources;
mod resume;
mod rtnetlink;
mod server;
mod slots;
mod startup;
mod state;
mod survey;
mod sysfs;
mod tenancy;
mod wanted;

pub use options::Options;
pub use startup::{main, run};
pub use survey::{NetdevInfo, survey};
