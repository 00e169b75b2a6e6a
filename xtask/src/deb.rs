//! `cargo xtask deb`: a Debian package, and `cargo xtask package-test`, which installs it
//! into a fresh system and uses it there.

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
 on any machine with an IP address, and speak RoCEv2 with other Ferroces, with
 the Linux kernel's rdma_rxe and with hardware NICs.
 .
 Programs find it under `ferroce run` and `ferroce shell`; nothing of the
 system is replaced.";

/// Builds the package; returns where it is.
pub(crate) fn build(release: bool) -> Result<PathBuf> {
    install::build(release)?;
    let folder = target_dir().join("deb");
    let stage = folder.join("root");
    let mut package = PathBuf::new();
    step("Make the package", || {
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
            .context("cannot start dpkg-deb, which makes packages")?;
        ensure!(status.success(), "dpkg-deb: {status}");
        eprintln!("   {}", package.display());
        Ok(())
    })?;
    Ok(package)
}

/// Without what only debuggers read, where there is a `strip`.
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
        eprintln!("   not stripped: the package is larger than it need be");
    }
    Ok(())
}

fn control_file(architecture: &str) -> Result<String> {
    // What it was built with is what it needs at least.
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

fn said(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("cannot start {program}; is this Debian?"))?;
    ensure!(output.status.success(), "{program}: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// What the fresh system has beyond a minimal one: programs to try, and what boots.
const FRESH: &str = "ibverbs-utils,rdmacm-utils,iproute2,systemd,systemd-sysv,dbus,\
                     dbus-user-session,libpam-systemd";
/// How often it is booted.
const BOOTS: usize = 3;

/// Installs the package into a fresh system, uses it there as a user, upgrades it and
/// removes it; then once more in a system that boots.
pub(crate) fn test(release: bool) -> Result<()> {
    let package = build(release)?;
    let fresh = target_dir().join("deb/fresh");
    let used = target_dir().join("deb/used");
    step("What makes fresh systems", || {
        packages::install(&["mmdebstrap"])
    })?;
    step("A fresh system", || fresh_system(&fresh))?;
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
            "the package does not do what it should, see above"
        );
        Ok(())
    })?;
    last_step("Boot, and boot again", || {
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

/// Makes a copy of the fresh system, with the package and scripts at its root.
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

/// A small Debian, made once.
fn fresh_system(place: &Path) -> Result<()> {
    let made_of = place.with_extension("packages");
    if fs::read_to_string(&made_of).is_ok_and(|packages| packages == FRESH) {
        eprintln!("   there already: {}", place.display());
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
    fs::write(made_of, FRESH).context("cannot write down what it is made of")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_of_the_package_are_shell() {
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
    fn a_package_says_what_it_needs() {
        let Ok(control) = control_file("amd64") else {
            return eprintln!("*** SKIPPED: this is not Debian ***");
        };
        assert!(
            control.starts_with("Package: ferroce\nVersion: "),
            "{control}"
        );
        assert!(control.contains("\nDepends: libc6 (>= 2."), "{control}");
        // Lines of a description are indented, all but the first.
        let (_, description) = control.split_once("\nDescription: ").expect("there is one");
        let mut rest = description.lines().skip(1);
        assert!(rest.all(|line| line.starts_with(' ')), "{description}");
    }
}
