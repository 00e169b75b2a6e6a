//! Installation of the software of a recipe.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::geteuid;

use super::document::Blocks;
use super::table::{Recipe, Source};

/// Programs of the system only: an ordinary user cannot read those of root's own folders.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The UID and GID of the ordinary user.
const NOBODY: u32 = 65534;

/// A recipe whose software is installed.
pub(crate) struct Prepared {
    pub(crate) recipe: &'static Recipe,
    /// Working folder of both blocks.
    pub(super) folder: PathBuf,
    /// The block to run.
    pub(super) block: String,
    /// Variables with the folders of sources.
    pub(super) sources: Vec<(&'static str, PathBuf)>,
}

/// Runs the first block in a folder of the recipe below `folder`, unless the same block has
/// succeeded there before.
pub(super) fn prepare(recipe: &'static Recipe, folder: &Path, blocks: &Blocks) -> Result<Prepared> {
    let name: String = recipe.title.to_lowercase().replace(' ', "-");
    let folder = std::path::absolute(folder.join(name))?;
    fs::create_dir_all(&folder)?;
    if geteuid().is_root() {
        chown(&folder, Some(NOBODY), Some(NOBODY))?;
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    let mut sources = Vec::new();
    for source in recipe.sources {
        sources.push((source.variable, find(source, &folder)?));
    }
    let prepared = Prepared {
        recipe,
        folder,
        block: blocks.run.clone(),
        sources,
    };
    let done = prepared.folder.join("installed");
    if fs::read_to_string(&done).is_ok_and(|block| block == blocks.install) {
        return Ok(prepared);
    }
    println!("install        {}", recipe.title);
    let log = prepared.folder.join("install.log");
    let mut shell = prepared.shell("bash");
    // Root needs no sudo, and may not have it.
    let block = match geteuid().is_root() {
        true => blocks.install.replace("sudo ", ""),
        false => blocks.install.clone(),
    };
    let output = File::create(&log)?;
    let status = shell
        .args(["-euxc", &block])
        .env("PATH", PATH)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stderr(output.try_clone()?)
        .stdout(output)
        .current_dir(&prepared.folder)
        .status()
        .context("cannot start bash")?;
    ensure!(
        status.success(),
        "the first block failed ({status}); output: {}",
        log.display()
    );
    fs::write(done, &blocks.install)?;
    Ok(prepared)
}

impl Prepared {
    /// Returns a command with the variables of the sources.
    fn shell(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.envs(
            self.sources
                .iter()
                .map(|(variable, folder)| (variable, folder)),
        );
        command
    }
}

/// Returns the folder of sources: the one that a variable names, or a Debian source package
/// unpacked in `folder`.
fn find(source: &Source, folder: &Path) -> Result<PathBuf> {
    let variable = format!("FERROCE_{}", source.variable);
    if let Some(given) = std::env::var_os(&variable) {
        let given = PathBuf::from(given);
        return given
            .canonicalize()
            .with_context(|| format!("{variable}={}", given.display()));
    }
    let Some((package, suite)) = source.debian else {
        bail!(
            "{variable} is not set; it must name a folder with the sources of {}",
            source.software
        );
    };
    let unpacked = folder.join(source.variable.to_lowercase());
    if !unpacked.exists() {
        download(package, suite, folder, &unpacked).with_context(|| {
            format!(
                "no source package {package} of Debian {suite}; {variable} may name a folder \
                 with the sources of {}",
                source.software
            )
        })?;
    }
    Ok(unpacked)
}

/// Downloads the upstream sources of a Debian package with apt-get, from the mirror of this
/// system, and unpacks them.
fn download(package: &str, suite: &str, folder: &Path, to: &Path) -> Result<()> {
    let apt = folder.join(format!("apt-{package}"));
    fs::create_dir_all(apt.join("lists/partial"))?;
    fs::create_dir_all(apt.join("cache/archives/partial"))?;
    fs::write(
        apt.join("sources.list"),
        format!(
            "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {} {suite} main\n",
            mirror()?
        ),
    )?;
    let option = |name: &str, path: &str| {
        let mut option = OsString::from(format!("{name}="));
        option.push(apt.join(path));
        option
    };
    let apt_get = |arguments: &[&str]| {
        let output = Command::new("apt-get")
            .arg("--quiet")
            .arg("-o")
            .arg(option("Dir::Etc::sourcelist", "sources.list"))
            .arg("-o")
            .arg(option("Dir::Etc::sourceparts", "none"))
            .arg("-o")
            .arg(option("Dir::State::Lists", "lists"))
            .arg("-o")
            .arg(option("Dir::Cache", "cache"))
            .args(["-o", "APT::Sandbox::User="])
            .args(arguments)
            .current_dir(&apt)
            .output()
            .context("cannot start apt-get")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "apt-get {}: {said}",
            arguments.join(" ")
        );
        Ok(())
    };
    apt_get(&["update"])?;
    apt_get(&["source", "--download-only", "--tar-only", package])?;
    let orig = fs::read_dir(&apt)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.to_string_lossy().contains(".orig.tar."))
        .context("apt-get downloaded no upstream sources")?;
    // Unpacked beside its place, so that an interrupted run leaves nothing half unpacked.
    let partial = to.with_extension("partial");
    fs::create_dir_all(&partial)?;
    let status = Command::new("tar")
        .args(["--extract", "--strip-components=1", "--no-same-owner"])
        .arg("--file")
        .arg(&orig)
        .arg("--directory")
        .arg(&partial)
        .status()
        .context("cannot start tar")?;
    ensure!(
        status.success(),
        "tar cannot unpack {} ({status})",
        orig.display()
    );
    fs::rename(partial, to)?;
    Ok(())
}

/// Returns the address of the Debian mirror that apt-get uses on this system.
fn mirror() -> Result<String> {
    let format = "$(ORIGIN) $(RELEASE) $(REPO_URI)";
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", format])
        .output()
        .context("cannot start apt-get")?;
    let said = String::from_utf8_lossy(&output.stdout);
    // "bookworm-security" and "bookworm-updates" are other archives.
    let line = said.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (origin, release, uri) = (words.next()?, words.next()?, words.next()?);
        (origin == "Debian" && !release.contains('-')).then(|| uri.to_owned())
    });
    line.context("apt-get knows no Debian mirror; `apt-get update` first")
}
