//! Where everything happens: a process namespace that takes all with it.
//!
//! Whatever ends the runner, be it a signal that nobody can catch, the kernel then ends every
//! process in the namespace: virtual machine, captures, programs, ferroced. The network
//! namespace goes with its last process, and with it bridge and netdevs.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The folder for files that go away; set inside only.
const FOLDER: &str = "FERROCE_INTEROP_FOLDER";

/// Stays outside. `unshare` takes no notice of signals while it waits, but when it is killed
/// the namespace goes with it.
const OUTSIDE: &str = r#"
trap 'rm -rf "$FERROCE_INTEROP_FOLDER"' EXIT
setpriv --pdeathsig KILL \
    unshare --pid --fork --kill-child --mount --mount-proc -- "$@" &
trap 'kill -KILL $!; exit 130' INT TERM HUP
wait $!
"#;

pub(crate) fn is_inside() -> bool {
    std::env::var_os(FOLDER).is_some()
}

/// For files that go away at the end.
pub(crate) fn folder() -> PathBuf {
    std::env::var_os(FOLDER).expect("only inside").into()
}

/// Starts this program again, inside; returns only if that fails.
pub(crate) fn enter() -> io::Result<io::Error> {
    let folder = format!("ferroce-interop-{}", std::process::id());
    let folder = std::env::temp_dir().join(folder);
    std::fs::create_dir_all(&folder)?;
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", OUTSIDE, "interop"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(FOLDER, &folder);
    Ok(command.exec())
}
