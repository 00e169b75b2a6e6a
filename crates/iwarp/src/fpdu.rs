//! FPDUs: the frames into which MPA divides the byte stream.
//!
//! ```text
//!   | length 2 | headers and payload: the ULPDU, `length` bytes | pad 0..3 | CRC 4 |
//! ```
//!
//! [`FpduReader`] takes the received bytes, cut anywhere, and passes headers and payload to a
//! [`Sink`].
//!
//! - Without CRCs it keeps at most the headers of one FPDU. Payload goes to the sink as it
//!   arrives, so that the sink places it without a copy in between.
//! - With CRCs the sink sees nothing of an FPDU before its CRC has been checked: a damaged
//!   header could lead payload to the wrong place. An FPDU that is cut is kept until it is
//!   complete, at most 64 KiB. An FPDU in one piece is not copied.

use core::mem;

use thiserror::Error;

use crate::crc::{self, CRC_LEN};
use crate::header::Header;
use crate::opcode::{LENGTH_LEN, Opcode, READ_REQUEST_LEN};
use crate::terminate::Code;

/// Returns the number of pad bytes behind a ULPDU.
///
/// RFC 5044 4.1: an FPDU is a multiple of 4 bytes long.
#[inline]
pub const fn padding(ulpdu: usize) -> usize {
    (LENGTH_LEN + ulpdu).wrapping_neg() & 3
}

/// Returns the bytes of the FPDU with a ULPDU of `ulpdu` bytes.
#[inline]
pub const fn fpdu_len(ulpdu: usize) -> usize {
    LENGTH_LEN + ulpdu + padding(ulpdu) + CRC_LEN
}

/// Returns the longest FPDU for a TCP segment of `mss` bytes.
///
/// RFC 5044 4.5: an FPDU should fit into a TCP segment. siw rounds down to a multiple of 8,
/// so that only the last FPDU of a message has pad bytes.
#[inline]
pub const fn max_fpdu(mss: u32) -> usize {
    const MOST: usize = fpdu_len(u16::MAX as usize - 1) & !7;
    const LEAST: usize = 128;
    let fits = mss as usize & !7;
    if fits > MOST {
        MOST
    } else if fits < LEAST {
        LEAST
    } else {
        fits
    }
}

/// The defect of an FPDU.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum FpduError {
    /// The CRC is wrong.
    #[error("an FPDU of {length} bytes has a wrong CRC")]
    Crc {
        /// Bytes of the FPDU.
        length: usize,
    },
    /// The ULPDU has no room for a control word.
    #[error("an FPDU has a ULPDU of {0} bytes, which holds no header")]
    Empty(u16),
    /// The ULPDU is shorter than the headers of its opcode.
    #[error("an FPDU has a ULPDU of {ulpdu} bytes, too short for the headers of a {opcode:?}")]
    Short {
        /// Bytes of the ULPDU.
        ulpdu: u16,
        /// Opcode.
        opcode: Opcode,
    },
    /// The control word has a wrong version or opcode.
    #[error("the control word of an FPDU is refused, {0}")]
    Control(Code),
}

impl FpduError {
    /// Returns the error code of the TERMINATE.
    pub const fn code(self) -> Code {
        match self {
            FpduError::Crc { .. } => Code::MPA_CRC,
            FpduError::Empty(_) | FpduError::Short { .. } => Code::MPA_LENGTH,
            FpduError::Control(code) => code,
        }
    }
}

/// The receiver of the parts of FPDUs: for each FPDU one `begin`, any number of `place`, and
/// one `end`.
pub trait Sink {
    /// The error by which the sink stops the reader.
    type Error: From<FpduError>;

    /// Takes the headers of an FPDU.
    fn begin(&mut self, header: &Header) -> Result<(), Self::Error>;

    /// Takes the next bytes of payload, at least one.
    fn place(&mut self, payload: &[u8]) -> Result<(), Self::Error>;

    /// Ends the FPDU.
    fn end(&mut self) -> Result<(), Self::Error>;
}

/// A parser of FPDUs in a byte stream.
///
/// After an error the stream has no known frames any more, and the reader must not be used
/// again.
#[derive(Clone, Debug)]
pub struct FpduReader {
    crc: bool,
    state: State,
    /// The headers of the present FPDU, as far as they have arrived.
    header: [u8; READ_REQUEST_LEN],
    have: u8,
    /// With CRCs: the present FPDU, as far as it has arrived, if it was cut.
    held: Vec<u8>,
}

/// The part of the FPDU that comes next, without CRCs.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum State {
    Header,
    /// Bytes of payload and, behind them, of pad and CRC that are missing.
    Payload {
        left: u32,
        trailer: u8,
    },
    Trailer {
        left: u8,
    },
}

impl Default for FpduReader {
    fn default() -> FpduReader {
        FpduReader::new(false)
    }
}

impl FpduReader {
    /// Creates a reader for a stream with or without CRCs.
    pub fn new(crc: bool) -> FpduReader {
        FpduReader {
            crc,
            state: State::Header,
            header: [0; READ_REQUEST_LEN],
            have: 0,
            held: Vec::new(),
        }
    }

    /// True if no FPDU is incomplete.
    pub fn is_between_fpdus(&self) -> bool {
        self.state == State::Header && self.have == 0 && self.held.is_empty()
    }

    /// Returns the number of bytes until the end of the present FPDU; none if its length is not
    /// known.
    pub fn left_of_fpdu(&self) -> Option<usize> {
        let have = usize::from(self.have);
        let (begun, held) = match (&self.state, self.held.len()) {
            (State::Payload { left, trailer }, _) => {
                return Some(*left as usize + usize::from(*trailer));
            }
            (State::Trailer { left }, _) => return Some((*left).into()),
            (State::Header, 0) => (&self.header[..have], have),
            (State::Header, held) => (&self.held[..], held),
        };
        match held {
            0 => Some(0),
            _ => (held >= LENGTH_LEN).then(|| length_at(begun) - held),
        }
    }

    /// Takes received bytes and passes their parts to `sink`.
    pub fn read<S: Sink>(&mut self, input: &[u8], sink: &mut S) -> Result<(), S::Error> {
        match self.crc {
            true => self.read_checked(input, sink),
            false => self.read_unchecked(input, sink),
        }
    }

    /// Returns the number of payload bytes that come next, if the stream has no CRCs. The
    /// caller may write that many received bytes to their place itself and call
    /// [`FpduReader::skip`].
    pub fn expected_payload(&self) -> u32 {
        match self.state {
            State::Payload { left, .. } => left,
            _ => 0,
        }
    }

    /// Skips `bytes` of payload that the caller has placed itself.
    pub fn skip(&mut self, bytes: u32) {
        if let State::Payload { left, trailer } = self.state {
            debug_assert!(bytes <= left);
            self.state = payload_or_trailer(left.saturating_sub(bytes), trailer);
        }
    }

    fn read_unchecked<S: Sink>(&mut self, mut input: &[u8], sink: &mut S) -> Result<(), S::Error> {
        while !input.is_empty() {
            match self.state {
                State::Header => {
                    let taken = self.take_header(input)?;
                    input = &input[taken..];
                    let have = usize::from(self.have);
                    if have < 4 || have < Header::length(start(&self.header))? {
                        continue;
                    }
                    let header = Header::decode(&self.header[..have])?;
                    self.have = 0;
                    let trailer = padding(header.ulpdu_len().into()) + CRC_LEN;
                    self.state = payload_or_trailer(header.payload, trailer as u8);
                    sink.begin(&header)?;
                }
                State::Payload { left, trailer } => {
                    let now = input.len().min(left as usize);
                    self.state = payload_or_trailer(left - now as u32, trailer);
                    sink.place(&input[..now])?;
                    input = &input[now..];
                }
                State::Trailer { left } => {
                    let now = input.len().min(left.into());
                    input = &input[now..];
                    let left = left - now as u8;
                    self.state = State::Trailer { left };
                    if left == 0 {
                        self.state = State::Header;
                        sink.end()?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes bytes of the headers. Returns their number.
    fn take_header(&mut self, input: &[u8]) -> Result<usize, FpduError> {
        let mut taken = self.fill_header(input, 4);
        if self.have >= 2 {
            check_ulpdu(&self.header)?;
        }
        if self.have >= 4 {
            let length = Header::length(start(&self.header))?;
            taken += self.fill_header(&input[taken..], length);
        }
        Ok(taken)
    }

    fn fill_header(&mut self, input: &[u8], length: usize) -> usize {
        let have = usize::from(self.have);
        let now = length.saturating_sub(have).min(input.len());
        self.header[have..][..now].copy_from_slice(&input[..now]);
        self.have += now as u8;
        now
    }

    fn read_checked<S: Sink>(&mut self, mut input: &[u8], sink: &mut S) -> Result<(), S::Error> {
        while !input.is_empty() {
            if self.held.is_empty()
                && let Some(length) = whole(input)
            {
                pass_whole(&input[..length], sink)?;
                input = &input[length..];
                continue;
            }
            // The length word may itself be cut.
            input = self.hold(input, LENGTH_LEN);
            if self.held.len() < LENGTH_LEN {
                break;
            }
            let length = length_at(&self.held);
            input = self.hold(input, length);
            if self.held.len() == length {
                let fpdu = mem::take(&mut self.held);
                pass_whole(&fpdu, sink)?;
                // Keep the buffer: the next FPDUs are probably cut, too.
                self.held = fpdu;
                self.held.clear();
            }
        }
        Ok(())
    }

    /// Holds bytes of `input` until `length` are held. Returns the rest.
    fn hold<'a>(&mut self, input: &'a [u8], length: usize) -> &'a [u8] {
        let missing = length.saturating_sub(self.held.len());
        let (now, rest) = input.split_at(missing.min(input.len()));
        self.held.extend_from_slice(now);
        rest
    }
}

fn payload_or_trailer(left: u32, trailer: u8) -> State {
    match left {
        0 => State::Trailer { left: trailer },
        _ => State::Payload { left, trailer },
    }
}

fn start(header: &[u8; READ_REQUEST_LEN]) -> [u8; 4] {
    let [a, b, c, d, ..] = *header;
    [a, b, c, d]
}

/// Refuses a ULPDU without control word. The headers' own length is checked once the opcode
/// is known.
fn check_ulpdu(fpdu: &[u8]) -> Result<(), FpduError> {
    match u16::from_be_bytes([fpdu[0], fpdu[1]]) {
        ulpdu @ (0 | 1) => Err(FpduError::Empty(ulpdu)),
        _ => Ok(()),
    }
}

/// Returns the length of the FPDU that starts with these bytes.
fn length_at(fpdu: &[u8]) -> usize {
    fpdu_len(u16::from_be_bytes([fpdu[0], fpdu[1]]).into())
}

/// Returns the length of the FPDU at the start of `input` if all of it is there.
fn whole(input: &[u8]) -> Option<usize> {
    let length = (input.len() >= LENGTH_LEN).then(|| length_at(input))?;
    (input.len() >= length).then_some(length)
}

/// Checks the CRC of a whole FPDU and passes its parts.
fn pass_whole<S: Sink>(fpdu: &[u8], sink: &mut S) -> Result<(), S::Error> {
    let (covered, crc) = fpdu.split_at(fpdu.len() - CRC_LEN);
    if crc != crc::of(covered) {
        let length = fpdu.len();
        return Err(FpduError::Crc { length }.into());
    }
    check_ulpdu(fpdu)?;
    let Some(first) = fpdu.first_chunk() else {
        return Err(FpduError::Empty(0).into());
    };
    let length = Header::length(*first)?;
    let header = Header::decode(&fpdu[..length])?;
    sink.begin(&header)?;
    if header.payload > 0 {
        sink.place(&fpdu[length..][..header.payload as usize])?;
    }
    sink.end()
}
