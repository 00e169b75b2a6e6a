//! Common parts of the runners of real programs: an unprivileged [`User`] with Ferroce,
//! [`Running`] programs that do not outlive their runner, and a [`Report`] of the outcome of
//! each case.

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
