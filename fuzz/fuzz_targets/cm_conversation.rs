//! Arbitrary bytes as messages and calls to a connection manager. Checks that nothing panics, and
//! that no state is left after all connections are destroyed and all deadlines have passed.

#![no_main]

#[path = "../../crates/cm/tests/rules/drive.rs"]
mod drive;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    drive::drive(data);
});
