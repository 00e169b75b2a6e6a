//! The iWARP protocol as a library, without the TCP sockets that carry its bytes.
//!
//! | layer | RFC | modules |
//! | --- | --- | --- |
//! | MPA: connection setup | 5044, 6581 | [`mpa`] |
//! | MPA: FPDUs, frames of a byte stream | 5044 | [`fpdu`], [`crc`] |
//! | DDP and RDMAP: headers of segments | 5041, 5040 | [`header`], [`opcode`] |
//! | RDMAP: the message that ends a stream | 5040 | [`terminate`] |
//! | queue pairs: messages of work requests | 5041, 5040 | [`Engine`] |
//!
//! The crate has no socket, thread, clock or source of randomness: bytes and time are
//! arguments. It follows the kernel's siw where an RFC leaves a choice, and where siw
//! deviates from an RFC: programs know siw, and siw is the usual peer.

#![forbid(unsafe_code)]

mod bugs;
pub mod crc;
mod engine;
mod event;
pub mod fpdu;
pub mod header;
pub mod mpa;
pub mod opcode;
mod output;
mod qp;
mod qp_table;
pub mod terminate;
#[cfg(test)]
mod tests;

pub use engine::{Config, Engine};
pub use event::{CloseCause, StreamEvent};
pub use ferroce_objects::Time;
pub use output::{Output, Piece};
pub use qp::{CLOSE_TIMEOUT, HOLD, MAX_INLINE, MAX_SGE, MAX_WR, NUDGES, QpQuery, SILENCE};
