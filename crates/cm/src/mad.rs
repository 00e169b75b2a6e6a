//! Management datagrams (MADs): the header of every CM message.

use crate::codec::Body;
use crate::message::Message;

/// Length of a MAD.
pub const MAD_LEN: usize = 256;

/// Length of the MAD header.
const HEADER_LEN: usize = 24;
const BASE_VERSION: u8 = 1;
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 0x03;

/// A CM message and the fields of its MAD header.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Mad {
    /// Transaction ID. An answer repeats the transaction ID of the answered message.
    pub tid: u64,
    /// Attribute modifier: the options of enhanced connection establishment, else 0.
    pub modifier: u32,
    /// The message.
    pub message: Message,
}

/// The reason why bytes are not a CM message.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The length is not 256 bytes.
    #[error("length of {0} bytes, but a MAD has 256")]
    Length(usize),
    /// The version of the MAD header is unknown.
    #[error("unknown MAD version {0}")]
    BaseVersion(u8),
    /// The MAD belongs to another management class.
    #[error("management class {0:#04x} is not connection management (0x07)")]
    Class(u8),
    /// The version of the connection management class is unknown.
    #[error("unknown version {0} of connection management")]
    ClassVersion(u8),
    /// The method is not Send, the only method of connection management.
    #[error("unknown method {0:#04x}")]
    Method(u8),
    /// The attribute ID is not that of a CM message.
    #[error("unknown attribute {0:#06x}")]
    Attribute(u16),
}

impl Mad {
    /// Decodes a MAD.
    ///
    /// # Errors
    /// If the bytes are not a CM message.
    pub fn decode(bytes: &[u8]) -> Result<Mad, DecodeError> {
        let bytes: &[u8; MAD_LEN] = bytes
            .try_into()
            .map_err(|_| DecodeError::Length(bytes.len()))?;
        let (header, body) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .expect("the header is shorter than a MAD");
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

    /// Encodes the MAD.
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
