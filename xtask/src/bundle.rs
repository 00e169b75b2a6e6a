//! `cargo xtask bench programs --bundle DIR`: the benchmark for a machine without cargo and
//! packages.
//!
//! ```text
//!   DIR/run.sh         measures; arguments go to the runner
//!   DIR/bin            the runner, ferroce, and the measured programs
//!   DIR/lib            libraries of these programs, without those of glibc
//!   DIR/lib/ucx        plugins of UCX
//!   DIR/lib/ferroce    Ferroce's libraries
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::library::target_dir;

const PROGRAMS: [&str; 12] = [
    "ib_write_bw",
    "ib_write_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_send_bw",
    "ib_send_lat",
    "ib_atomic_bw",
    "ib_atomic_lat",
    "qperf",
    "ucx_perftest",
    "fi_pingpong",
    "iperf3",
];
/// Ferroce's libraries, by every name that programs ask for. NCCL opens `libibverbs.so`.
const LIBRARIES: [&str; 6] = [
    "libferroce.so",
    "libferroce-preload.so",
    "libibverbs.so",
    "libibverbs.so.1",
    "librdmacm.so",
    "librdmacm.so.1",
];
/// Libraries of glibc, which must be those of the machine, as its loader is.
const GLIBC: [&str; 9] = [
    "libc.so.",
    "libm.so.",
    "libdl.so.",
    "librt.so.",
    "libpthread.so.",
    "libresolv.so.",
    "libutil.so.",
    "libanl.so.",
    "ld-linux",
];
/// Largest size of a bundle.
const LIMIT: u64 = 60 << 20;

/// Writes the bundle. The release build must exist.
pub(crate) fn write(folder: &Path, commit: &str) -> Result<()> {
    let release = target_dir().join("release");
    let _old = fs::remove_dir_all(folder);
    let mut bundle = Bundle {
        folder: folder.to_owned(),
        files: BTreeMap::new(),
    };
    for name in ["ferroce", "ferroce-bench"] {
        bundle.add(&release.join(name), &format!("bin/{name}"));
    }
    for name in LIBRARIES {
        bundle.add(
            &release.join("lib").join(name),
            &format!("lib/ferroce/{name}"),
        );
    }
    for name in PROGRAMS {
        let file = Path::new("/usr/bin").join(name);
        ensure!(
            file.exists(),
            "{} does not exist; `apt-get install {}` installs all programs",
            file.display(),
            crate::packages::MEASURED.join(" ")
        );
        bundle.add_with_libraries(&file, &format!("bin/{name}"))?;
    }
    for plugin in ucx_plugins()? {
        let name = plugin.file_name().context("a plugin without a name")?;
        let name = format!("lib/ucx/{}", name.display());
        bundle.add_with_libraries(&plugin, &name)?;
    }
    bundle.copy()?;
    let script = folder.join("run.sh");
    let text = format!(
        "#!/bin/sh\n\
         # Measures unmodified programs over Ferroce. Arguments go to the runner; try --quick.\n\
         # The report is written to ./report, or to the folder that --report names.\n\
         here=$(cd \"$(dirname \"$0\")\" && pwd)\n\
         exec \"$here/bin/ferroce-bench\" programs --programs \"$here\" --commit {commit} \\\n    \
         --report report \"$@\"\n"
    );
    fs::write(&script, text).context("cannot write run.sh")?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let size = bundle.size()?;
    let folder = folder.display();
    eprintln!(
        "   {folder}: {} files, {} MiB",
        bundle.files.len() + 1,
        size >> 20
    );
    ensure!(size <= LIMIT, "{folder} is larger than {} MiB", LIMIT >> 20);
    Ok(())
}

/// Files by their names in the bundle.
struct Bundle {
    folder: PathBuf,
    files: BTreeMap<String, PathBuf>,
}

impl Bundle {
    fn add(&mut self, from: &Path, name: &str) {
        self.files.insert(name.to_owned(), from.to_owned());
    }

    fn add_with_libraries(&mut self, from: &Path, name: &str) -> Result<()> {
        self.add(from, name);
        let output = Command::new("ldd").arg(from).output();
        let output = output.context("cannot start ldd, which lists libraries")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "ldd {}: {text}", from.display());
        for (name, path) in libraries(&text)? {
            self.add(Path::new(path), &format!("lib/{name}"));
        }
        Ok(())
    }

    /// Copies all files, without debugging information.
    fn copy(&self) -> Result<()> {
        for (name, from) in &self.files {
            let to = self.folder.join(name);
            let what = || format!("cannot copy {}", from.display());
            fs::create_dir_all(to.parent().with_context(what)?).with_context(what)?;
            fs::copy(from, &to).with_context(what)?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).with_context(what)?;
            let status = Command::new("strip")
                .arg("--strip-unneeded")
                .arg(&to)
                .status();
            let status = status.context("cannot start strip of binutils")?;
            ensure!(status.success(), "strip {}: {status}", to.display());
        }
        Ok(())
    }

    fn size(&self) -> Result<u64> {
        let sizes = self.files.keys().map(|name| {
            let data = fs::metadata(self.folder.join(name));
            data.map(|data| data.len())
                .with_context(|| format!("cannot read {name}"))
        });
        sizes.sum()
    }
}

/// Returns names and paths of the libraries in the output of ldd, without those of glibc.
fn libraries(text: &str) -> Result<Vec<(&str, &str)>> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some((name, rest)) = line.trim().split_once(" => ") else {
            continue;
        };
        ensure!(!rest.contains("not found"), "{name} is not installed");
        let path = rest.split(" (").next().unwrap_or(rest);
        if !GLIBC.iter().any(|part| name.starts_with(part)) {
            found.push((name, path));
        }
    }
    Ok(found)
}

/// Returns the plugins of UCX by the names that UCX looks for: `libuct_ib.so.0`.
fn ucx_plugins() -> Result<Vec<PathBuf>> {
    let folder = Path::new("/usr/lib/x86_64-linux-gnu/ucx");
    let entries = fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))?;
    let mut plugins = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(".so.0") {
            plugins.push(path);
        }
    }
    plugins.sort();
    Ok(plugins)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_glibc_are_left_out() {
        let text = "\tlinux-vdso.so.1 (0x00007f)\n\
                    \tlibucp.so.0 => /lib/x86_64-linux-gnu/libucp.so.0 (0x00007f)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let only = ("libucp.so.0", "/lib/x86_64-linux-gnu/libucp.so.0");
        assert_eq!(libraries(text).expect("valid"), [only]);
        assert!(libraries("\tliba.so.1 => not found\n").is_err());
    }
}
