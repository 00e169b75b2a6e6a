//! Reaching ferroced.

use std::ffi::OsStr;

use anyhow::Result;
use ferroce_control::path::own_dirs;
use ferroce_control::{Connection, find_daemon, find_or_start};

/// This very program, whatever has become of its file.
pub(crate) const OURSELVES: &str = "/proc/self/exe";

/// Connects, and starts a ferroced if none runs.
pub(crate) fn connect_or_start() -> Result<Connection> {
    Ok(find_or_start(OsStr::new(OURSELVES))?)
}

/// Connects to a ferroced that runs, or should: if one was killed and has left its
/// notes, there are links, and a new one is started to go on with them.
pub(crate) fn connect() -> Result<Option<Connection>> {
    if let Some(connection) = find_daemon()? {
        return Ok(Some(connection));
    }
    match own_dirs()?.iter().any(|dir| dir.has_state()) {
        true => Ok(Some(connect_or_start()?)),
        false => Ok(None),
    }
}
