//! Strict mode and profiles: the differences between this device and real adapters.
//!
//! ```text
//!   attributes of ibv_modify_qp ----> connect::check ---+
//!   a work request ------------------> work::check -----+--> Finding: check, sentence
//!   posted and completed work -------> Ledger ----------+        | abi adds the caller
//!                                                                v
//!                                          a warning on stderr; with `error` the verb fails
//!
//!   Profile::named("mlx5") --> attributes for ibv_query_device, and limits that refuse requests
//! ```
//!
//! The crate knows numbers and rules. It knows no C structure, no memory and no call stack:
//! `ferroce-abi` passes them in as values, so that each rule has a test without a program.

#![forbid(unsafe_code)]

mod check;
pub mod connect;
mod finding;
mod ledger;
mod mode;
mod overlap;
mod profile;
pub mod work;

pub use check::Check;
pub use finding::{Finding, Severity};
pub use ledger::{Buffers, CqId, Ledger, QpId, QpTrack, Range, Returned, Sent, SrqId};
pub use mode::{Mode, UnknownMode};
pub use overlap::RecentWrites;
pub use profile::{Kind, Limits, Profile, QpSizes, Refusal, RefusalErrno, UnknownProfile};

/// The environment variable that sets the mode of a program: `on`, `error` or `off`.
pub const STRICT_VARIABLE: &str = "FERROCE_STRICT";
/// The environment variable that names the profile of a program; `off` for none.
pub const PROFILE_VARIABLE: &str = "FERROCE_PROFILE";
