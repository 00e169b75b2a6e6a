//! The decisions of one shard, without threads, clocks or sockets of its own.
//!
//! ```text
//!    poller, progress thread: turn(now, caller)        poster: posted(now)  
//!                      |                                       |
//!   +------------------v------------ Core ---------------------v---------+
//!   |  DeferredAck, UnmatchedPackets ---> Engine ---> Transmitter        |
//!   |        ^            ReceiveCredits                 | SendCredits   |
//!   +--------|---------------------------------------------v-------------+
//!            | receive                Wire                 | send
//! ```
//!
//! A [`Core`] decides which packets a turn receives, which acknowledgements wait for the
//! next turn, which packets wait for a receive, and which runs wait for room at the
//! receiver. The runtime calls it with sockets behind its [`Wire`](ferroce_net::Wire); the
//! simulator calls the same code with a simulated network.

#![forbid(unsafe_code)]

mod answers;
mod assembly;
mod bugs;
mod core;
mod credits;
mod deferred_ack;
mod empty_poll;
mod faults;
mod process;
mod progress_rule;
mod qp_changes;
mod receiving;
mod recorder;
mod sending;
#[cfg(test)]
mod test_datagram;
mod transmitter;
mod uc_connection;
mod unmatched;

pub use self::core::{Caller, Core, RECEIVE_BUDGET, STANDBY_NS};
#[cfg(feature = "bugs")]
pub use bugs::Bug;
pub use credits::{CREDIT_PATIENCE_NS, CreditEntry, CreditPage, SLOTS, packet_cost};
pub use faults::{Faults, Senders};
pub use process::Process;
pub use progress_rule::{ProgressRule, Woken};
pub use recorder::{Recorder, received_path};
pub use sending::{MAX_BATCHES, Sending};
pub use transmitter::Transmitter;
pub use unmatched::UNMATCHED_PATIENCE_NS;
