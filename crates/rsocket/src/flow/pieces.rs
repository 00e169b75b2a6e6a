//! A range of a ring buffer, which may wrap.

/// A range of a ring as up to two contiguous pieces.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Pieces {
    pieces: [(u32, u32); 2],
}

impl Pieces {
    /// Returns the range of `length` bytes from `offset` in a ring of `size` bytes.
    pub(crate) fn new(offset: u32, length: u32, size: u32) -> Pieces {
        let first = length.min(size - offset);
        Pieces {
            pieces: [(offset, first), (0, length - first)],
        }
    }

    /// Returns offset and length of each piece that is not empty, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        self.pieces.into_iter().filter(|piece| piece.1 > 0)
    }

    /// Returns the number of bytes.
    pub(crate) fn total(&self) -> u32 {
        self.pieces[0].1 + self.pieces[1].1
    }
}
