//! The example `write`, between two processes.

use std::process::Command;

use crate::support::{LINK, on_loopback};

#[path = "../../examples/write.rs"]
#[allow(dead_code)] // its `main`
mod write;

/// Set in the process that is the target.
const TARGET: &str = "FERROCE_TEST_WRITE_TARGET";

#[test]
fn the_example_writes_to_the_other_process() {
    let name = "example::the_example_writes_to_the_other_process";
    on_loopback(name, |_ferroced| {
        let this = std::env::current_exe().expect("a test program");
        let mut target = Command::new(this);
        target.args(["--exact", "example::target", "--nocapture"]);
        target.env(TARGET, LINK);
        write::writer(LINK, &mut target).expect("the target has the message");
    });
}

/// Not a test: the target's process.
#[test]
fn target() {
    if let Ok(link) = std::env::var(TARGET) {
        write::target(&link).expect("the writer writes");
    }
}
