//! Asynchronous events on demand: a C program waits in `ibv_get_async_event`, and gets the event
//! that IBTA names for each fault. `ferroce explain` tells the reason.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Cleanup, FERROCE, ok, with_libraries};

fn compiled() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/events.c");
    let program = std::env::temp_dir().join(format!("ferroce-events-{}", std::process::id()));
    let status = Command::new("cc")
        .arg("-o")
        .args([&program, &source])
        .arg("-libverbs")
        .status();
    assert!(status.expect("cc").success());
    program
}

/// Runs the program with a fault until it got so many events. Returns its output.
fn events(program: &Path, fault: &str, count: usize) -> String {
    let output = Command::new(FERROCE)
        .args(["run", "--faults", fault, "--"])
        .arg(program)
        .arg(count.to_string())
        .stdin(Stdio::null())
        .output()
        .expect("ferroce starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{fault}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn each_fault_causes_the_event_that_ibta_names() {
    with_libraries("each_fault_causes_the_event_that_ibta_names", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let program = compiled();
        let cases: [(&str, &[&str], &str); 6] = [
            (
                "port down",
                &["port error, queue pair ready, down, GID"],
                "IBV_EVENT_PORT_ERR: the port is down, by a fault",
            ),
            (
                "gid removed",
                &["GID table change, queue pair ready, active, no GID"],
                "IBV_EVENT_GID_CHANGE: the GID table has changed, by a fault",
            ),
            (
                "device fatal",
                &["local catastrophic error, queue pair ready, active, GID"],
                "IBV_EVENT_DEVICE_FATAL: the device has failed, by a fault",
            ),
            (
                "srq limit",
                &["SRQ limit reached, queue pair ready, active, GID"],
                "IBV_EVENT_SRQ_LIMIT_REACHED: ",
            ),
            (
                "qp error after 4 packets",
                &["local work queue catastrophic error, queue pair in error, active, GID"],
                "vendor_err 0x70 (provoked)",
            ),
            (
                "cq overrun after 4 packets",
                &[
                    "CQ error, queue pair in error, active, GID",
                    "local work queue catastrophic error, queue pair in error, active, GID",
                ],
                "vendor_err 0x61 (cq-overflow)",
            ),
        ];
        for (fault, expected, reason) in cases {
            let output = events(&program, fault, expected.len());
            let mut lines: Vec<&str> = output.lines().collect();
            lines.sort_unstable();
            assert_eq!(lines, expected, "{fault}");
            let story = ok("ferroce explain");
            assert!(story.contains(reason), "{fault}: {story}");
        }
        // The port comes back.
        let output = events(&program, "port down for 50ms", 2);
        let lines: Vec<&str> = output.lines().collect();
        assert!(lines[0].starts_with("port error, "), "{output}");
        let up = "port active, queue pair ready, active, GID";
        assert_eq!(lines[1], up);
        let story = ok("ferroce explain");
        assert!(story.contains("IBV_EVENT_PORT_ACTIVE: "), "{story}");
        std::fs::remove_file(&program).expect("the program");
    });
}
