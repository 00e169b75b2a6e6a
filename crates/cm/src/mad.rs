//! Management datagrams: the header in front of every message.

use crate::codec::Body;
use crate::message::Message;

/// Length of a MAD.
pub const MAD_LEN: usize = 256;

/// Length of its header.
const HEADER_LEN: usize = 24;
const BASE_VERSION: u8 = 1;
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 0x03;

/// A message with what its MAD header says.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Mad {
    /// Transaction ID. Answers repeat that of the message they answer.
    pub tid: u64,
    /// Attribute modifier: options of enhanced connection establishment, else 0.
    pub modifier: u32,
    /// The message.
    pub message: Message,
}

/// Why bytes are not a message of the connection manager.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not the length of a MAD.
    #[error("{0} bytes, where a MAD has 256")]
    Length(usize),
    /// Unknown version of the MAD header.
    #[error("unknown MAD version {0}")]
    BaseVersion(u8),
    /// A MAD for somebody else.
    #[error("management class {0:#04x} is not that of connection management")]
    Class(u8),
    /// Unknown version of connection management.
    #[error("unknown version {0} of connection management")]
    ClassVersion(u8),
    /// Messages are sent, nothing else.
    #[error("unknown method {0:#04x}")]
    Method(u8),
    /// No such message.
    #[error("unknown attribute {0:#06x}")]
    Attribute(u16),
}

impl Mad {
    /// Reads a MAD.
    ///
    /// # Errors
    /// If it is not a message of the connection manager.
    pub fn decode(bytes: &[u8]) -> Result<Mad, DecodeError> {
        let bytes: &[u8; MAD_LEN] = bytes
            .try_into()
            .map_err(|_| DecodeError::Length(bytes.len()))?;
        let (header, body) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .expect("a header is shorter than a MAD");
        match *header {
            [BASE_VERSION, CLASS, CLASS_VERSION, METHOD_SEND, ..] => {}
            [BASE_VERSION, CLASS, CLASS_VERSION, method, ..] => {
                return Err(DecodeError::Method(method));
            }
            [BASE_VERSION, CLASS, version, ..] => return Err(DecodeError::ClassVersion(version)),
            [BASE_VERSION, class, ..] => return Err(DecodeError::Class(class)),
            [version, ..] => return Err(DecodeError::BaseVersion(version)),
        }
        let body: &Body = body.try_into().expect("the rest of a MAD is a body");
        let attribute = u16::from_be_bytes([header[16], header[17]]);
        Ok(Mad {
            tid: u64::from_be_bytes(*header[8..].first_chunk().expect("within the header")),
            modifier: u32::from_be_bytes(*header[20..].first_chunk().expect("within the header")),
            message: Message::parse(attribute, body).ok_or(DecodeError::Attribute(attribute))?,
        })
    }

    /// Writes a MAD.
    pub fn encode(&self) -> [u8; MAD_LEN] {
        let mut bytes = [0; MAD_LEN];
        bytes[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, METHOD_SEND]);
        bytes[8..16].copy_from_slice(&self.tid.to_be_bytes());
        bytes[16..18].copy_from_slice(&self.message.attribute().to_be_bytes());
        bytes[20..24].copy_from_slice(&self.modifier.to_be_bytes());
        let body = &mut bytes[HEADER_LEN..];
        self.message
            .emit(body.try_into().expect("the rest of a MAD is a body"));
        bytes
    }
}
