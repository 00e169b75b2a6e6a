//! Measurements of unmodified programs over Ferroce, beside other transports.
//!
//! ```text
//!   plan     groups of probes, and the rows that compare them: goals are here
//!   measure  runs the probes of a group in turn, round after round
//!   run      one run: server and client, or two processes with plain sockets
//!   place    private network, links, user, processors
//!   sample   the figures in a program's output
//!   page     the report, with the plots of charts and svg; history: a line for each run
//! ```
//!
//! A probe and its references run one after the other in each round. A ratio is the median of
//! the rounds' ratios, so that other load on the machine slows both.

mod charts;
pub mod history;
mod machine;
mod measure;
mod one_host;
pub mod page;
mod place;
mod plan;
mod probe;
mod run;
pub mod sample;
mod sockets;
pub mod svg;

pub use charts::charts;
pub use machine::Machine;
pub use measure::{Results, measure};
pub use place::{Cores, LinkType, Place};
pub use plan::{Group, Plan, Reference, RowPlan};
pub use probe::{Addresses, Device, Lines, Probe, RunLength, Sockets, Tool, Wire, bytes};
pub use sample::{Metric, Sample};
pub use sockets::{ROLE as SOCKETS_ROLE, work as work_with_sockets};
