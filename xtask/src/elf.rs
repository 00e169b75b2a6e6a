//! The glibc version that each executable and library needs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// A version of glibc.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Glibc(pub(crate) u32, pub(crate) u32);

impl std::fmt::Display for Glibc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Returns the ELF files below a folder, each with the oldest glibc on which it runs.
pub(crate) fn needs(folder: &Path) -> Result<Vec<(PathBuf, Glibc)>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && fs::read(&path)?.starts_with(b"\x7fELF") {
                let needed = of_file(&path).with_context(|| path.display().to_string())?;
                found.push((path, needed));
            }
        }
    }
    found.sort();
    ensure!(!found.is_empty(), "no ELF file in {}", folder.display());
    Ok(found)
}

fn of_file(file: &Path) -> Result<Glibc> {
    let output = Command::new("objdump")
        .arg("--private-headers")
        .arg(file)
        .output()
        .context("cannot start objdump; install binutils")?;
    ensure!(output.status.success(), "objdump: {}", output.status);
    newest(&String::from_utf8_lossy(&output.stdout))
}

/// Returns the newest glibc among the "Version References" that objdump prints, or 2.0 if there
/// are none.
fn newest(headers: &str) -> Result<Glibc> {
    let mut newest = Glibc(2, 0);
    let references = headers.split("Version References:").nth(1);
    for word in references.unwrap_or_default().split_whitespace() {
        let Some(version) = word.strip_prefix("GLIBC_") else {
            continue;
        };
        // Some versions have three numbers: GLIBC_2.2.5.
        let mut numbers = version.split('.').map(str::parse);
        let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
            bail!("{word} is not a version of glibc");
        };
        newest = newest.max(Glibc(major, minor));
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_reference_counts() {
        let headers = "Version definitions:\n1 0x01 0x0 GLIBC_9.9\n\n\
                       Version References:\n  required from libgcc_s.so.1:\n    0x1 0x00 05 GCC_3.0\n  \
                       required from libc.so.6:\n    0x1 0x00 02 GLIBC_2.2.5\n    \
                       0x2 0x00 03 GLIBC_2.28\n    0x2 0x00 03 GLIBC_2.4\n";
        assert_eq!(newest(headers).unwrap(), Glibc(2, 28));
        assert_eq!(newest("Dynamic Section:\n").unwrap(), Glibc(2, 0));
        assert!(newest("Version References: GLIBC_ABI_DT_RELR").is_err());
    }

    #[test]
    fn this_program_needs_a_glibc() {
        let program = std::env::current_exe().expect("its path");
        let folder = std::env::temp_dir().join(format!("elf-{}", std::process::id()));
        fs::create_dir_all(folder.join("bin")).unwrap();
        fs::copy(program, folder.join("bin/program")).unwrap();
        fs::write(folder.join("text"), "no ELF").unwrap();
        let found = needs(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].1 > Glibc(2, 2), "{found:?}");
    }
}
