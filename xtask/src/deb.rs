//! `cargo xtask deb` builds a Debian package; `cargo xtask package-test` tests it in a fresh
//! system.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::install;
use crate::library::target_dir;
use crate::packages;
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
        let architecture = said("dpkg", &["--print-architecture"])?;
        let version = env!("CARGO_PKG_VERSION");
        let control = stage.join("DEBIAN");
        install::write(
            &control.join("control"),
            control_file(&architecture)?,
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

/// Removes debug information from the binaries, if `strip` is installed.
fn strip(stage: &Path) -> Result<()> {
    let libraries = stage.join("usr/lib/ferroce");
    let mut files = vec![stage.join("usr/bin/ferroce")];
    for entry in fs::read_dir(libraries)? {
        let path = entry?.path();
        if !path.is_symlink() && path.is_file() {
            files.push(path);
        }
    }
    let status = Command::new("strip")
        .arg("--strip-unneeded")
        .args(files)
        .status();
    if !status.is_ok_and(|status| status.success()) {
        eprintln!("   not stripped, so the package is larger: is binutils installed?");
    }
    Ok(())
}

fn control_file(architecture: &str) -> Result<String> {
    // The package needs at least the libc that it was built with.
    let libc = said(
        "dpkg-query",
        &["--show", "--showformat=${Version}", "libc6"],
    )?;
    let libc = libc.split('-').next().unwrap_or_default();
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
    let fresh = target_dir().join("deb/fresh");
    let used = target_dir().join("deb/used");
    step("Install mmdebstrap", || packages::install(&["mmdebstrap"]))?;
    step("Create a fresh system", || fresh_system(&fresh))?;
    step("Install, use, upgrade, remove", || {
        use_up(&fresh, &used, &package, &["package-test.sh"])?;
        let enter = "mount -t proc proc \"$1/proc\" && mount --rbind /dev \"$1/dev\" \
                     && ip link set lo up && exec chroot \"$1\" sh /package-test.sh";
        let status = Command::new("unshare")
            .args(["--net", "--mount", "--propagation", "private"])
            .args(["--pid", "--fork", "--kill-child"])
            .args(["sh", "-c", enter, "sh"])
            .arg(&used)
            .stdin(Stdio::null())
            .status()
            .context("cannot start unshare")?;
        ensure!(
            status.success(),
            "package-test.sh failed, see above ({status})"
        );
        Ok(())
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

/// Creates a small Debian system, unless it exists.
fn fresh_system(place: &Path) -> Result<()> {
    let made_of = place.with_extension("packages");
    if fs::read_to_string(&made_of).is_ok_and(|packages| packages == FRESH) {
        eprintln!("   exists already: {}", place.display());
        return Ok(());
    }
    let _half_made = fs::remove_dir_all(place);
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let release = release
        .lines()
        .find_map(|l| l.strip_prefix("VERSION_CODENAME="));
    let status = Command::new("mmdebstrap")
        .arg("--variant=minbase")
        .arg(format!("--include={FRESH}"))
        .arg(release.unwrap_or("bookworm"))
        .arg(place)
        .status()
        .context("cannot start mmdebstrap")?;
    ensure!(status.success(), "mmdebstrap: {status}");
    let list = made_of.display();
    fs::write(&made_of, FRESH).with_context(|| format!("cannot write {list}"))
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
        ] {
            let file = install::packaging().join(script);
            let status = Command::new("sh").arg("-n").arg(&file).status();
            assert!(status.expect("a shell").success(), "{script}");
        }
    }

    #[test]
    fn control_file_has_dependencies_and_description() {
        let Ok(control) = control_file("amd64") else {
            return eprintln!("*** SKIPPED: this is not Debian ***");
        };
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
