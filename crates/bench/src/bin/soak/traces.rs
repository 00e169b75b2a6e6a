//! Things that could be left behind: descriptors and mappings of processes, sockets, files.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

/// Mappings that a process may have gained: allocators and thread stacks.
const SLACK: usize = 8;

/// Requests to ferroced until it has surely noticed programs that left before.
const TURNS: u32 = 50;

/// Descriptors and mappings of a process at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traces {
    descriptors: usize,
    mappings: usize,
}

impl Traces {
    pub(crate) fn of(pid: u32) -> Result<Traces> {
        Ok(Traces {
            descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
            mappings: fs::read_to_string(format!("/proc/{pid}/maps"))?
                .lines()
                .count(),
        })
    }

    /// Fails if the process has more than before.
    pub(crate) fn check(self, who: &str, pid: u32) -> Result<()> {
        let now = Traces::of(pid)?;
        ensure!(
            !self.are_exceeded_by(now),
            "{who} had {self:?} and has {now:?}"
        );
        Ok(())
    }

    /// The traces of ferroced after it has noticed that programs left: the fewest
    /// descriptors seen in a row of [`TURNS`] requests.
    ///
    /// A program that has closed its connection does not wait for ferroced to close the
    /// other end. Each request makes ferroced go once around its event loop.
    pub(crate) fn of_settled_ferroced(pid: u32) -> Result<Traces> {
        let mut fewest = Traces::of(pid)?;
        for _ in 0..TURNS {
            ferroce_device::list_links()?;
            let now = Traces::of(pid)?;
            if now.descriptors < fewest.descriptors {
                fewest = now;
            }
        }
        Ok(fewest)
    }

    /// Fails if ferroced, having noticed that programs left, has more than before.
    pub(crate) fn check_ferroced(self, pid: u32) -> Result<()> {
        let now = Traces::of_settled_ferroced(pid)?;
        ensure!(
            !self.are_exceeded_by(now),
            "ferroced had {self:?} and has {now:?}"
        );
        Ok(())
    }

    fn are_exceeded_by(self, now: Traces) -> bool {
        now.descriptors > self.descriptors || now.mappings > self.mappings + SLACK
    }
}

/// Fails if anything of ours is still in this network namespace or directory.
pub(crate) fn nothing_is_left(runtime: &Path) -> Result<()> {
    for table in ["udp", "udp6"] {
        let sockets = fs::read_to_string(format!("/proc/thread-self/net/{table}"))?;
        let left: Vec<&str> = sockets.lines().filter(|l| l.contains(":12B7 ")).collect();
        ensure!(left.is_empty(), "sockets on port 4791: {left:?}");
    }
    let sockets = fs::read_to_string("/proc/thread-self/net/unix")?;
    let ours = runtime.display().to_string();
    let left: Vec<&str> = sockets.lines().filter(|l| l.contains(&ours)).collect();
    ensure!(left.is_empty(), "control sockets: {left:?}");
    let files = fs::read_dir(runtime)?.flatten().map(|entry| entry.path());
    let files: Vec<_> = files.collect();
    ensure!(files.is_empty(), "files: {files:?}");
    let children = fs::read_to_string("/proc/thread-self/children")?;
    ensure!(children.trim().is_empty(), "processes: {children}");
    Ok(())
}
