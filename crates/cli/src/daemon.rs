//! Connections to ferroced.

use std::ffi::OsStr;

use anyhow::Result;
use ferroce_control::path::own_dirs;
use ferroce_control::{Connection, find_daemon, find_or_start};

/// The running executable. This path works even if its file was moved or deleted.
pub(crate) const THIS_EXECUTABLE: &str = "/proc/self/exe";

/// Connects to ferroced, and starts one if none runs.
pub(crate) fn connect_or_start() -> Result<Connection> {
    Ok(find_or_start(OsStr::new(THIS_EXECUTABLE))?)
}

/// Connects to ferroced. Returns `None` if none runs and no links exist.
///
/// A ferroced that was killed leaves its state files. The links of such a ferroced still
/// exist, so this function starts a new one, which takes them over.
pub(crate) fn connect() -> Result<Option<Connection>> {
    if let Some(connection) = find_daemon()? {
        return Ok(Some(connection));
    }
    match own_dirs()?.iter().any(|dir| dir.has_state()) {
        true => Ok(Some(connect_or_start()?)),
        false => Ok(None),
    }
}
