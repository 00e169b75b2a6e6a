//! The CM messages, one type each.
//!
//! Each message is a plain value with all fields of the wire format. `parse` reads it from
//! the 232 bytes after the MAD header, and `emit` writes it there. `parse` ignores reserved
//! bits; `emit` writes them as zero.

mod lap;
mod mra;
mod path;
mod rej;
mod rep;
mod req;
mod short;
mod sidr;

pub use lap::{Apr, AprStatus, Lap};
pub use mra::Mra;
pub use path::Path;
pub use rej::Rej;
pub use rep::Rep;
pub use req::{Req, Transport};
pub use short::{Drep, Dreq, Rtu};
pub use sidr::{SidrRep, SidrReq, SidrStatus};

use crate::codec::Body;

/// A CM message.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Request for communication.
    Req(Req),
    /// Message receipt acknowledgement: the answer takes longer.
    Mra(Mra),
    /// Reject.
    Rej(Rej),
    /// Reply to a request.
    Rep(Rep),
    /// Ready to use: the active side has received the REP.
    Rtu(Rtu),
    /// Disconnect request.
    Dreq(Dreq),
    /// Disconnect reply.
    Drep(Drep),
    /// Service ID resolution request.
    SidrReq(SidrReq),
    /// Service ID resolution reply.
    SidrRep(SidrRep),
    /// Load alternate path.
    Lap(Lap),
    /// Alternate path response.
    Apr(Apr),
}

impl Message {
    /// Returns the attribute ID of this message in the MAD header.
    pub fn attribute(&self) -> u16 {
        match self {
            Message::Req(_) => 0x10,
            Message::Mra(_) => 0x11,
            Message::Rej(_) => 0x12,
            Message::Rep(_) => 0x13,
            Message::Rtu(_) => 0x14,
            Message::Dreq(_) => 0x15,
            Message::Drep(_) => 0x16,
            Message::SidrReq(_) => 0x17,
            Message::SidrRep(_) => 0x18,
            Message::Lap(_) => 0x19,
            Message::Apr(_) => 0x1a,
        }
    }

    pub(crate) fn parse(attribute: u16, body: &Body) -> Option<Message> {
        Some(match attribute {
            0x10 => Message::Req(Req::parse(body)),
            0x11 => Message::Mra(Mra::parse(body)),
            0x12 => Message::Rej(Rej::parse(body)),
            0x13 => Message::Rep(Rep::parse(body)),
            0x14 => Message::Rtu(Rtu::parse(body)),
            0x15 => Message::Dreq(Dreq::parse(body)),
            0x16 => Message::Drep(Drep::parse(body)),
            0x17 => Message::SidrReq(SidrReq::parse(body)),
            0x18 => Message::SidrRep(SidrRep::parse(body)),
            0x19 => Message::Lap(Lap::parse(body)),
            0x1a => Message::Apr(Apr::parse(body)),
            _ => return None,
        })
    }

    pub(crate) fn emit(&self, body: &mut Body) {
        match self {
            Message::Req(m) => m.emit(body),
            Message::Mra(m) => m.emit(body),
            Message::Rej(m) => m.emit(body),
            Message::Rep(m) => m.emit(body),
            Message::Rtu(m) => m.emit(body),
            Message::Dreq(m) => m.emit(body),
            Message::Drep(m) => m.emit(body),
            Message::SidrReq(m) => m.emit(body),
            Message::SidrRep(m) => m.emit(body),
            Message::Lap(m) => m.emit(body),
            Message::Apr(m) => m.emit(body),
        }
    }
}

/// The message that a REJ rejects or an MRA acknowledges.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Subject {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// Another message, or none.
    Other,
    /// The fourth value of the two bits, which is reserved.
    Reserved,
}

impl Subject {
    fn from_bits(bits: u8) -> Subject {
        match bits & 3 {
            0 => Subject::Req,
            1 => Subject::Rep,
            2 => Subject::Other,
            _ => Subject::Reserved,
        }
    }
}
