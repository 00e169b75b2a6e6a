//! Values of socket options.

use core::ffi::c_int;

use crate::{Errno, Result};

/// The value of a socket option.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum OptionValue {
    /// An `int`.
    Int(c_int),
    /// A structure.
    Bytes(Vec<u8>),
}

impl OptionValue {
    /// Returns the bytes that `getsockopt` copies to the caller.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            OptionValue::Int(number) => number.to_ne_bytes().to_vec(),
            OptionValue::Bytes(bytes) => bytes.clone(),
        }
    }
}

/// Reads an option's value as an `int`; EINVAL if it is shorter.
pub(crate) fn int_of(value: &[u8]) -> Result<c_int> {
    let bytes = value.first_chunk().ok_or(Errno::INVAL)?;
    Ok(c_int::from_ne_bytes(*bytes))
}
