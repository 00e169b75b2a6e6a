//! Arbitrary bytes as a management datagram: nothing panics, and what is read
//! is written again with nothing but reserved bits lost.

#![no_main]

#[path = "../../crates/cm/tests/common/reencode.rs"]
mod reencode;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| reencode::check(data));
