//! What a process has: descriptors and memory.

use anyhow::{Context, Result};

/// What a process has at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Traces {
    pub(crate) descriptors: usize,
    /// In KiB, of its own.
    pub(crate) memory: usize,
}

impl Traces {
    pub(crate) fn of(pid: u32) -> Result<Traces> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let memory = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let memory = memory.and_then(|text| text.split_whitespace().next()?.parse().ok());
        Ok(Traces {
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
            memory: memory.context("no RssAnon in the status of a process")?,
        })
    }
}
