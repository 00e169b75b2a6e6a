//! Another ferroced of this user in the same network namespace, with its files elsewhere.
//!
//! A command looks for ferroced in `$XDG_RUNTIME_DIR`, `/run/user` and `/tmp`. With another
//! `XDG_RUNTIME_DIR` or `FERROCE_RUNTIME_DIR` it finds none and starts a second ferroced, which cannot
//! have UDP port 4791: programs would get no queue pair, and only ENOMEM.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ferroce_control::path::PID_FILE;

/// The name of ferroced's processes.
const NAME: &str = "ferroced";

/// A running ferroced, and the directory of its files.
#[derive(Debug)]
pub(crate) struct Rival {
    pid: u32,
    directory: PathBuf,
}

impl Rival {
    /// Finds a ferroced that serves this network namespace from another directory than this process
    /// does. One that this user may not inspect is not found.
    pub(crate) fn find() -> Option<Rival> {
        let (our_file, _) = pid_file_of("self")?;
        let processes = fs::read_dir("/proc").ok()?.flatten();
        processes
            .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
            .filter(|pid| *pid != std::process::id())
            .find_map(|pid| {
                let process = Path::new("/proc").join(pid.to_string());
                let name = fs::read_to_string(process.join("comm")).ok()?;
                let is_near = fs::read_link(process.join("ns/net")).ok()?
                    == fs::read_link("/proc/thread-self/ns/net").ok()?;
                if name.trim_end() != NAME || !is_near {
                    return None;
                }
                let (file, directory) = pid_file_of(&pid.to_string())?;
                (file != our_file).then_some(Rival { pid, directory })
            })
    }

    /// Returns the reason for a refusal, with the remedy.
    pub(crate) fn reason(&self) -> String {
        let (pid, directory) = (self.pid, self.directory.display());
        let base = self.directory.parent().unwrap_or(&self.directory);
        let base = base.display();
        format!(
            "process {pid}, another ferroced of this user, serves this network namespace from \
             {directory}, where this command did not look: XDG_RUNTIME_DIR or FERROCE_RUNTIME_DIR is \
             different. To use that ferroced, set FERROCE_RUNTIME_DIR={base}; to end it, `kill {pid}`"
        )
    }
}

/// Returns device and inode of the PID file that a ferroced has open for as long as it runs, and the
/// directory. Paths alone are not enough: in another container the same path is another file.
fn pid_file_of(process: &str) -> Option<((u64, u64), PathBuf)> {
    let descriptors = fs::read_dir(Path::new("/proc").join(process).join("fd"));
    descriptors.ok()?.flatten().find_map(|entry| {
        let path = fs::read_link(entry.path()).ok()?;
        if path.file_name() != Some(OsStr::new(PID_FILE)) {
            return None;
        }
        let file = fs::metadata(entry.path()).ok()?;
        Some(((file.dev(), file.ino()), path.parent()?.to_owned()))
    })
}
