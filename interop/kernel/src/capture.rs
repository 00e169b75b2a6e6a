//! Captures of what passes the guest's netdev, and two independent judges of them.
//!
//! tshark must know every packet for what it is. It does not compute the invariant CRC;
//! `check_capture.py` does, from the IP headers as captured, and shares no code with Ferroce.

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
/// The last packet of a capture says this.
const END: &[u8] = b"end of the capture";

/// A capture that goes on.
pub(crate) struct Capture {
    dumpcap: Running,
    file: PathBuf,
}

impl Capture {
    /// Begins; returns when packets are seen.
    pub(crate) fn begin(folder: &Path) -> Result<Capture> {
        let file = folder.join("packets.pcapng");
        let mut command = Command::new("dumpcap");
        // Larger than any case, and smaller than a disk.
        command
            .args(["-q", "-i", TAP, "-B", "32", "-a", "filesize:200000", "-w"])
            .arg(&file)
            .process_group(0);
        let mut dumpcap = Running::spawn(&mut command, folder, "dumpcap")?;
        dumpcap.says("File:", PATIENCE)?;
        Ok(Capture { dumpcap, file })
    }

    /// Ends it. If it is to be `complete`, a last packet is sent and awaited: what dumpcap has
    /// not read when it is stopped is lost.
    pub(crate) fn end(mut self, complete: bool) -> Result<PathBuf> {
        if complete {
            self.await_end()?;
        }
        let pid = Pid::from_raw(i32::try_from(self.dumpcap.id())?);
        kill_process(pid.context("a process without a number")?, Signal::INT)?;
        self.dumpcap.ends(deadline(PATIENCE))?;
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
            // The mark may have been written in part.
            looked_at = bytes.len().saturating_sub(END.len());
            pause();
        }
        // A full file, or a network that loses packets.
        Ok(())
    }
}

/// Checks a capture, which must show the named operations. What was found is written beside it.
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
        "the capture is not right: {}{error}",
        first_lines(&said)
    );
    decode(file, folder)
}

/// Whether tshark understands every packet. It guesses what payloads are, and calls packets
/// malformed whose payload is not what it guessed: those do not count.
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
        "tshark does not understand: {}",
        first_lines(&wrong.join("\n"))
    );
    Ok(())
}

fn first_lines(text: &str) -> String {
    text.lines().take(3).collect::<Vec<_>>().join("; ")
}
