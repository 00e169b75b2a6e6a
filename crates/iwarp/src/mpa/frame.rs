//! The format of Request and Reply.
//!
//! ```text
//!   0                16      18      20                      24
//!   | key, 16 bytes  | flags | length| IRD word  | ORD word  | private data ...
//!                                    \- only if enhanced: counted by length -/
//! ```

use bitflags::bitflags;

use super::error::{ArgumentError, FrameError};

/// Bytes of a frame before the private data and the enhanced words.
pub const HEADER_LEN: usize = 20;
/// Largest value of the length field, as in siw. RFC 5044 allows 512.
pub const MAX_PRIVATE_DATA: usize = 256;
/// Bytes of the longest frame.
pub const MAX_FRAME: usize = HEADER_LEN + MAX_PRIVATE_DATA;
/// Bytes of the IRD word and the ORD word.
const ENHANCED_LEN: usize = 4;
/// The revision that has the enhanced words.
const REVISION_2: u8 = 2;

const REQUEST_KEY: &[u8; 16] = b"MPA ID Req Frame";
const REPLY_KEY: &[u8; 16] = b"MPA ID Rep Frame";

/// The two kinds of frames.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum FrameKind {
    /// Sent by the initiator.
    Request,
    /// Sent by the responder.
    Reply,
}

impl FrameKind {
    /// Returns the bytes by which a frame starts.
    pub const fn key(self) -> &'static [u8; 16] {
        match self {
            FrameKind::Request => REQUEST_KEY,
            FrameKind::Reply => REPLY_KEY,
        }
    }
}

bitflags! {
    /// The flags of a frame, in the high byte of their field.
    ///
    /// Unknown bits are kept: a Reply repeats the flags of its Request.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Flags: u16 {
        /// M: the sender wants markers in the stream that it receives.
        const MARKERS = 0x8000;
        /// C: the sender wants CRCs.
        const CRC = 0x4000;
        /// R: the connection is rejected (Reply).
        const REJECT = 0x2000;
        /// S: the frame has the enhanced words (RFC 6581).
        const ENHANCED = 0x1000;
        /// An experiment of siw: the sender accepts FPDUs of several TCP segments.
        const GSO = 0x0800;
        const _ = 0xff00;
    }
}

/// The enhanced words of RFC 6581 section 6.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Enhanced {
    /// Reads of the peer that the sender holds at a time; 14 bits.
    pub ird: u16,
    /// Reads that the sender may have outstanding; 14 bits.
    pub ord: u16,
    /// A: peer-to-peer mode.
    pub peer_to_peer: bool,
    /// B: the RTR frame may be a zero-length SEND.
    pub rtr_send: bool,
    /// C: the RTR frame may be a zero-length RDMA Write.
    pub rtr_write: bool,
    /// D: the RTR frame may be a zero-length RDMA Read.
    pub rtr_read: bool,
}

impl Enhanced {
    /// The bits of a depth. The two bits above are flags.
    pub const DEPTH_MASK: u16 = 0x3fff;

    fn encode(self) -> [u8; ENHANCED_LEN] {
        let word = |depth: u16, high: bool, low: bool| {
            depth & Enhanced::DEPTH_MASK | u16::from(high) << 15 | u16::from(low) << 14
        };
        let [a, b] = word(self.ird, self.peer_to_peer, self.rtr_send).to_be_bytes();
        let [c, d] = word(self.ord, self.rtr_write, self.rtr_read).to_be_bytes();
        [a, b, c, d]
    }

    fn decode([a, b, c, d]: [u8; ENHANCED_LEN]) -> Enhanced {
        let (ird, ord) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Enhanced {
            ird: ird & Enhanced::DEPTH_MASK,
            ord: ord & Enhanced::DEPTH_MASK,
            peer_to_peer: ird & 0x8000 != 0,
            rtr_send: ird & 0x4000 != 0,
            rtr_write: ord & 0x8000 != 0,
            rtr_read: ord & 0x4000 != 0,
        }
    }
}

/// The program's private data in a frame.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct PrivateData(Vec<u8>);

impl PrivateData {
    /// No private data.
    pub const EMPTY: PrivateData = PrivateData(Vec::new());

    /// Returns `data` as private data of a frame with or without enhanced words.
    pub fn new(data: &[u8], enhanced: bool) -> Result<PrivateData, ArgumentError> {
        let most = MAX_PRIVATE_DATA - if enhanced { ENHANCED_LEN } else { 0 };
        match data.len() > most {
            true => Err(ArgumentError::PrivateData {
                length: data.len(),
                most,
            }),
            false => Ok(PrivateData(data.to_vec())),
        }
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A Request or a Reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Request or Reply.
    pub kind: FrameKind,
    /// Flags.
    pub flags: Flags,
    /// Revision of MPA: 1 or 2. siw also accepts 0.
    pub revision: u8,
    /// The enhanced words; present if the revision is 2 and the flags have
    /// [`Flags::ENHANCED`].
    pub enhanced: Option<Enhanced>,
    /// Private data.
    pub private_data: PrivateData,
}

impl Frame {
    /// Returns the bytes of the frame.
    pub fn encode(&self) -> Vec<u8> {
        let enhanced = self.enhanced.map(Enhanced::encode);
        let enhanced = enhanced.as_ref().map_or(&[][..], |words| &words[..]);
        let data = self.private_data.as_bytes();
        let length = (enhanced.len() + data.len()) as u16;
        let flags = self.flags.bits() | u16::from(self.revision);
        [
            &self.kind.key()[..],
            &flags.to_be_bytes(),
            &length.to_be_bytes(),
            enhanced,
            data,
        ]
        .concat()
    }

    /// Returns the length of the frame that starts with `header`, after checks of the header.
    pub fn length(header: &[u8; HEADER_LEN], kind: FrameKind) -> Result<usize, FrameError> {
        let (key, fields) = header.split_at(16);
        if key != kind.key() {
            return Err(FrameError::Key { expected: kind });
        }
        // RFC 6581 section 6 defines revision 2. siw accepts 0 as well.
        let revision = fields[1];
        if revision > REVISION_2 {
            return Err(FrameError::Revision(revision));
        }
        let length = usize::from(u16::from_be_bytes([fields[2], fields[3]]));
        if length > MAX_PRIVATE_DATA {
            return Err(FrameError::TooLong(length));
        }
        if has_enhanced(Flags::from_bits_retain(high_byte(fields)), revision)
            && length < ENHANCED_LEN
        {
            return Err(FrameError::NoEnhancedWords(length));
        }
        Ok(HEADER_LEN + length)
    }

    /// Parses a whole frame of exactly the bytes that [`Frame::length`] returned.
    pub fn decode(bytes: &[u8], kind: FrameKind) -> Result<Frame, FrameError> {
        let header = bytes.first_chunk().ok_or(FrameError::Cut(bytes.len()))?;
        let length = Frame::length(header, kind)?;
        let Some(rest) = bytes.get(HEADER_LEN..length) else {
            return Err(FrameError::Cut(bytes.len()));
        };
        if bytes.len() > length {
            return Err(FrameError::Extra(bytes.len() - length));
        }
        let flags = Flags::from_bits_retain(high_byte(&header[16..]));
        let revision = header[17];
        let (enhanced, data) = match rest.split_first_chunk() {
            Some((words, data)) if has_enhanced(flags, revision) => {
                (Some(Enhanced::decode(*words)), data)
            }
            _ => (None, rest),
        };
        Ok(Frame {
            kind,
            flags,
            revision,
            enhanced,
            private_data: PrivateData(data.to_vec()),
        })
    }
}

fn high_byte(fields: &[u8]) -> u16 {
    u16::from(fields[0]) << 8
}

fn has_enhanced(flags: Flags, revision: u8) -> bool {
    flags.contains(Flags::ENHANCED) && revision == REVISION_2
}
