//! What one end must know of the other.

use core::fmt;
use core::str::FromStr;

/// Where to find a queue pair and its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Introduction {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) gid: u128,
    pub(crate) address: u64,
    pub(crate) rkey: u32,
}

impl fmt::Display for Introduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Introduction {
            qpn,
            psn,
            gid,
            address,
            rkey,
        } = self;
        write!(f, "{qpn} {psn} {gid} {address} {rkey}")
    }
}

impl FromStr for Introduction {
    type Err = String;

    fn from_str(line: &str) -> Result<Introduction, String> {
        let mut words = line.split(' ');
        let mut next = || -> Result<u128, String> {
            let word = words.next().unwrap_or_default();
            word.parse()
                .map_err(|_| format!("not an introduction: {line}"))
        };
        Ok(Introduction {
            qpn: next()? as u32,
            psn: next()? as u32,
            gid: next()?,
            address: next()? as u64,
            rkey: next()? as u32,
        })
    }
}
