//! Runs scripts with private `/run` and `/tmp` and a PID namespace, so that files and
//! daemons of a test do not outlive it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The beginning of every script. The shell is the first process of its PID namespace, so
/// the kernel kills all other processes there when it ends. The folder of the programs
/// under test stays visible if the checkout lies in `/tmp` or `/run`.
const PRELUDE: &str = "set -eu
mount --bind \"$FOLDER\" /mnt
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /run
if [ ! -d \"$FOLDER\" ]; then
    mkdir -p \"$FOLDER\"
    mount --bind /mnt \"$FOLDER\"
fi
# as UID COMMAND...: runs a command as another user, without a login session
as() {
    uid=$1
    shift
    setpriv --reuid=\"$uid\" --regid=\"$uid\" --clear-groups \"$@\"
}
";

/// Runs a shell script as root, with empty `/tmp` and `/run` and its own PID namespace, in
/// the caller's network namespace. `programs` are environment variables that name
/// executables, all in one folder or below it. Needs util-linux's `unshare` and `setpriv`.
///
/// # Panics
/// If `unshare` cannot be started.
pub fn run(script: &str, programs: &[(&str, &str)]) -> Output {
    let script = format!("{PRELUDE}{script}");
    let folders = programs
        .iter()
        .filter_map(|(_, path)| Path::new(path).parent());
    let folder = folders.min_by_key(|folder| folder.as_os_str().len());
    Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["--", "sh", "-c", &script])
        .envs(programs.iter().copied())
        .env("FOLDER", folder.unwrap_or(Path::new("/")))
        .env_remove("FERROCE_RUNTIME_DIR")
        .env_remove("XDG_RUNTIME_DIR")
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .expect("unshare of util-linux starts")
}

/// Runs a script that must succeed, and returns its standard output.
///
/// # Panics
/// If the script fails.
pub fn succeeds(script: &str, programs: &[(&str, &str)]) -> String {
    let output = run(script, programs);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    let status = output.status;
    assert!(status.success(), "{status}\n{said}\n{errors}");
    said
}
