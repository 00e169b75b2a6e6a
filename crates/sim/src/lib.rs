//! Deterministic simulation of whole networks of channel adapters.
//!
//! ```text
//!            seed -> Scenario (hosts, queue pairs, faults, disruptions)
//!                        |
//!   programs --post--> Shard  --runs-->    Network --runs-->    Shard
//!      ^                 |                (loss, duplicates,      |
//!      |  completions    | memory          reordering, delay,     | memory
//!      +-----------------+                 corruption ...)        |
//!                        |                                        |
//!                        +-----> Oracle: checks every step <------+
//! ```
//!
//! Each host runs the code of a device: [`ferroce_shard::Core`] with its engine, header
//! prediction, deferred ACKs, unmatched packets, credits and waiting runs. Only the wire below
//! it is simulated: it merges packets into runs as the kernel does. Hosts of one machine that share
//! memory also run the channels of [`ferroce_net::local`].
//!
//! A run depends on its seed only. Virtual time jumps from event to event, and
//! every decision comes from the seed. So any failure can be replayed exactly.
//!
//! The oracle knows the outcomes that each work request may have. It checks that
//!
//! - every byte an adapter writes is the right one: each work request has memory
//!   of its own, so the oracle checks a write at the moment it happens;
//! - completions come in order, exactly once, with a status that has a cause in
//!   the scenario;
//! - messages arrive once, in order and unchanged;
//! - each packet that arrives reaches the engine once, and each packet that the engine
//!   assembles reaches the wire once, in order;
//! - the credits on a machine count the packets that its hosts hold;
//! - atomics are executed exactly once;
//! - no work request stays outstanding for ever, and long messages between busy hosts have
//!   a minimum throughput;
//! - both ends of a connection agree on whether it failed.
//!
//! Injected bugs of the engine, of the shard and of the local wire test the oracle: it must find each of them
//! within a stated number of seeds, with all fast paths on.

#![forbid(unsafe_code)]

mod arena;
mod bug;
mod completions;
mod coverage;
mod credit_check;
mod delivery;
mod device;
mod disrupt;
mod event_queue;
mod failing_requests;
mod finish;
mod host;
mod invalid_calls;
mod local;
mod model;
mod network;
mod observer;
mod payload;
mod post;
mod program;
mod queues;
mod recv_oracle;
mod requests;
mod rng;
mod runner;
mod scenario;
mod send_oracle;
mod setup;
mod sim_wire;
mod slot;
mod throughput;
mod trace;
mod windows;
mod wire_check;
mod world;
mod zone;

pub use bug::Bug;
pub use coverage::{Coverage, DROPS, EVENTS, STATUSES};
pub use runner::{Options, Outcome, replay_command, run_seed, run_seed_with_trace, run_seeds};
pub use scenario::Family;
