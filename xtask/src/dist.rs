//! `cargo xtask dist`: the files of a release, in target/dist.
//!
//! The files run on Debian 11 (glibc 2.31) and newer. A program runs on the glibc that it was
//! linked with and on newer ones. So every binary is linked with the C library of Debian 11: the
//! C compiler gets a Debian 11 system as its `--sysroot`. Ferroce and its dependencies are Rust,
//! so no C source is compiled against the headers of Debian 11.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::elf::{self, Glibc};
use crate::install;
use crate::library::target_dir;
use crate::roots;
use crate::step::{last_step, root, step};

/// The oldest Debian that the release runs on, and its glibc.
const OLDEST: (&str, Glibc) = ("bullseye", Glibc(2, 31));
/// The Debian suites in which `--try` tests the release.
const TRIED: [&str; 3] = ["bullseye", "bookworm", "trixie"];
/// Packages of these systems: libc6-dev for the linker, and the programs that the test runs.
const INCLUDE: &str = "ibverbs-utils,libc6-dev,perftest";
/// The folders of the package that the tarball contains. Units of systemd are left out: they
/// name the path of the executable, and a tarball may be unpacked anywhere.
const IN_TARBALL: [&str; 3] = ["bin", "lib/ferroce", "share"];

/// Makes the files of a release, and tests them if `attempt` is true.
pub(crate) fn run(attempt: bool) -> Result<()> {
    ensure!(
        cfg!(all(target_arch = "x86_64", target_os = "linux")),
        "a release is for x86_64 Linux and can be built there only"
    );
    let folder = target_dir().join("dist");
    let mut sysroot = PathBuf::new();
    step("Debian 11, to link with", || {
        sysroot = system(OLDEST.0)?;
        make_links_relative(&sysroot).context("cannot make links relative")
    })?;
    let build = target_dir().join("dist-build");
    step("Build and pack with its C library", || {
        pack(&sysroot, &build)
    })?;
    let tree = build.join("deb/root/usr");
    step("Every file runs on Debian 11", || check_glibc(&tree))?;
    let name = format!("ferroce-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    step("Put the release together", || {
        let _former = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).context("cannot make target/dist")?;
        tarball(&tree, &folder, &name)?;
        let package = format!("ferroce_{}_amd64.deb", env!("CARGO_PKG_VERSION"));
        fs::copy(build.join("deb").join(&package), folder.join(&package))
            .with_context(|| format!("cannot copy {package}"))?;
        sums(&folder, &[&format!("{name}.tar.gz"), &package])
    })?;
    if attempt {
        for suite in TRIED {
            step(&format!("Try it in {suite}"), || try_in(suite, &folder))?;
        }
    }
    last_step("The release", || list(&folder))
}

fn system(suite: &str) -> Result<PathBuf> {
    roots::make(suite, "dist", INCLUDE)
}

/// Makes symbolic links in the linker's folders relative. Those of Debian 11's libc6-dev are
/// absolute, and would lead out of the sysroot to this machine's libraries.
fn make_links_relative(sysroot: &Path) -> Result<()> {
    for folder in ["usr/lib/x86_64-linux-gnu", "usr/lib64", "lib64"] {
        let Ok(entries) = fs::read_dir(sysroot.join(folder)) else {
            continue;
        };
        let up = "../".repeat(folder.split('/').count());
        for entry in entries {
            let link = entry?.path();
            let Ok(target) = fs::read_link(&link) else {
                continue;
            };
            if let Ok(target) = target.strip_prefix("/") {
                fs::remove_file(&link)?;
                symlink(Path::new(&up).join(target), &link)?;
            }
        }
    }
    Ok(())
}

/// Runs `cargo xtask deb` in a target folder of its own, with a C compiler that links with the
/// system in `sysroot`.
fn pack(sysroot: &Path, build: &Path) -> Result<()> {
    let compiler = build.join("cc");
    // A compiler for this machine searches this machine's folders before those of the sysroot.
    // Folders of -B and -L come first.
    let script = format!(
        "#!/bin/sh\nroot='{}'\nfolder=lib/x86_64-linux-gnu\n\
         exec cc --sysroot=\"$root\" -B\"$root/usr/$folder/\" \
         -L\"$root/usr/$folder\" -L\"$root/$folder\" \"$@\"\n",
        sysroot.display()
    );
    install::write(&compiler, script, 0o755)?;
    let home =
        std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|h| h + "/.cargo"));
    let paths = format!(
        "--remap-path-prefix={}=ferroce --remap-path-prefix={}=cargo",
        root().display(),
        home.context("HOME is not set")?
    );
    let program = std::env::current_exe().context("cannot find this program")?;
    let status = Command::new(program)
        .arg("deb")
        .current_dir(root())
        .env("CARGO_TARGET_DIR", build)
        .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER", &compiler)
        .env("CC", &compiler)
        // Added to the flags in .cargo/config.toml. They keep paths of this machine out of the
        // binaries.
        .env("CARGO_BUILD_RUSTFLAGS", paths)
        // No shipped binary catches a panic, so unwinding code would only cost space.
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("SOURCE_DATE_EPOCH", commit_time())
        .status()
        .context("cannot start `cargo xtask deb`")?;
    ensure!(status.success(), "`cargo xtask deb` failed, see above");
    Ok(())
}

/// Returns the time of the commit in seconds since 1970. Files in archives get this time, so
/// that the same sources make the same archives.
fn commit_time() -> String {
    let output = Command::new("git")
        .args(["log", "-1", "--format=%ct"])
        .current_dir(root())
        .output();
    let time = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    time.ok()
        .filter(|time| !time.is_empty())
        .unwrap_or_else(|| "0".into())
}

fn check_glibc(tree: &Path) -> Result<()> {
    let (suite, oldest) = OLDEST;
    for (file, needed) in elf::needs(tree)? {
        let name = file.strip_prefix(tree).unwrap_or(&file).display();
        eprintln!("   {name}: glibc {needed}");
        ensure!(
            needed <= oldest,
            "{name} needs glibc {needed}; {suite} has {oldest}"
        );
    }
    Ok(())
}

/// Packs the files of the package into a tarball with one folder. Programs run from wherever it
/// is unpacked.
fn tarball(tree: &Path, folder: &Path, name: &str) -> Result<()> {
    let stage = folder.join(name);
    for part in IN_TARBALL {
        let to = stage.join(part);
        let above = to
            .parent()
            .context("a folder of the tarball has no parent")?;
        fs::create_dir_all(above)?;
        command(
            Command::new("cp")
                .arg("--archive")
                .arg(tree.join(part))
                .arg(above),
        )?;
    }
    for text in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        fs::copy(root().join(text), stage.join(text)).context(text)?;
    }
    let archive = folder.join(format!("{name}.tar.gz"));
    command(
        Command::new("tar")
            .args(["--create", "--gzip", "--sort=name", "--numeric-owner"])
            .args(["--owner=0", "--group=0", "--mode=u+w,go-w,a+rX"])
            .arg(format!("--mtime=@{}", commit_time()))
            .arg("--file")
            .arg(&archive)
            .arg("--directory")
            .args([folder, Path::new(name)]),
    )?;
    fs::remove_dir_all(&stage).context("cannot remove the folder of the tarball")
}

fn sums(folder: &Path, files: &[&str]) -> Result<()> {
    let output = Command::new("sha256sum")
        .args(files)
        .current_dir(folder)
        .output()
        .context("cannot start sha256sum")?;
    ensure!(output.status.success(), "sha256sum: {}", output.status);
    fs::write(folder.join("SHA256SUMS"), output.stdout).context("cannot write SHA256SUMS")
}

/// Unpacks the tarball in a Debian system, and runs the demo, `ibv_rc_pingpong` and perftest
/// there as an ordinary user.
fn try_in(suite: &str, folder: &Path) -> Result<()> {
    let system = system(suite)?;
    let prepare = format!(
        "mount -t tmpfs tmpfs \"$1/tmp\"; mount -t tmpfs tmpfs \"$1/mnt\"; \
         cp '{0}'/*.tar.gz '{1}/common.sh' '{1}/dist-test.sh' \"$1/mnt\"",
        folder.display(),
        install::packaging().display()
    );
    roots::enter(&system, &prepare, "/mnt/dist-test.sh")
}

fn list(folder: &Path) -> Result<()> {
    let mut files: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    files.sort_by_key(fs::DirEntry::file_name);
    for file in files {
        let kilobytes = file.metadata()?.len().div_ceil(1000);
        eprintln!("   {} ({kilobytes} kB)", file.path().display());
    }
    Ok(())
}

fn command(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .with_context(|| format!("cannot start {name}"))?;
    ensure!(status.success(), "{name}: {status}");
    Ok(())
}
