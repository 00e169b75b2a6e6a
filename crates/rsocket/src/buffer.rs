//! Copies between slices and rings in registered memory.

use ferroce_device::Buffer;

use crate::flow::Pieces;

/// Copies a range of a ring to the start of a slice.
pub(crate) fn copy_out(ring: &Buffer, pieces: &Pieces, mut to: &mut [u8]) {
    for (offset, length) in pieces.iter() {
        let (part, rest) = to.split_at_mut(length as usize);
        ring.read(offset as usize, part);
        to = rest;
    }
}

/// Copies the start of a slice to a range of a ring.
pub(crate) fn copy_in(ring: &Buffer, pieces: &Pieces, mut from: &[u8]) {
    for (offset, length) in pieces.iter() {
        let (part, rest) = from.split_at(length as usize);
        ring.write(offset as usize, part);
        from = rest;
    }
}
