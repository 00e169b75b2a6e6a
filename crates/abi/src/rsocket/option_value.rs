//! Values of socket options.

use core::ffi::c_int;

/// What an option is set to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum OptionValue {
    Int(c_int),
    Bytes(Vec<u8>),
}

impl OptionValue {
    /// The bytes that a program gets.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            OptionValue::Int(number) => number.to_ne_bytes().to_vec(),
            OptionValue::Bytes(bytes) => bytes.clone(),
        }
    }
}

/// An option's value that should be a number.
pub(crate) fn int_of(value: &[u8]) -> Result<c_int, c_int> {
    let bytes = value.get(..size_of::<c_int>()).ok_or(libc::EINVAL)?;
    Ok(c_int::from_ne_bytes([
        bytes[0], bytes[1], bytes[2], bytes[3],
    ]))
}
