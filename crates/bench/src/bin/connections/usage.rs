//! The resource usage of a process: descriptors and memory.

use anyhow::{Context, Result};

/// The resources that a process uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) descriptors: usize,
    /// Anonymous resident memory in KiB.
    pub(crate) memory: usize,
}

impl Usage {
    pub(crate) fn of(pid: u32) -> Result<Usage> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let memory = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let memory = memory.and_then(|text| text.split_whitespace().next()?.parse().ok());
        Ok(Usage {
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
            memory: memory.context("no RssAnon in the status of a process")?,
        })
    }
}
