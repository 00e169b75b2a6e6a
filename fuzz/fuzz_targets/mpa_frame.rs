//! Arbitrary bytes as an MPA frame. Checks that nothing panics, that a parsed frame is encoded
//! to the same bytes, and that the result does not depend on how the bytes are cut.

#![no_main]

#[path = "../../crates/iwarp/tests/rules/drive.rs"]
#[allow(dead_code)] // the other target uses the rest
mod drive;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| drive::mpa_frame(data));
