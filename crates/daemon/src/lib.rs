//! ferroced, the daemon that does for Ferroce what the kernel's RDMA core does for rxe.
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
//!                                 state file, for the next ferroced
//!                                 mirror of sysfs, for programs that read sysfs
//! ```
//!
//! ferroced holds the links, GID tables, slots and counters of one network namespace, and
//! connects queue pairs for programs. It carries no payload. It has one thread, which sleeps
//! until a descriptor is ready. It can be killed at any time: programs keep the sockets open
//! (see [`ferroce_control::socket_escrow`]), the state file records links and owners, and the
//! next ferroced continues.
//!
//! `links`, `gids`, `netdevs`, `slots`, `connections`, `sysfs` and `access` decide without
//! input or output; the other modules do the system calls.

mod access;
mod attachments;
mod background;
mod captures;
mod client;
mod cm_taps;
pub mod config;
mod configured_links;
mod connecting;
mod connections;
mod deferred;
mod ethtool;
mod faults;
mod gids;
mod group;
mod introductions;
mod ipv6_settings;
mod journals;
mod link_local;
mod links;
mod listener;
mod log;
mod metrics;
mod namespace_use;
mod netdev_list;
mod netdevs;
mod netlink;
mod options;
mod owner;
mod persist;
mod poller;
mod process;
mod qp1;
mod refusal;
mod requests;
mod resources;
mod resume;
mod rival;
mod rtnetlink;
mod server;
mod slots;
mod startup;
mod state;
mod stream_introductions;
mod stream_slots;
mod sysfs;
mod user_namespace;

pub use metrics::{Scope, open_metrics};
pub use netdev_list::{NetdevInfo, list_netdevs};
pub use options::Options;
pub use startup::{main, run};
