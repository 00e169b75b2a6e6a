//! Arbitrary bytes as packets to RC, UC, UD and XRC queue pairs. Checks that nothing panics,
//! that no unregistered memory is accessed, and that sending ends.

#![no_main]

#[path = "../../crates/roce/tests/rules/drive.rs"]
mod drive;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| drive::drive(data));
