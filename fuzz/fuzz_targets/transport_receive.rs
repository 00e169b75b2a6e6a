//! Arbitrary bytes as packets to RC, UC, UD and XRC queue pairs: nothing
//! panics, no memory is touched that is not registered, and what there is to
//! send has an end.

#![no_main]

#[path = "../../crates/transport/tests/rules/drive.rs"]
mod drive;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| drive::drive(data));
