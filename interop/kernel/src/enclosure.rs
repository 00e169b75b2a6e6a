//! The PID namespace of a run, which ends all of its processes.
//!
//! When the runner ends for any reason, even by SIGKILL, the kernel kills every process in
//! the namespace: virtual machine, captures, programs, ferroced. The network namespace ends
//! with its last process, and with it the bridge and the netdevs.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Environment variable that names the temporary folder; set inside the namespace only.
const FOLDER: &str = "FERROCE_INTEROP_FOLDER";

/// The script that stays outside the namespace. `unshare` ignores signals while it waits,
/// but when it is killed the namespace ends with it.
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

/// Returns the temporary folder, which is removed at the end.
pub(crate) fn folder() -> PathBuf {
    std::env::var_os(FOLDER).expect("only inside").into()
}

/// Replaces this process by the script, which starts this program in a new namespace.
/// Returns only if that fails.
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
