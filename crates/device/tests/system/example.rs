//! The example `write`, between two processes.

use std::process::Command;

use crate::support::{LINK, on_loopback};

#[path = "../../examples/write.rs"]
#[allow(dead_code)] // its `main`
mod write;

/// Environment variable that is set in the target's process.
const TARGET: &str = "FERROCE_TEST_WRITE_TARGET";

#[test]
fn example_writes_to_the_other_process() {
    let name = "example::example_writes_to_the_other_process";
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
