//! Arbitrary bytes as messages and calls to a connection manager: nothing
//! panics, and when everybody has left nothing remains.

#![no_main]

#[path = "../../crates/cm/tests/rules/drive.rs"]
mod drive;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    drive::drive(data);
});
