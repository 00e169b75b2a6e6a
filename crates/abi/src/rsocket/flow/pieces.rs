//! Bytes that lie in a ring, and so in one piece or in two.

/// Up to two pieces, in order: offset and length, none of them empty.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Pieces {
    pieces: [(u32, u32); 2],
}

impl Pieces {
    /// `length` bytes from `offset` on, in a ring of `size`.
    pub(crate) fn new(offset: u32, length: u32, size: u32) -> Pieces {
        let first = length.min(size - offset);
        Pieces {
            pieces: [(offset, first), (0, length - first)],
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        self.pieces.into_iter().filter(|piece| piece.1 > 0)
    }

    /// How many bytes.
    pub(crate) fn total(&self) -> u32 {
        self.pieces[0].1 + self.pieces[1].1
    }
}
