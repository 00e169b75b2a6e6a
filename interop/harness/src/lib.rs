//! What the runners of real programs share: an ordinary [`User`] with Ferroce, programs that
//! are [`Running`] and do not outlive their runner, and a [`Report`] of what came of each
//! case.

#![forbid(unsafe_code)]

mod iser;
mod report;
mod running;
mod sockets;
mod user;

pub use iser::IserDisk;
pub use report::{Outcome, Report, keep, keep_name};
pub use running::{Running, deadline, now, pause};
pub use sockets::{is_bound, is_joined, is_listening};
pub use user::User;
