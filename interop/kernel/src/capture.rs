//! Captures of the guest's netdev, and two independent checks of them.
//!
//! tshark must be able to decode every packet. It does not check the invariant CRC;
//! `check_capture.py` computes it from the captured IP headers, and shares no code with
//! Ferroce.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ferroce_harness::{Running, deadline, now, pause};
use rustix::process::{Pid, Signal, kill_process};

use crate::network::{GUEST, TAP};

const CHECK: &str = include_str!("../check_capture.py");
const PATIENCE: Duration = Duration::from_secs(20);
/// Payload of the last packet of a capture.
const END: &[u8] = b"end of the capture";

/// A running capture.
pub(crate) struct Capture {
    dumpcap: Running,
    file: PathBuf,
}

impl Capture {
    /// Starts a capture; returns when dumpcap receives packets.
    pub(crate) fn begin(folder: &Path) -> Result<Capture> {
        let file = folder.join("packets.pcapng");
        let mut command = Command::new("dumpcap");
        // The limit is larger than any case needs, and keeps the disk from filling up.
        command
            .args(["-q", "-i", TAP, "-B", "32", "-a", "filesize:200000", "-w"])
            .arg(&file)
            .process_group(0);
        let mut dumpcap = Running::spawn(&mut command, folder, "dumpcap")?;
        dumpcap.wait_for_output("File:", PATIENCE)?;
        Ok(Capture { dumpcap, file })
    }

    /// Stops the capture. If it must be `complete`, first sends a last packet and waits until
    /// dumpcap has written it: packets that dumpcap has not read when it stops are lost.
    pub(crate) fn end(mut self, complete: bool) -> Result<PathBuf> {
        if complete {
            self.await_end()?;
        }
        let pid = Pid::from_raw(i32::try_from(self.dumpcap.id())?);
        kill_process(pid.context("the process ID is zero")?, Signal::INT)?;
        self.dumpcap.wait_for_end(deadline(PATIENCE))?;
        Ok(self.file)
    }

    fn await_end(&self) -> Result<()> {
        #[allow(clippy::disallowed_methods)] // a tool that marks the end of a capture
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.send_to(END, (GUEST[0], 9))?;
        let until = deadline(PATIENCE);
        let mut looked_at = 0;
        while now() < until {
            let bytes = fs::read(&self.file)?;
            let from = looked_at.min(bytes.len());
            if bytes[from..].windows(END.len()).any(|window| window == END) {
                return Ok(());
            }
            // Only a part of the last packet may be written yet.
            looked_at = bytes.len().saturating_sub(END.len());
            pause();
        }
        // The file is full, or the network dropped the last packet.
        Ok(())
    }
}

/// Checks a capture, which must contain the named operations. Writes the findings beside it.
pub(crate) fn check(file: &Path, operations: &str) -> Result<()> {
    let folder = file.parent().context("a capture without a folder")?;
    let script = folder.join("check_capture.py");
    fs::write(&script, CHECK)?;
    let words = operations.split_whitespace();
    let output = Command::new("python3")
        .arg(&script)
        .arg(file)
        .args(words)
        .output()?;
    fs::write(folder.join("check"), &output.stdout)?;
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "the capture has errors: {}{error}",
        first_lines(&said)
    );
    decode(file, folder)
}

/// Checks that tshark decodes every packet. tshark guesses the protocol of payloads and
/// reports a wrong guess as a malformed packet; such packets are ignored.
fn decode(file: &Path, folder: &Path) -> Result<()> {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(file)
        .args([
            "-Y",
            "udp.port == 4791 && (_ws.malformed || !infiniband.bth)",
        ])
        .args([
            "-T",
            "fields",
            "-e",
            "frame.number",
            "-e",
            "frame.protocols",
        ])
        .output()
        .context("cannot start tshark")?;
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    fs::write(folder.join("tshark"), said)?;
    ensure!(output.status.success(), "tshark failed ({})", output.status);
    let said = String::from_utf8_lossy(&output.stdout);
    let guessed = |line: &&str| {
        let payload = line.split_once(":infiniband:").map(|(_, payload)| payload);
        payload.is_some_and(|payload| payload != "data")
    };
    let wrong: Vec<&str> = said.lines().filter(|line| !guessed(line)).collect();
    ensure!(
        wrong.is_empty(),
        "tshark cannot decode: {}",
        first_lines(&wrong.join("\n"))
    );
    Ok(())
}

fn first_lines(text: &str) -> String {
    text.lines().take(3).collect::<Vec<_>>().join("; ")
}
