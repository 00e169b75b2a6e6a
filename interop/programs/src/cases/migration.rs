//! QEMU: a guest migrates from one QEMU to another over RDMA, and its memory is compared.
//!
//! The guest runs only its firmware, which looks for a boot device. It is stopped before the
//! migration, so that its memory must be equal at both ends.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ferroce_harness::{Running, deadline, now, pause};

use crate::case::Case;
use crate::place::{LINK_V4, Place};

const PATIENCE: Duration = Duration::from_secs(60);
const QEMU: &str = "qemu-system-x86_64 -accel tcg -m 32 -nodefaults -display none";
/// Size of the guest's memory.
const MEMORY: u32 = 32 << 20;
const PROMPT: &str = "(qemu) ";

pub(super) fn cases() -> Vec<Case> {
    let by_page = |place: &Place| migrate(place, 20_101, false);
    let pinned = |place: &Place| migrate(place, 20_102, true);
    vec![
        Case::script("qemu", "migrate rdma:10.77.0.1:20101", by_page),
        Case::script(
            "qemu",
            "migrate rdma:10.77.0.1:20102 (rdma-pin-all)",
            pinned,
        ),
    ]
}

fn migrate(place: &Place, port: u16, pin: bool) -> Result<String> {
    let scratch = &place.user.scratch;
    let start = |name: &'static str, options: &str| {
        let line = format!("{QEMU} -monitor unix:{name},server=on,wait=off{options}");
        let words: Vec<&str> = line.split(' ').collect();
        let qemu = Running::spawn(&mut place.user.program(&words), &std::env::temp_dir(), name)?;
        let monitor = Monitor::connect(&scratch.join(name))
            .with_context(|| format!("{name} said: {}", qemu.output().unwrap_or_default()))?;
        Ok::<_, anyhow::Error>((qemu, monitor))
    };
    let target = format!("rdma:{LINK_V4}:{port}");
    let (_source, mut source) = start("qemu-source", "")?;
    let (_target, mut arrived) = start("qemu-target", " -incoming defer")?;
    if pin {
        for monitor in [&mut source, &mut arrived] {
            monitor.ask("migrate_set_capability rdma-pin-all on")?;
        }
    }
    arrived.ask(&format!("migrate_incoming {target}"))?;
    source.ask("stop")?;
    let answer = source.ask(&format!("migrate {target}"))?;
    let seen = source.ask("info migrate")?;
    ensure!(
        seen.contains("Migration status: completed"),
        "{answer}{seen}"
    );
    let seen = arrived.ask("info status")?;
    ensure!(seen.contains("VM status: paused"), "{seen}");
    let dump = |monitor: &mut Monitor, name: &str| {
        monitor.ask(&format!("pmemsave 0 {MEMORY} \"{name}\""))?;
        let path = scratch.join(name);
        let bytes = fs::read(&path)?;
        fs::remove_file(path)?;
        Ok::<_, anyhow::Error>(bytes)
    };
    let (before, after) = (dump(&mut source, "before")?, dump(&mut arrived, "after")?);
    ensure!(
        before.iter().any(|byte| *byte != 0),
        "the guest's memory is all zero"
    );
    ensure!(
        before == after,
        "the guest's memory differs after the migration"
    );
    arrived.ask("cont")?;
    let seen = arrived.ask("info status")?;
    ensure!(seen.contains("VM status: running"), "{seen}");
    Ok(seen)
}

/// A connection to QEMU's monitor.
struct Monitor(UnixStream);

impl Monitor {
    fn connect(path: &Path) -> Result<Monitor> {
        let until = deadline(PATIENCE);
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error) if now() > until => return Err(error.into()),
                Err(_) => pause(),
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut monitor = Monitor(stream);
        monitor.answer()?;
        Ok(monitor)
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        writeln!(self.0, "{line}")?;
        self.answer()
    }

    /// Reads the output up to the next prompt.
    fn answer(&mut self) -> Result<String> {
        let mut said = Vec::new();
        let mut chunk = [0; 4096];
        while !said.ends_with(PROMPT.as_bytes()) {
            match self.0.read(&mut chunk)? {
                0 => bail!("QEMU ended: {}", String::from_utf8_lossy(&said)),
                count => said.extend_from_slice(&chunk[..count]),
            }
        }
        Ok(String::from_utf8_lossy(&said).into_owned())
    }
}
