//! `cargo xtask install`: builds Ferroce and installs it below a prefix.
//!
//! `ferroce` finds the other files relative to its own path. The libraries are in
//! `lib/ferroce`, where the dynamic linker does not search by itself. Commands whose names
//! other packages own (`rdma`, ...) are in `lib/ferroce/bin`, which `ferroce run` and
//! `ferroce shell` put first on PATH.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::library::{self, name_commands, target_dir};
use crate::step::{cargo, root, step};

/// The arguments of `cargo xtask install`.
#[derive(Debug, clap::Args)]
pub(crate) struct InstallArgs {
    /// Directory to install below, as programs will see it.
    #[arg(long, default_value = "/usr/local")]
    prefix: PathBuf,

    /// Directory to put before the prefix, for building packages.
    #[arg(long)]
    destdir: Option<PathBuf>,

    /// Also put `rdma`, `rxe_cfg` and `rxe_init.sh` into PREFIX/bin.
    #[arg(long)]
    system_wide: bool,

    /// Install a build without optimisation, which is quicker to build.
    #[arg(long)]
    debug: bool,

    /// Remove an installation.
    #[arg(long)]
    uninstall: bool,
}

/// Names in PREFIX/bin with --system-wide. `sudo` is not one of them: it stays the system's.
const SYSTEM_WIDE: [&str; 3] = ["rdma", "rxe_cfg", "rxe_init.sh"];

/// Generated completions, below PREFIX/share.
const COMPLETIONS: [&str; 6] = [
    "bash-completion/completions/ferroce",
    "bash-completion/completions/ferroced",
    "zsh/vendor-completions/_ferroce",
    "zsh/vendor-completions/_ferroced",
    "fish/vendor_completions.d/ferroce.fish",
    "fish/vendor_completions.d/ferroced.fish",
];

pub(crate) fn run(args: &InstallArgs) -> Result<()> {
    ensure!(
        args.prefix.is_absolute(),
        "prefix `{}` is not an absolute path; for example: --prefix /usr/local",
        args.prefix.display()
    );
    if args.uninstall {
        return step("Uninstall", || uninstall(&place(args)));
    }
    build(!args.debug)?;
    step("Install", || {
        let place = place(args);
        put(&place, &args.prefix, !args.debug)?;
        if args.system_wide {
            for name in SYSTEM_WIDE {
                link("ferroce", &place.join("bin").join(name))?;
            }
        }
        eprintln!("   installed in {}; to check it, run", place.display());
        eprintln!("   {}/bin/ferroce doctor", args.prefix.display());
        Ok(())
    })
}

/// Builds `ferroce` and the libraries.
pub(crate) fn build(release: bool) -> Result<()> {
    step("Build ferroce and the libraries", || {
        let mut line = vec!["build", "--package", "ferroce-cli"];
        line.extend(release.then_some("--release"));
        cargo(&line)?;
        library::build(release)
    })
}

fn place(args: &InstallArgs) -> PathBuf {
    match &args.destdir {
        None => args.prefix.clone(),
        Some(root) => root.join(args.prefix.strip_prefix("/").unwrap_or(&args.prefix)),
    }
}

/// Installs all files below `place`, which programs will see as `prefix`.
pub(crate) fn put(place: &Path, prefix: &Path, release: bool) -> Result<()> {
    let built = target_dir().join(if release { "release" } else { "debug" });
    copy(&built.join("ferroce"), &place.join("bin/ferroce"), 0o755)?;
    link("ferroce", &place.join("bin/ferroced"))?;
    let libraries = place.join("lib/ferroce");
    for entry in fs::read_dir(built.join("lib")).context("the libraries are not built")? {
        let entry = entry?;
        let (from, to) = (entry.path(), libraries.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            let target = fs::read_link(&from)?;
            link(target.to_str().context("a plain name")?, &to)?;
        } else if kind.is_file() && is_library(&entry.file_name()) {
            copy(&from, &to, 0o644)?;
        }
    }
    name_commands(&libraries.join("bin"), "../../../bin/ferroce")?;
    let share = place.join("share");
    let status = Command::new(place.join("bin/ferroce"))
        .arg("generate")
        .arg(&share)
        .status()
        .context("cannot run the installed ferroce")?;
    ensure!(status.success(), "ferroce generate: {status}");
    let units = [
        ("ferroced.service", "lib/systemd/system/ferroced.service"),
        ("ferroced-user.service", "lib/systemd/user/ferroced.service"),
        ("sysusers.conf", "lib/sysusers.d/ferroce.conf"),
    ];
    for (from, to) in units {
        let text = fs::read_to_string(packaging().join(from)).with_context(|| from.to_owned())?;
        let shown = prefix.to_str().context("the prefix is not text")?;
        write(&place.join(to), text.replace("@PREFIX@", shown), 0o644)?;
    }
    let doc = share.join("doc/ferroce");
    for name in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        copy(&root().join(name), &doc.join(name), 0o644)?;
    }
    Ok(())
}

/// Returns true for libraries, such as `libferroce.so` and `libibverbs.so.1`, and false for
/// the `.new` files of an interrupted build.
fn is_library(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.ends_with(".so") || name.contains(".so.") && !name.ends_with(".new")
}

pub(crate) fn packaging() -> PathBuf {
    root().join("packaging")
}

/// Removes the files that [`put`] installs, and no others.
fn uninstall(place: &Path) -> Result<()> {
    let ours = fs::read_link(place.join("bin/ferroced"));
    if ours.is_ok_and(|target| target != Path::new("ferroce")) {
        bail!(
            "{}/bin/ferroced is not a link to ferroce, so this installation was not made by \
             `cargo xtask install`; remove it by hand",
            place.display()
        );
    }
    let mut files: Vec<PathBuf> = ["bin/ferroce", "bin/ferroced"]
        .iter()
        .map(|name| place.join(name))
        .collect();
    for name in SYSTEM_WIDE {
        let file = place.join("bin").join(name);
        if fs::read_link(&file).is_ok_and(|target| target == Path::new("ferroce")) {
            files.push(file);
        }
    }
    files.extend(COMPLETIONS.map(|name| place.join("share").join(name)));
    for unit in [
        "systemd/system/ferroced.service",
        "systemd/user/ferroced.service",
    ] {
        files.push(place.join("lib").join(unit));
    }
    files.push(place.join("lib/sysusers.d/ferroce.conf"));
    if let Ok(pages) = fs::read_dir(place.join("share/man/man1")) {
        let pages = pages.flatten().map(|page| page.path());
        let ours = |page: &PathBuf| {
            let name = page.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("ferroce"))
        };
        files.extend(pages.filter(ours));
    }
    for file in files {
        gone(fs::remove_file(&file)).with_context(|| file.display().to_string())?;
    }
    for dir in ["lib/ferroce", "share/doc/ferroce"] {
        gone(fs::remove_dir_all(place.join(dir))).with_context(|| dir.to_owned())?;
    }
    Ok(())
}

/// Treats a file that does not exist as removed.
fn gone(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    write(to, bytes, mode)
}

/// Replaces a file atomically, because a process may be running it.
pub(crate) fn write(to: &Path, bytes: impl AsRef<[u8]>, mode: u32) -> Result<()> {
    let new = to.with_extension("new");
    let written = || {
        if let Some(dir) = to.parent() {
            fs::create_dir_all(dir)?;
        }
        fs::write(&new, bytes)?;
        fs::set_permissions(&new, Permissions::from_mode(mode))?;
        fs::rename(&new, to)
    };
    written().with_context(|| format!("cannot write {}", to.display()))
}

fn link(target: &str, at: &Path) -> Result<()> {
    gone(fs::remove_file(at)).with_context(|| at.display().to_string())?;
    if let Some(dir) = at.parent() {
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    symlink(target, at).with_context(|| format!("cannot create the link {}", at.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_may_have_a_version_suffix() {
        for (name, yes) in [
            ("libferroce.so", true),
            ("libibverbs.so.1", true),
            ("libibverbs.so.1.new", false),
            ("libferroce.so.new", false),
            ("bin", false),
        ] {
            assert_eq!(is_library(OsStr::new(name)), yes, "{name}");
        }
    }
}
