//! Private data: what programs tell each other in connection messages.

use core::fmt;
use core::ops::Deref;

/// The private data field of a message, which is always sent whole.
///
/// The field has no length: a receiver sees all `N` bytes, with zeros behind
/// what the sender passed.
#[derive(Copy, Clone, PartialEq, Eq)]
pub struct PrivateData<const N: usize>(pub [u8; N]);

/// Private data does not fit its field.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len} bytes of private data, where {room} fit")]
pub struct TooLong {
    /// Bytes there are.
    pub len: usize,
    /// Bytes that fit.
    pub room: usize,
}

impl<const N: usize> PrivateData<N> {
    /// All zeros.
    pub const EMPTY: PrivateData<N> = PrivateData([0; N]);

    /// The field with `bytes` at its beginning.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn new(bytes: &[u8]) -> Result<PrivateData<N>, TooLong> {
        PrivateData::at(0, bytes)
    }

    /// The field with `bytes` from `start` on, as behind the header of rdma_cm.
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

impl<const N: usize> fmt::Debug for PrivateData<N> {
    /// Without the zeros at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
        write!(f, "{:02x?} of {N}", &self.0[..used])
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
    fn private_data_that_does_not_fit_is_an_error() {
        let error = PrivateData::<4>::at(2, &[1, 2, 3]).unwrap_err();
        assert_eq!(error, TooLong { len: 3, room: 2 });
        assert!(PrivateData::<4>::new(&[0; 5]).is_err());
        assert!(PrivateData::<4>::at(9, &[1]).is_err());
    }
}
