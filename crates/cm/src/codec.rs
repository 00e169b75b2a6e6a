//! Reads and writes fields of a message body.
//!
//! A body always has 232 bytes and all offsets are constants, so received bytes cannot
//! cause a read past the end. A wrong constant panics in the first test.

use crate::Gid;

/// The bytes after the MAD header.
pub(crate) type Body = [u8; 232];

fn array<const N: usize>(body: &Body, at: usize) -> [u8; N] {
    *body[at..].first_chunk().expect("offsets lie in the body")
}

pub(crate) fn get16(body: &Body, at: usize) -> u16 {
    u16::from_be_bytes(array(body, at))
}

pub(crate) fn get24(body: &Body, at: usize) -> u32 {
    get32(body, at) >> 8
}

pub(crate) fn get32(body: &Body, at: usize) -> u32 {
    u32::from_be_bytes(array(body, at))
}

pub(crate) fn get64(body: &Body, at: usize) -> u64 {
    u64::from_be_bytes(array(body, at))
}

pub(crate) fn get_gid(body: &Body, at: usize) -> Gid {
    Gid(array(body, at))
}

pub(crate) fn get_bytes<const N: usize>(body: &Body, at: usize) -> [u8; N] {
    array(body, at)
}

/// Returns bits `high` to `low` of the byte at `at`. Bit 7 is the most significant.
pub(crate) fn get_bits(body: &Body, at: usize, high: u32, low: u32) -> u8 {
    body[at] >> low & mask(high, low)
}

pub(crate) fn get_flag(body: &Body, at: usize, bit: u32) -> bool {
    body[at] >> bit & 1 != 0
}

pub(crate) fn put16(body: &mut Body, at: usize, value: u16) {
    put_bytes(body, at, &value.to_be_bytes());
}

/// Writes the low 24 bits and leaves the byte after them unchanged.
pub(crate) fn put24(body: &mut Body, at: usize, value: u32) {
    put_bytes(body, at, &value.to_be_bytes()[1..]);
}

pub(crate) fn put32(body: &mut Body, at: usize, value: u32) {
    put_bytes(body, at, &value.to_be_bytes());
}

pub(crate) fn put64(body: &mut Body, at: usize, value: u64) {
    put_bytes(body, at, &value.to_be_bytes());
}

pub(crate) fn put_bytes(body: &mut Body, at: usize, bytes: &[u8]) {
    body[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Writes bits `high` to `low` of the byte at `at`, which must still be zero.
pub(crate) fn put_bits(body: &mut Body, at: usize, high: u32, low: u32, value: u8) {
    body[at] |= (value & mask(high, low)) << low;
}

pub(crate) fn put_flag(body: &mut Body, at: usize, bit: u32, value: bool) {
    put_bits(body, at, bit, bit, u8::from(value));
}

/// Returns a mask of as many low bits as there are from `low` to `high`.
fn mask(high: u32, low: u32) -> u8 {
    0xff >> (7 - (high - low))
}
