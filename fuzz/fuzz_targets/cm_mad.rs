//! Arbitrary bytes as a management datagram. Checks that nothing panics, and that a parsed
//! message is encoded to the same bytes except for reserved bits.

#![no_main]

#[path = "../../crates/cm/tests/common/reencode.rs"]
mod reencode;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| reencode::check(data));
