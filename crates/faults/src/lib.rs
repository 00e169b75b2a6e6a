//! Provoked misfortune: which packets are lost, late or damaged, which verbs fail, and which
//! events happen. Text in, decisions out; no clock, no thread, no socket.
//!
//! ```text
//!   "loss 1% seed 7; fail ibv_reg_mr 2 ENOMEM"
//!        | Plan::parse
//!        v
//!   Plan: rules ----------------------> VerbFaults::call("ibv_reg_mr") -> Some(errno)
//!        |
//!        v
//!   Weather::judge(now, packet) ------> Fate: dropped, late, twice, damaged, answered
//!        |
//!        +----------------------------> Provoked: QP to error, port down, ...
//! ```
//!
//! A decision depends on the seed, the rule, and the number of the packet among those of its
//! queue pair and direction. So the same packets meet the same weather, whatever the clock
//! says. Numbers in a schedule ("the 3rd ACK") come from [`Counts`], which several processes
//! may share.

#![forbid(unsafe_code)]

mod chaos;
mod counts;
mod damage;
mod errno;
mod fate;
mod grammar;
mod held;
mod plan;
mod random;
mod selector;
mod streams;
mod verbs;
mod weather;
mod words;

pub use chaos::draw;
pub use counts::{Counts, LocalCounts, MAX_RULES};
pub use damage::{answer_instead, damage};
pub use errno::{errno_name, errno_number};
pub use fate::{Damage, Fate};
pub use grammar::ParseError;
pub use held::Held;
pub use plan::{Answer, Effect, EventKind, Plan, Rule, Trigger, Window};
pub use selector::{CmMessage, Direction, PacketKind, Select};
pub use verbs::{VERBS, VerbFaults, is_verb};
pub use weather::streams::StreamFate;
pub use weather::{Provoked, Weather};
pub use words::with_ending;

/// The environment variable with the faults of a program.
pub const VARIABLE: &str = "FERROCE_FAULTS";
/// The environment variable with the file of counts that the programs of a run share.
pub const COUNTS_VARIABLE: &str = "FERROCE_FAULTS_COUNTS";
