//! Arbitrary bytes as the stream of an iWARP queue pair. Checks that nothing panics, that no
//! unregistered memory is accessed, and that each work request completes once.

#![no_main]

#[path = "../../crates/iwarp/tests/rules/drive.rs"]
#[allow(dead_code)] // the other target uses the rest
mod drive;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| drive::stream(data));
