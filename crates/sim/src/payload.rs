//! Message contents, computed from the seed and the work request. They differ
//! between requests and offsets, so a misplaced byte is almost surely detected.

use std::rc::Rc;

/// Returns the payload of work request `wr_id` in the run of `seed`.
pub(crate) fn payload(seed: u64, wr_id: u64, len: usize) -> Rc<[u8]> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ wr_id.rotate_left(32);
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        let word = next(&mut state).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    bytes.into()
}

/// Returns a number that no other work request of the run has.
pub(crate) fn unique(seed: u64, wr_id: u64) -> u64 {
    let mut state = seed.rotate_left(17) ^ wr_id;
    next(&mut state)
}

/// Returns the next output of SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
