//! TERMINATE: the last message of a stream that fails, with the reason.
//!
//! RFC 5040 4.8: a word with layer, type and code of the error and three flags follows the
//! untagged header. Flags M and D announce a copy of the offending segment's length and DDP
//! header, and flag R a copy of its RDMAP header, which only Read Requests have.

use core::fmt;

use crate::crc::{self, CRC_LEN};
use crate::fpdu::padding;
use crate::header::{Header, Place};
use crate::opcode::{LENGTH_LEN, Opcode, QN_TERMINATE, READ_REQUEST_LEN};

const FLAG_M: u32 = 0x8000;
const FLAG_D: u32 = 0x4000;
const FLAG_R: u32 = 0x2000;

/// Largest payload of a TERMINATE that makes sense: the word and the longest headers.
pub const MAX_PAYLOAD: usize = 4 + READ_REQUEST_LEN;

/// Layer, type and code of an error.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Code {
    /// Layer: 0 is RDMAP, 1 is DDP, 2 is the layer below, MPA.
    pub layer: u8,
    /// Type of the error in the layer.
    pub etype: u8,
    /// Code of the error in the type.
    pub code: u8,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $layer:literal, $etype:literal, $code:literal, $text:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Code = Code { layer: $layer, etype: $etype, code: $code };)*

            /// All known codes.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// Returns the name of a known code.
            const fn name(self) -> Option<&'static str> {
                match (self.layer, self.etype, self.code) {
                    $(($layer, $etype, $code) => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// An error of the sender itself.
    RDMAP_LOCAL_CATASTROPHIC = 0, 0, 0x00, "local catastrophic error";
    /// A Read names an STag that does not exist.
    RDMAP_INVALID_STAG = 0, 1, 0x00, "invalid STag";
    /// A Read leaves the memory of its STag.
    RDMAP_BOUNDS = 0, 1, 0x01, "base or bounds violation";
    /// The STag does not allow Reads.
    RDMAP_ACCESS = 0, 1, 0x02, "access rights violation";
    /// The STag of a Read belongs to another protection domain.
    RDMAP_NOT_ASSOCIATED = 0, 1, 0x03, "STag not associated with the stream";
    /// The range of a Read exceeds 2^64.
    RDMAP_WRAP = 0, 1, 0x04, "tagged offset wraps";
    /// The STag of another protection domain cannot be invalidated.
    RDMAP_PROTECTED_INVALIDATE = 0, 1, 0x09, "STag cannot be invalidated";
    /// A wrong version of RDMAP.
    RDMAP_VERSION = 0, 2, 0x05, "invalid RDMAP version";
    /// An opcode that does not exist, or not here.
    RDMAP_UNEXPECTED_OPCODE = 0, 2, 0x06, "unexpected opcode";
    /// An error that ends this stream; more Reads than the IRD.
    RDMAP_CATASTROPHIC_STREAM = 0, 2, 0x07, "catastrophic error of the stream";
    /// The STag cannot be invalidated.
    RDMAP_CANNOT_INVALIDATE = 0, 2, 0x09, "STag cannot be invalidated";
    /// An error of DDP itself; memory that cannot be accessed.
    DDP_CATASTROPHIC = 1, 0, 0x00, "DDP local catastrophic error";
    /// A tagged segment names an STag that does not exist, or does not allow writes.
    DDP_INVALID_STAG = 1, 1, 0x00, "invalid STag";
    /// A tagged segment leaves the memory of its STag.
    DDP_BOUNDS = 1, 1, 0x01, "base or bounds violation";
    /// The STag of a tagged segment belongs to another protection domain.
    DDP_NOT_ASSOCIATED = 1, 1, 0x02, "STag not associated with the stream";
    /// The range of a tagged segment exceeds 2^64.
    DDP_WRAP = 1, 1, 0x03, "tagged offset wraps";
    /// A wrong version of DDP in a tagged segment.
    DDP_TAGGED_VERSION = 1, 1, 0x04, "invalid DDP version";
    /// An untagged segment names a queue that its opcode does not have.
    DDP_INVALID_QUEUE = 1, 2, 0x01, "invalid queue number";
    /// No receive is posted, or the posted one is too short.
    DDP_NO_BUFFER = 1, 2, 0x02, "no buffer available";
    /// The MSN is not the next one.
    DDP_MSN_RANGE = 1, 2, 0x03, "MSN out of range";
    /// The MO is not the next one.
    DDP_INVALID_MO = 1, 2, 0x04, "invalid MO";
    /// The message is longer than the buffer.
    DDP_TOO_LONG = 1, 2, 0x05, "message too long";
    /// A wrong version of DDP in an untagged segment.
    DDP_UNTAGGED_VERSION = 1, 2, 0x06, "invalid DDP version";
    /// The TCP connection broke.
    MPA_STREAM_LOST = 2, 0, 0x01, "TCP connection lost";
    /// The CRC of an FPDU is wrong.
    MPA_CRC = 2, 0, 0x02, "MPA CRC error";
    /// The length of an FPDU is impossible.
    MPA_LENGTH = 2, 0, 0x03, "FPDU length does not fit";
    /// A Request or Reply is not valid.
    MPA_INVALID_FRAME = 2, 0, 0x04, "invalid MPA request or reply";
    /// An error of MPA itself.
    MPA_CATASTROPHIC = 2, 0, 0x05, "MPA local catastrophic error";
    /// RFC 6581: the initiator's IRD is too small for the responder's ORD.
    MPA_INSUFFICIENT_IRD = 2, 0, 0x06, "insufficient IRD";
    /// RFC 6581: no RTR frame suits both ends.
    MPA_NO_MATCHING_RTR = 2, 0, 0x07, "no matching RTR frame";
}

impl Code {
    /// True if the peer asked for an access that it is not allowed.
    pub const fn is_protection(self) -> bool {
        matches!((self.layer, self.etype), (0, 1) | (1, 1))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layer = match self.layer {
            0 => "RDMAP",
            1 => "DDP",
            2 => "MPA",
            _ => "unknown layer",
        };
        let Code { etype, code, .. } = self;
        match self.name() {
            Some(name) => write!(f, "{layer}: {name}"),
            None => write!(f, "{layer}: error {etype}/{code:#04x}"),
        }
    }
}

/// The content of a TERMINATE.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Terminate {
    /// The error.
    pub code: Code,
    /// The headers of the segment that caused it.
    pub cause: Option<Header>,
}

impl Terminate {
    /// Returns the TERMINATE for an error in a segment.
    ///
    /// The headers are left out where they cannot be understood: in errors of the layer
    /// below, and of versions and opcodes.
    pub fn new(code: Code, cause: Option<&Header>) -> Terminate {
        let cause = cause.filter(|_| code.layer < 2).copied();
        Terminate { code, cause }
    }

    /// Appends length word, header and payload of the TERMINATE to `out`, without pad bytes
    /// and CRC.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Code { layer, etype, code } = self.code;
        let mut word = u32::from(layer) << 28 | u32::from(etype) << 24 | u32::from(code) << 16;
        let mut copy = Vec::new();
        if let Some(cause) = &self.cause {
            cause.encode(&mut copy);
            word |= FLAG_M | FLAG_D;
            match cause.opcode {
                Opcode::ReadRequest => word |= FLAG_R,
                _ => copy.truncate(cause.ddp_len()),
            }
        }
        let header = Header {
            opcode: Opcode::Terminate,
            last: true,
            place: Place::Untagged {
                invalidate: 0,
                queue: QN_TERMINATE,
                msn: 1,
                mo: 0,
                read: None,
            },
            payload: 4 + copy.len() as u32,
        };
        header.encode(out);
        out.extend_from_slice(&word.to_be_bytes());
        out.extend_from_slice(&copy);
    }

    /// Returns the FPDU of the TERMINATE. An initiator sends it without a CRC if the setup
    /// fails ([`SetupError::code`](crate::mpa::SetupError::code)).
    pub fn to_fpdu(&self, crc: bool) -> Vec<u8> {
        let mut fpdu = Vec::new();
        self.encode(&mut fpdu);
        fpdu.resize(fpdu.len() + padding(fpdu.len() - LENGTH_LEN), 0);
        let crc = match crc {
            true => crc::of(&fpdu),
            false => [0; CRC_LEN],
        };
        fpdu.extend_from_slice(&crc);
        fpdu
    }

    /// Parses the payload of a TERMINATE. Returns `None` if it is too short for the error.
    /// Headers that are cut or unknown are left out: the stream ends anyway.
    pub fn decode(payload: &[u8]) -> Option<Terminate> {
        let (word, copy) = payload.split_first_chunk()?;
        let word = u32::from_be_bytes(*word);
        let code = Code {
            layer: (word >> 28) as u8,
            etype: (word >> 24 & 0xf) as u8,
            code: (word >> 16) as u8,
        };
        let has_header = word & (FLAG_M | FLAG_D) == FLAG_M | FLAG_D;
        let cause = has_header.then(|| decode_copy(copy)).flatten();
        Some(Terminate { code, cause })
    }
}

fn decode_copy(copy: &[u8]) -> Option<Header> {
    let length = Header::length(*copy.first_chunk()?).ok()?;
    debug_assert!(length >= LENGTH_LEN);
    Header::decode(copy.get(..length)?).ok()
}
