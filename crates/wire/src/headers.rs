//! The BTH and the extension headers, one file each.
//!
//! Each header is a plain value with a `LEN`, `parse` and `emit`. `parse` and
//! `emit` take a slice of at least `LEN` bytes and panic on a shorter one:
//! [`Packet::parse`](crate::Packet::parse) checks all lengths once. Only
//! [`Bth::parse`] reports a short slice as an error.
//!
//! `emit` writes reserved bits as zero; `parse` discards them.

mod aeth;
mod atomic_ack_eth;
mod atomic_eth;
mod bth;
mod deth;
mod feth;
mod ieth;
mod imm_dt;
mod rdeth;
mod reth;
mod syndrome;
mod xrc_eth;

pub use aeth::Aeth;
pub use atomic_ack_eth::AtomicAckEth;
pub use atomic_eth::AtomicEth;
pub use bth::Bth;
pub use deth::Deth;
pub use feth::Feth;
pub use ieth::Ieth;
pub use imm_dt::ImmDt;
pub use rdeth::Rdeth;
pub use reth::Reth;
pub use syndrome::{NakCode, Syndrome, credit_code, credits, rnr_delay_ns};
pub use xrc_eth::XrcEth;
