//! The kernel module siw for the guest.
//!
//! Debian's kernels come without siw. It is compiled from the source of the same kernel, against
//! its headers, with the compiler that Debian uses for kernels: about two minutes, once.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::image::{run, within};

/// The part of the image's recipe that this file makes.
pub(crate) const RECIPE: &str = "siw, compiled\n";

/// Packages that unpack and compile. The compiler comes with the kernel's headers.
const TOOLS: &str = "base-files,bash,coreutils,dash,diffutils,findutils,grep,gzip,libc-bin,make,\
                     mawk,sed,tar,xz-utils";

/// Folder of siw in the kernel's source.
const SOURCE: &str = "drivers/infiniband/sw/siw";

/// Compiles siw for the kernel `version` of `tree`, and adds it to the tree's modules. `folder`
/// is for temporary files, which take 1 GB.
pub(crate) fn build(suite: &str, tree: &Path, version: &str, folder: &Path) -> Result<()> {
    let series = series(version)?;
    let build = folder.join("siw.tree");
    if build.exists() {
        fs::remove_dir_all(&build)?;
    }
    let packages = format!("{TOOLS},linux-headers-{version},linux-source-{series}");
    run(Command::new("mmdebstrap")
        .args(["--variant=extract", "--format=directory", "--quiet"])
        .arg("--aptopt=Apt::Install-Recommends \"false\"")
        .arg(format!("--include={packages}"))
        .arg(suite)
        .arg(&build))
    .with_context(|| {
        format!("headers and source of the guest's kernel {version}, to compile siw")
    })?;
    let source = format!("linux-source-{series}/{SOURCE}");
    // The packages are unpacked, not installed: no script has made the link for awk.
    within(
        &build,
        &format!(
            "set -e; ldconfig; ln -sf mawk /usr/bin/awk; cd /tmp; \
             tar -xf /usr/src/linux-source-{series}.tar.xz {source}; \
             make -s -C /usr/src/linux-headers-{version} M=/tmp/{source} \
             CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES= modules"
        ),
    )?;
    let updates = tree.join("lib/modules").join(version).join("updates");
    fs::create_dir_all(&updates)?;
    fs::copy(
        build.join("tmp").join(&source).join("siw.ko"),
        updates.join("siw.ko"),
    )?;
    Ok(fs::remove_dir_all(&build)?)
}

/// Returns the first two numbers of a kernel's version, which name its source package.
fn series(version: &str) -> Result<String> {
    let numbers: Vec<&str> = version.split(['.', '-']).take(2).collect();
    ensure!(
        numbers.len() == 2 && numbers.iter().all(|n| n.parse::<u32>().is_ok()),
        "the kernel's version {version} does not begin with two numbers"
    );
    Ok(numbers.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_packages_are_named_after_two_numbers() {
        assert_eq!(series("6.1.0-54-amd64").expect("a series"), "6.1");
        assert_eq!(series("6.12.94+deb13-amd64").expect("a series"), "6.12");
        assert!(series("amd64").is_err());
    }
}
