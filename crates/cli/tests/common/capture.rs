//! A capture that runs beside a test, and tshark, which reads its file.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Starts a capture, and waits until it runs.
pub(crate) fn start(line: &str) -> (Child, BufReader<ChildStderr>) {
    let mut capture = super::command(&format!("ferroce capture {line}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ferroce starts");
    let mut messages = BufReader::new(capture.stderr.take().expect("piped"));
    let mut first = String::new();
    messages.read_line(&mut first).expect("text");
    assert_eq!(first, "capturing; Ctrl-C ends\n");
    (capture, messages)
}

/// Ends a capture as Ctrl-C does. Returns its messages.
pub(crate) fn end((mut capture, mut messages): (Child, BufReader<ChildStderr>)) -> String {
    let pid = Pid::from_child(&capture);
    kill_process(pid, Signal::INT).expect("it runs");
    let mut text = String::new();
    messages.read_to_string(&mut text).expect("text");
    assert!(capture.wait().expect("it ends").success(), "{text}");
    text
}

/// Runs tshark on a file. Returns none if it is not installed.
pub(crate) fn tshark(file: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("tshark")
        .args(["-r".as_ref(), file.as_os_str()])
        .args(arguments)
        .output();
    let Ok(output) = output else {
        let line = "*** SKIPPED: tshark, which reads the capture, is not installed ***";
        assert!(std::env::var_os("CI").is_none(), "{line}");
        eprintln!("{line}");
        return None;
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Some(String::from_utf8(output.stdout).expect("text"))
}
