//! Benchmarks of the protocol engine, the network path and the connection manager.
//!
//! ```text
//!   sender                     no network                    receiver
//!   post, poll_transmit  ->  assembled packets  ->  receive, poll_transmit
//!   receive, poll the CQ <-  assembled responses <-         poll the CQ
//! ```
//!
//! Two engines exchange packets in memory, and the time of each side is measured.
//! Absolute times vary on a shared machine. So each measurement alternates with a
//! reference: copying and checksumming the same bytes, or the same traffic over one
//! queue pair. The result is the median of the ratios.
//!
//! The [`programs`] module measures unmodified programs beside other transports, for the
//! `ferroce-bench` binary. The `wire` binary measures the whole path between two processes with real sockets. The
//! `connections` binary measures connection setup and teardown, and the `soak` binary
//! looks for what long runs under bad conditions leave behind. They live in `bin`, and
//! share the report ([`Report`]) and the processes ([`Ferroced`], [`RoleProcess`]).
//!
//! [`Pair`] moves the traffic, [`measure_alternately`] measures, [`suite`] defines the
//! measurements and [`Report`] prints them. The `engine` binary is their command line.

#![deny(unsafe_code)]

mod arena;
mod baseline;
mod clock;
mod comparison;
#[cfg(feature = "network")]
mod ferroced;
mod heap;
pub mod instructions;
mod pair;
#[cfg(feature = "network")]
pub mod programs;
mod report;
#[cfg(feature = "network")]
mod role_process;
mod seams;
mod shard_pair;
mod side;
#[cfg(feature = "network")]
pub mod sockets;
pub mod suite;
mod traffic;

pub use arena::Arena;
pub use baseline::baseline;
pub use clock::{Clock, Stage};
pub use comparison::{Figures, measure_alternately, median};
#[cfg(feature = "network")]
pub use ferroced::{Ferroced, add_link, add_link_with, end_with_parent, run_roles};
pub use heap::{Heap, bytes_per_qp};
pub use pair::Pair;
pub use report::{Goal, Report, Row};
#[cfg(feature = "network")]
pub use role_process::RoleProcess;
pub use side::Side;
pub use traffic::{Cost, MESSAGES, Op, Setup, Traffic};
