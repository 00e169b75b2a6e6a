//! The DDP and RDMAP headers of a segment.
//!
//! ```text
//!   tagged:    length 2 | control 2 | STag 4 | offset 8
//!   untagged:  length 2 | control 2 | STag to invalidate 4 | QN 4 | MSN 4 | MO 4
//!   Read Request, behind the untagged header:
//!              sink STag 4 | sink offset 8 | size 4 | source STag 4 | source offset 8
//! ```

use crate::fpdu::FpduError;
use crate::opcode::{Control, LENGTH_LEN, Opcode, TAGGED_LEN, UNTAGGED_LEN};

/// The headers of a segment.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Opcode.
    pub opcode: Opcode,
    /// L: the segment is the last one of its message.
    pub last: bool,
    /// The place of the payload.
    pub place: Place,
    /// Bytes of payload behind the headers.
    pub payload: u32,
}

/// The place of a segment's payload.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// Memory that an STag names.
    Tagged {
        /// STag: the key of a region.
        stag: u32,
        /// Address as the region counts.
        offset: u64,
    },
    /// The next buffer of a queue.
    Untagged {
        /// STag that a SEND invalidates; else 0.
        invalidate: u32,
        /// Queue number.
        queue: u32,
        /// Message sequence number in the queue.
        msn: u32,
        /// Offset of the segment in the message.
        mo: u32,
        /// The headers of a Read Request.
        read: Option<ReadRequest>,
    },
}

/// The RDMAP header of a Read Request.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadRequest {
    /// STag of the requester's memory.
    pub sink_stag: u32,
    /// Offset in the requester's memory.
    pub sink_offset: u64,
    /// Bytes to read.
    pub size: u32,
    /// STag of the responder's memory.
    pub source_stag: u32,
    /// Offset in the responder's memory.
    pub source_offset: u64,
}

impl Header {
    /// Returns the header of a tagged segment.
    pub const fn tagged(
        opcode: Opcode,
        last: bool,
        stag: u32,
        offset: u64,
        payload: u32,
    ) -> Header {
        Header {
            opcode,
            last,
            place: Place::Tagged { stag, offset },
            payload,
        }
    }

    /// Returns the value of the length word: the bytes of the ULPDU.
    pub fn ulpdu_len(&self) -> u16 {
        (self.opcode.header_len() - LENGTH_LEN) as u16 + self.payload as u16
    }

    /// Appends the length word and the headers to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let control = Control {
            opcode: self.opcode,
            last: self.last,
        };
        out.extend_from_slice(&self.ulpdu_len().to_be_bytes());
        out.extend_from_slice(&control.encode().to_be_bytes());
        match self.place {
            Place::Tagged { stag, offset } => {
                out.extend_from_slice(&stag.to_be_bytes());
                out.extend_from_slice(&offset.to_be_bytes());
            }
            Place::Untagged {
                invalidate,
                queue,
                msn,
                mo,
                read,
            } => {
                for word in [invalidate, queue, msn, mo] {
                    out.extend_from_slice(&word.to_be_bytes());
                }
                if let Some(read) = read {
                    read.encode(out);
                }
            }
        }
    }

    /// Returns the bytes of the headers, with the length word, by the first four of them.
    pub fn length(start: [u8; 4]) -> Result<usize, FpduError> {
        let [a, b, c, d] = start;
        let ulpdu = u16::from_be_bytes([a, b]);
        let control = Control::decode(u16::from_be_bytes([c, d])).map_err(FpduError::Control)?;
        let header = control.opcode.header_len();
        match LENGTH_LEN + usize::from(ulpdu) < header {
            true => Err(FpduError::Short {
                ulpdu,
                opcode: control.opcode,
            }),
            false => Ok(header),
        }
    }

    /// Parses the headers of exactly the bytes that [`Header::length`] returned.
    pub fn decode(bytes: &[u8]) -> Result<Header, FpduError> {
        let mut fields = Fields(bytes);
        let start: u32 = fields.u32();
        let length = Header::length(start.to_be_bytes())?;
        let control = Control::decode(start as u16).map_err(FpduError::Control)?;
        let place = match control.opcode.is_tagged() {
            true => Place::Tagged {
                stag: fields.u32(),
                offset: fields.u64(),
            },
            false => Place::Untagged {
                invalidate: fields.u32(),
                queue: fields.u32(),
                msn: fields.u32(),
                mo: fields.u32(),
                read: (control.opcode == Opcode::ReadRequest)
                    .then(|| ReadRequest::decode(&mut fields)),
            },
        };
        Ok(Header {
            opcode: control.opcode,
            last: control.last,
            place,
            payload: (start >> 16) + LENGTH_LEN as u32 - length as u32,
        })
    }

    /// Returns the length of the DDP header alone, with the length word.
    pub(crate) const fn ddp_len(&self) -> usize {
        match self.place {
            Place::Tagged { .. } => TAGGED_LEN,
            Place::Untagged { .. } => UNTAGGED_LEN,
        }
    }
}

impl ReadRequest {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.sink_stag.to_be_bytes());
        out.extend_from_slice(&self.sink_offset.to_be_bytes());
        out.extend_from_slice(&self.size.to_be_bytes());
        out.extend_from_slice(&self.source_stag.to_be_bytes());
        out.extend_from_slice(&self.source_offset.to_be_bytes());
    }

    fn decode(fields: &mut Fields<'_>) -> ReadRequest {
        ReadRequest {
            sink_stag: fields.u32(),
            sink_offset: fields.u64(),
            size: fields.u32(),
            source_stag: fields.u32(),
            source_offset: fields.u64(),
        }
    }
}

/// Reads numbers one after the other. Bytes beyond the end read as zero; the caller passes
/// as many as the headers have.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&mut self) -> u32 {
        self.take().map_or(0, u32::from_be_bytes)
    }

    fn u64(&mut self) -> u64 {
        self.take().map_or(0, u64::from_be_bytes)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*number)
    }
}
