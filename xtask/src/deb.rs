//! `cargo xtask deb` builds a Debian package; `cargo xtask package-test` tests it in a fresh
//! system.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::elf;
use crate::install;
use crate::library::target_dir;
use crate::roots;
use crate::step::{last_step, root, step};

const DESCRIPTION: &str = "\
RDMA in user space, without a NIC or kernel module
 Ferroce is Soft-RoCE in user space: programs written for RDMA run unmodified
 on any machine with an IP address. They exchange RoCEv2 packets with other
 machines that run Ferroce, with the Linux kernel's rdma_rxe and with NICs.
 .
 Programs use it under `ferroce run` and `ferroce shell`. The package replaces
 no file of the system.";

/// Builds the package and returns its path.
pub(crate) fn build(release: bool) -> Result<PathBuf> {
    install::build(release)?;
    let folder = target_dir().join("deb");
    let stage = folder.join("root");
    let mut package = PathBuf::new();
    step("Build the package", || {
        let _not_there = fs::remove_dir_all(&stage);
        install::put(&stage.join("usr"), Path::new("/usr"), release)?;
        strip(&stage)?;
        if release {
            check_size(&stage)?;
        }
        let architecture = said("dpkg", &["--print-architecture"])?;
        let version = env!("CARGO_PKG_VERSION");
        let control = stage.join("DEBIAN");
        install::write(
            &control.join("control"),
            control_file(&architecture, &stage)?,
            0o644,
        )?;
        for script in ["postinst", "prerm", "postrm"] {
            let text = fs::read(install::packaging().join(script)).context(script)?;
            install::write(&control.join(script), text, 0o755)?;
        }
        let licence = fs::read(root().join("LICENSE-MIT")).context("LICENSE-MIT")?;
        let copyright = stage.join("usr/share/doc/ferroce/copyright");
        install::write(&copyright, licence, 0o644)?;
        package = folder.join(format!("ferroce_{version}_{architecture}.deb"));
        let status = Command::new("dpkg-deb")
            .args(["--root-owner-group", "--build"])
            .args([&stage, &package])
            .stdout(Stdio::null())
            .status()
            .context("cannot start dpkg-deb, which builds packages; is this Debian?")?;
        ensure!(status.success(), "dpkg-deb: {status}");
        eprintln!("   {}", package.display());
        Ok(())
    })?;
    Ok(package)
}

/// Removes the symbols that only debuggers read.
fn strip(stage: &Path) -> Result<()> {
    let status = Command::new("strip")
        .arg("--strip-unneeded")
        .args(binaries(stage)?)
        .status()
        .context("cannot start strip; binutils are needed")?;
    ensure!(status.success(), "strip: {status}");
    Ok(())
}

/// The executable and the libraries of the package.
fn binaries(stage: &Path) -> Result<Vec<PathBuf>> {
    let mut files = vec![stage.join("usr/bin/ferroce")];
    for entry in fs::read_dir(stage.join(LIBRARIES))? {
        let path = entry?.path();
        if !path.is_symlink() && path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

/// The libraries, in the folder that becomes the package.
const LIBRARIES: &str = "usr/lib/ferroce";
/// The largest size of libferroce.so, which is mapped into every program: 4 MB.
const MAX_LIBRARY: u64 = 4_000_000;

/// Shows how large the files are. A library of more than 4 MB is an error: a dependency may
/// have brought an engine of its own.
fn check_size(stage: &Path) -> Result<()> {
    for file in binaries(stage)? {
        let size = fs::metadata(&file)?.len();
        let name = file.strip_prefix(stage).unwrap_or(&file).display();
        eprintln!("   {name}: {} kB", size.div_ceil(1000));
        ensure!(
            size <= MAX_LIBRARY || !file.ends_with("libferroce.so"),
            "{name} has {size} bytes, the limit is {MAX_LIBRARY}; \
             `cargo tree -p ferroce-abi -e normal` shows what is in it"
        );
    }
    Ok(())
}

fn control_file(architecture: &str, stage: &Path) -> Result<String> {
    let needs = elf::needs(stage)?;
    let libc = needs.iter().map(|(_, version)| *version).max();
    let libc = libc.context("the package has no binaries")?;
    let version = env!("CARGO_PKG_VERSION");
    Ok(format!(
        "Package: ferroce\nVersion: {version}\nArchitecture: {architecture}\n\
         Maintainer: The Ferroce developers <ferroce@localhost>\n\
         Depends: libc6 (>= {libc}), libgcc-s1\n\
         Recommends: ibverbs-utils\nSuggests: perftest, rdmacm-utils\n\
         Section: net\nPriority: optional\nDescription: {DESCRIPTION}\n"
    ))
}

/// Runs a program and returns its output.
fn said(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("cannot start {program}; is this Debian?"))?;
    ensure!(output.status.success(), "{program}: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Packages of the fresh system beyond a minimal one: test programs, and systemd to boot.
const FRESH: &str = "ibverbs-utils,rdmacm-utils,iproute2,systemd,systemd-sysv,dbus,\
                     dbus-user-session,libpam-systemd";
/// Number of boots. `boot-test.sh` has a part for each.
const BOOTS: usize = 3;

/// Installs, uses, upgrades and removes the package in a fresh system, then in a system that
/// boots.
pub(crate) fn test(release: bool) -> Result<()> {
    let package = build(release)?;
    let mut fresh = PathBuf::new();
    let used = target_dir().join("deb/used");
    step("Create a fresh system", || {
        fresh = roots::make(&roots::suite_here(), "fresh", FRESH)?;
        Ok(())
    })?;
    step("Install, use, upgrade, remove", || {
        use_up(&fresh, &used, &package, &["package-test.sh"])?;
        roots::enter(&used, ":", "/package-test.sh")
    })?;
    last_step("Boot three times", || {
        use_up(&fresh, &used, &package, &["boot-test.sh"])?;
        let units = used.join("etc/systemd/system");
        let unit = fs::read(install::packaging().join("boot-test.service"))?;
        install::write(&units.join("boot-test.service"), unit, 0o644)?;
        let wants = units.join("multi-user.target.wants");
        fs::create_dir_all(&wants)?;
        symlink("../boot-test.service", wants.join("boot-test.service"))?;
        for boot in 1..=BOOTS {
            let status = Command::new("sh")
                .arg(install::packaging().join("boot.sh"))
                .arg(&used)
                .stdin(Stdio::null())
                .status()
                .context("cannot start a shell")?;
            let log = used.join("boot-test.log");
            eprint!("{}", fs::read_to_string(&log).unwrap_or_default());
            let _not_there = fs::remove_file(&log);
            ensure!(status.success(), "boot {boot}: {status}, see above");
        }
        Ok(())
    })
}

/// Copies the fresh system, and puts the package and scripts into its root directory.
fn use_up(fresh: &Path, used: &Path, package: &Path, scripts: &[&str]) -> Result<()> {
    let _not_there = fs::remove_dir_all(used);
    let status = Command::new("cp")
        .args(["--archive", "--reflink=auto"])
        .args([fresh, used])
        .status()
        .context("cannot start cp")?;
    ensure!(status.success(), "cp: {status}");
    fs::copy(package, used.join("ferroce.deb")).context("cannot copy the package")?;
    for script in scripts.iter().chain(&["common.sh"]) {
        fs::copy(install::packaging().join(script), used.join(script))
            .with_context(|| format!("cannot copy {script}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_of_the_package_parse() {
        for script in [
            "postinst",
            "prerm",
            "postrm",
            "common.sh",
            "package-test.sh",
            "boot.sh",
            "boot-test.sh",
            "dist-test.sh",
        ] {
            let file = install::packaging().join(script);
            let status = Command::new("sh").arg("-n").arg(&file).status();
            assert!(status.expect("a shell").success(), "{script}");
        }
    }

    #[test]
    fn control_file_has_dependencies_and_description() {
        let program = std::env::current_exe().expect("its path");
        let stage = std::env::temp_dir().join(format!("stage-{}", std::process::id()));
        fs::create_dir_all(&stage).unwrap();
        fs::copy(program, stage.join("program")).unwrap();
        let control = control_file("amd64", &stage).unwrap();
        fs::remove_dir_all(&stage).unwrap();
        assert!(
            control.starts_with("Package: ferroce\nVersion: "),
            "{control}"
        );
        assert!(control.contains("\nDepends: libc6 (>= 2."), "{control}");
        // All lines of the description but the first are indented.
        let (_, description) = control.split_once("\nDescription: ").expect("there is one");
        let mut rest = description.lines().skip(1);
        assert!(rest.all(|line| line.starts_with(' ')), "{description}");
    }
}
