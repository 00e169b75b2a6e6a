//! Debian systems in folders, made with mmdebstrap: for linking, and for tests of packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::library::target_dir;
use crate::packages;

/// Creates a minimal Debian system with packages, unless it exists. Returns its folder.
///
/// `purpose` names the folder: systems with different packages need different purposes.
pub(crate) fn make(suite: &str, purpose: &str, include: &str) -> Result<PathBuf> {
    let place = target_dir()
        .join("roots")
        .join(format!("{purpose}-{suite}"));
    let made_of = place.with_extension("packages");
    if fs::read_to_string(&made_of).is_ok_and(|packages| packages == include) {
        eprintln!("   exists: {}", place.display());
        return Ok(place);
    }
    packages::install(&["mmdebstrap"])?;
    let _half_made = fs::remove_dir_all(&place);
    fs::create_dir_all(target_dir().join("roots")).context("cannot create target/roots")?;
    let status = Command::new("mmdebstrap")
        .arg("--variant=minbase")
        .arg(format!("--include={include}"))
        .arg(suite)
        .arg(&place)
        .status()
        .context("cannot start mmdebstrap, which makes Debian systems in folders")?;
    ensure!(status.success(), "mmdebstrap {suite}: {status}");
    fs::write(made_of, include).context("cannot write the list of the system's packages")?;
    Ok(place)
}

/// Returns the Debian suite of this machine, or bookworm if os-release names none.
pub(crate) fn suite_here() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.unwrap_or("bookworm").to_owned()
}

/// Runs a shell script in a system, as root, in a network namespace with loopback only. The shell
/// code in `prepare` runs first, outside the system; `$1` is the system's folder. Its mounts end
/// with the script.
pub(crate) fn enter(system: &Path, prepare: &str, script: &str) -> Result<()> {
    let line = format!(
        "set -e; mount -t proc proc \"$1/proc\"; mount --rbind /dev \"$1/dev\"; \
         ip link set lo up; {prepare}; exec chroot \"$1\" sh {script}"
    );
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--propagation", "private"])
        .args(["--pid", "--fork", "--kill-child"])
        .args(["sh", "-c", &line, "sh"])
        .arg(system)
        .stdin(Stdio::null())
        .status()
        .context("cannot start unshare")?;
    ensure!(
        status.success(),
        "{script} failed in {}, see above",
        system.display()
    );
    Ok(())
}
