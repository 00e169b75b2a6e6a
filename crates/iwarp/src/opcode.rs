//! The RDMAP opcodes and the control word, by which each DDP segment starts.
//!
//! ```text
//!   0x8000  T  tagged               0x0300  DDP version, 1
//!   0x4000  L  last segment         0x00c0  RDMAP version, 1
//!   0x3c00     reserved             0x000f  opcode
//! ```

use crate::terminate::Code;

/// Bytes of the length word of an FPDU.
pub const LENGTH_LEN: usize = 2;
/// Bytes of a tagged DDP header, with the length word.
pub const TAGGED_LEN: usize = 16;
/// Bytes of an untagged DDP header, with the length word.
pub const UNTAGGED_LEN: usize = 20;
/// Bytes of the headers of a Read Request, with the length word. They are the longest.
pub const READ_REQUEST_LEN: usize = 48;

/// The queue number of SENDs.
pub const QN_SEND: u32 = 0;
/// The queue number of Read Requests.
pub const QN_READ_REQUEST: u32 = 1;
/// The queue number of TERMINATEs.
pub const QN_TERMINATE: u32 = 2;

/// An RDMAP opcode (RFC 5040 4.1).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs)] // the names say it
pub enum Opcode {
    Write = 0,
    ReadRequest = 1,
    ReadResponse = 2,
    Send = 3,
    SendInvalidate = 4,
    SendSolicited = 5,
    SendSolicitedInvalidate = 6,
    Terminate = 7,
}

impl Opcode {
    /// All opcodes, in the order of their numbers.
    pub const ALL: [Opcode; 8] = [
        Opcode::Write,
        Opcode::ReadRequest,
        Opcode::ReadResponse,
        Opcode::Send,
        Opcode::SendInvalidate,
        Opcode::SendSolicited,
        Opcode::SendSolicitedInvalidate,
        Opcode::Terminate,
    ];

    /// True if segments name their place by STag and offset.
    #[inline]
    pub const fn is_tagged(self) -> bool {
        matches!(self, Opcode::Write | Opcode::ReadResponse)
    }

    /// True for the four kinds of SEND.
    #[inline]
    pub const fn is_send(self) -> bool {
        use Opcode::{Send, SendInvalidate, SendSolicited, SendSolicitedInvalidate};
        matches!(
            self,
            Send | SendInvalidate | SendSolicited | SendSolicitedInvalidate
        )
    }

    /// True for a SEND that invalidates an STag of the receiver.
    #[inline]
    pub const fn invalidates(self) -> bool {
        matches!(
            self,
            Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate
        )
    }

    /// True for a SEND whose completion is solicited.
    #[inline]
    pub const fn is_solicited(self) -> bool {
        matches!(
            self,
            Opcode::SendSolicited | Opcode::SendSolicitedInvalidate
        )
    }

    /// Returns the queue number of an untagged opcode.
    #[inline]
    pub const fn queue(self) -> Option<u32> {
        match self {
            Opcode::Write | Opcode::ReadResponse => None,
            Opcode::ReadRequest => Some(QN_READ_REQUEST),
            Opcode::Terminate => Some(QN_TERMINATE),
            _ => Some(QN_SEND),
        }
    }

    /// Returns the bytes of all headers, with the length word.
    #[inline]
    pub const fn header_len(self) -> usize {
        match self {
            Opcode::Write | Opcode::ReadResponse => TAGGED_LEN,
            Opcode::ReadRequest => READ_REQUEST_LEN,
            _ => UNTAGGED_LEN,
        }
    }
}

const TAGGED: u16 = 0x8000;
const LAST: u16 = 0x4000;
const DDP_VERSION: u16 = 0x0100;
const DDP_VERSION_MASK: u16 = 0x0300;
const RDMAP_VERSION: u16 = 0x0040;
const RDMAP_VERSION_MASK: u16 = 0x00c0;
const OPCODE_MASK: u16 = 0x000f;

/// The opcode of a segment, and whether it is the last one of its message.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Control {
    /// Opcode.
    pub opcode: Opcode,
    /// L: the segment is the last one of its message.
    pub last: bool,
}

impl Control {
    /// Returns the control word.
    #[inline]
    pub const fn encode(self) -> u16 {
        let tagged = if self.opcode.is_tagged() { TAGGED } else { 0 };
        let last = if self.last { LAST } else { 0 };
        tagged | last | DDP_VERSION | RDMAP_VERSION | self.opcode as u16
    }

    /// Parses a control word. The error is that of the TERMINATE.
    #[inline]
    pub const fn decode(word: u16) -> Result<Control, Code> {
        let tagged = word & TAGGED != 0;
        if word & DDP_VERSION_MASK != DDP_VERSION {
            // RFC 5041 section 7: the version has a code of its own in each buffer model.
            return Err(match tagged {
                true => Code::DDP_TAGGED_VERSION,
                false => Code::DDP_UNTAGGED_VERSION,
            });
        }
        if word & RDMAP_VERSION_MASK != RDMAP_VERSION {
            return Err(Code::RDMAP_VERSION);
        }
        let number = (word & OPCODE_MASK) as usize;
        if number >= Opcode::ALL.len() {
            return Err(Code::RDMAP_UNEXPECTED_OPCODE);
        }
        let opcode = Opcode::ALL[number];
        // RFC 5040 4.1: an opcode belongs to one buffer model.
        if opcode.is_tagged() != tagged {
            return Err(Code::RDMAP_UNEXPECTED_OPCODE);
        }
        Ok(Control {
            opcode,
            last: word & LAST != 0,
        })
    }
}
