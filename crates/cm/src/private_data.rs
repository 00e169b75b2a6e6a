//! Private data: bytes that programs exchange in CM messages.

use core::fmt;
use core::ops::Deref;

/// The private data field of a message.
///
/// The field is always sent whole and has no length. A receiver sees all `N` bytes: the
/// bytes of the sender, followed by zeros.
#[derive(Copy, Clone, PartialEq, Eq)]
pub struct PrivateData<const N: usize>(pub [u8; N]);

/// The error for private data that is longer than its field.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len} bytes of private data are too many: the field holds {room}")]
pub struct TooLong {
    /// Length of the private data.
    pub len: usize,
    /// Largest length that fits.
    pub room: usize,
}

impl<const N: usize> PrivateData<N> {
    /// All zeros.
    pub const EMPTY: PrivateData<N> = PrivateData([0; N]);

    /// Returns the field with `bytes` at its start.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn new(bytes: &[u8]) -> Result<PrivateData<N>, TooLong> {
        PrivateData::at(0, bytes)
    }

    /// Returns the field with `bytes` from `start` on, for example after the rdma_cm header.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn at(start: usize, bytes: &[u8]) -> Result<PrivateData<N>, TooLong> {
        let room = N.saturating_sub(start);
        if bytes.len() > room {
            let len = bytes.len();
            return Err(TooLong { len, room });
        }
        let mut field = [0; N];
        field[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(PrivateData(field))
    }

    /// Returns the field without the zeros at its end.
    fn used(&self) -> &[u8] {
        let used = self.0.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
        &self.0[..used]
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> PrivateData<N> {
        PrivateData::EMPTY
    }
}

impl<const N: usize> Deref for PrivateData<N> {
    type Target = [u8; N];
    fn deref(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> serde::Serialize for PrivateData<N> {
    /// Writes hexadecimal digits, without the zeros at the end.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut digits = String::with_capacity(2 * N);
        for byte in self.used() {
            for half in [byte >> 4, byte & 15] {
                digits.push(DIGITS[usize::from(half)].into());
            }
        }
        serializer.serialize_str(&digits)
    }
}

impl<'de, const N: usize> serde::Deserialize<'de> for PrivateData<N> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let digits = String::deserialize(deserializer)?;
        let value = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
        let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
        let bytes = pairs
            .iter()
            .map(|[high, low]| Some(value(*high)? << 4 | value(*low)?));
        let bytes: Option<Vec<u8>> = bytes.collect();
        let bytes = bytes
            .filter(|_| rest.is_empty())
            .ok_or_else(|| D::Error::custom("private data is not pairs of hexadecimal digits"))?;
        PrivateData::new(&bytes).map_err(D::Error::custom)
    }
}

impl<const N: usize> fmt::Debug for PrivateData<N> {
    /// Prints the bytes without the zeros at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?} of {N}", self.used())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_padded_with_zeros() {
        assert_eq!(PrivateData::<4>::new(&[1, 2]).unwrap().0, [1, 2, 0, 0]);
        assert_eq!(PrivateData::<4>::at(3, &[1]).unwrap().0, [0, 0, 0, 1]);
    }

    #[test]
    fn a_field_survives_serialisation() {
        let field = PrivateData::<4>::new(&[0xfe, 0, 1]).unwrap();
        let text = serde_json::to_string(&field).unwrap();
        assert_eq!(text, "\"fe0001\"");
        assert_eq!(
            serde_json::from_str::<PrivateData<4>>(&text).unwrap(),
            field
        );
        for bad in ["\"f\"", "\"0g\"", "\"0102030405\"", "\"\u{e9}\"", "7"] {
            assert!(
                serde_json::from_str::<PrivateData<4>>(bad).is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn private_data_that_does_not_fit_is_an_error() {
        let error = PrivateData::<4>::at(2, &[1, 2, 3]).unwrap_err();
        assert_eq!(error, TooLong { len: 3, room: 2 });
        assert!(PrivateData::<4>::new(&[0; 5]).is_err());
        assert!(PrivateData::<4>::at(9, &[1]).is_err());
    }
}
