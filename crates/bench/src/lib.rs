//! What the protocol engine costs.
//!
//! ```text
//!   sender                     no network                    receiver
//!   post, poll_transmit  ->  assembled packets  ->  receive, poll_transmit
//!   receive, poll the CQ <-    assembled answers  <-        poll the CQ
//! ```
//!
//! Two engines stand back to back in memory and each side's share is timed.
//! Seconds on a shared machine mean little by themselves, so each measurement
//! is taken in turns with something to compare it with: copying and
//! checksumming the same bytes, or the same traffic over one queue pair. What
//! counts is the median of the ratios.
//!
//! The `wire` binary measures the whole path instead: two processes, real sockets. The
//! `connections` binary measures how connections come and go, and the `soak` binary looks for
//! what long runs under bad conditions leave behind. They live in `bin`, and share
//! the report ([`Report`]) and the processes ([`Ferroced`], [`Player`]).
//!
//! [`Pair`] moves the traffic, [`turns`] measures, [`suite`] says what
//! is measured and [`Report`] shows it. The `engine` binary is the
//! command line around them.

#![forbid(unsafe_code)]

mod arena;
mod baseline;
mod clock;
mod ferroced;
mod heap;
mod pair;
mod player;
mod report;
mod side;
pub mod suite;
mod traffic;
mod turns;

pub use arena::Arena;
pub use baseline::baseline;
pub use clock::{Clock, Stage};
pub use ferroced::{Ferroced, add_link, end_with_parent, on_stage, played};
pub use heap::{Heap, bytes_per_qp};
pub use pair::Pair;
pub use player::Player;
pub use report::{Goal, Report, Row};
pub use side::Side;
pub use traffic::{Cost, MESSAGES, Op, Setup, Traffic};
pub use turns::{Figures, median, turns};
