//! Deterministic simulation of whole networks of channel adapters.
//!
//! ```text
//!            seed -> Scenario (hosts, queue pairs, faults, disruptions)
//!                        |
//!   programs --post--> Engine --packets--> Network --packets--> Engine
//!      ^                 |                (loss, duplicates,      |
//!      |  completions    | memory          reordering, delay,     | memory
//!      +-----------------+                 corruption ...)        |
//!                        |                                        |
//!                        +-----> Oracle: is all of this right? <--+
//! ```
//!
//! A run is a function of its seed and of nothing else: virtual time jumps from
//! event to event, and every decision comes from the seed. So a failure is found
//! once and replayed as often as it takes to understand it.
//!
//! The oracle knows what every work request must lead to. Each has memory of its
//! own, so every byte that an adapter writes is judged at the moment it is
//! written; completions must come in order, exactly once, with a status that has
//! a cause in the scenario; messages arrive once, in order and unchanged; atomics
//! are executed exactly once; nothing hangs; and when something fails, both ends
//! must agree that it did.
//!
//! That the oracle can fail is proved with the engine's deliberate bugs: each
//! must be found within a stated number of seeds.

#![forbid(unsafe_code)]

mod agenda;
mod arena;
mod bad;
mod completions;
mod coverage;
mod device;
mod disrupt;
mod finish;
mod host;
mod model;
mod network;
mod nonsense;
mod payload;
mod post;
mod program;
mod queues;
mod recv_end;
mod requests;
mod rng;
mod runner;
mod scenario;
mod send_end;
mod setup;
mod slot;
mod tap;
mod trace;
mod windows;
mod world;
mod zone;

pub use coverage::{Coverage, DROPS, EVENTS, STATUSES};
pub use ferroce_transport::Bug;
pub use runner::{Outcome, replay_command, run_seed, run_seed_with_trace, run_seeds};
pub use scenario::Family;
