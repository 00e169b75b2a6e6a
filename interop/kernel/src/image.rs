//! Kernel and disk of the guest, built from Debian's packages and cached.
//!
//! The packages are unpacked into a folder, not installed, which takes half a minute. The
//! disk contains only the kernel modules that `guest/modules.txt` names, and their
//! dependencies. The image is rebuilt when one of its inputs changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::siw_module;

const PACKAGES: &str = include_str!("../guest/packages.txt");
const MODULES: &str = include_str!("../guest/modules.txt");
const BOOT: &str = include_str!("../guest/boot.sh");
const SETUP: &str = include_str!("../guest/setup.sh");
const AGENT: &str = include_str!("../guest/agent.py");
/// Space on the disk in MiB for the structures of its file system. The guest writes no files to it.
const ROOM: u64 = 64;

/// Kernel, initial RAM disk and disk of the guest.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) kernel: PathBuf,
    pub(crate) initrd: PathBuf,
    pub(crate) disk: PathBuf,
    /// The folder of all three.
    pub(crate) folder: PathBuf,
}

impl Image {
    /// Returns the paths of the image for a release of Debian.
    pub(crate) fn of(suite: &str) -> Result<Image> {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        let cache = cache
            .or_else(home)
            .context("neither XDG_CACHE_HOME nor HOME is set")?;
        let folder = cache.join("ferroce-interop").join(suite);
        Ok(Image {
            kernel: folder.join("vmlinuz"),
            initrd: folder.join("initrd"),
            disk: folder.join("disk"),
            folder,
        })
    }
}

/// Builds the parts that are missing or out of date.
pub(crate) fn build(suite: &str) -> Result<()> {
    let image = Image::of(suite)?;
    fs::create_dir_all(&image.folder)?;
    let tree = image.folder.join("tree");
    let contents = [PACKAGES, siw_module::RECIPE].concat();
    once(&image.folder.join("tree.of"), &contents, || {
        println!("Fetching Debian's packages for the guest ...");
        unpack(suite, &tree)?;
        println!("Compiling siw, which Debian's kernels come without ...");
        siw_module::build(suite, &tree, &kernel_version(&tree)?, &image.folder)
    })?;
    let recipe = [&contents, MODULES, BOOT, SETUP, AGENT].concat();
    once(&image.folder.join("disk.of"), &recipe, || {
        println!("Making the guest's disk ...");
        assemble(&image, &tree)
    })
}

/// Runs `work` unless it has already been done for the same recipe.
fn once(stamp: &Path, recipe: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    if fs::read_to_string(stamp).is_ok_and(|of| of == recipe) {
        return Ok(());
    }
    let _not_there = fs::remove_file(stamp);
    work()?;
    Ok(fs::write(stamp, recipe)?)
}

fn unpack(suite: &str, tree: &Path) -> Result<()> {
    if tree.exists() {
        fs::remove_dir_all(tree)?;
    }
    let packages: Vec<&str> = lines(PACKAGES).collect();
    run(Command::new("mmdebstrap")
        .args(["--variant=extract", "--format=directory", "--quiet"])
        .arg("--aptopt=Apt::Install-Recommends \"false\"")
        .arg(format!("--include={}", packages.join(",")))
        .arg(suite)
        .arg(tree))?;
    for unused in ["usr/share/doc", "usr/share/man", "usr/share/locale"] {
        let _not_there = fs::remove_dir_all(tree.join(unused));
    }
    within(tree, "ldconfig")?;
    // Otherwise Python compiles its library again in every guest.
    within(
        tree,
        "python3 -m compileall -q /usr/lib/python3 /usr/lib/python3.*/*.py || true",
    )
}

fn assemble(image: &Image, tree: &Path) -> Result<()> {
    let version = kernel_version(tree)?;
    fs::copy(
        tree.join("boot").join(format!("vmlinuz-{version}")),
        &image.kernel,
    )?;
    let modules = tree.join("lib/modules").join(&version);
    within(tree, &format!("depmod {version}"))?;
    let needs = Needs::read(&modules)?;

    // The initial RAM disk, which mounts the disk.
    let early = image.folder.join("early");
    if early.exists() {
        fs::remove_dir_all(&early)?;
    }
    fs::create_dir_all(early.join("bin"))?;
    fs::create_dir_all(early.join("lib"))?;
    fs::copy(tree.join("bin/busybox"), early.join("bin/busybox"))?;
    std::os::unix::fs::symlink("busybox", early.join("bin/sh"))?;
    write_program(&early.join("init"), BOOT)?;
    let mut order = String::new();
    for path in needs.of(named("boot ")) {
        let name = path.rsplit('/').next().unwrap_or(&path);
        let to = early.join("lib").join(name);
        fs::copy(modules.join(&path), &to)?;
        if let Some(plain) = name.strip_suffix(".xz") {
            run(Command::new("unxz").arg(&to))?;
            order.push_str(plain);
        } else {
            order.push_str(name);
        }
        order.push('\n');
    }
    fs::write(early.join("modules"), order)?;
    let archive = "find . | cpio --create --format=newc --owner=0:0 --quiet";
    let initrd = fs::File::create(&image.initrd)?;
    run(Command::new("sh")
        .args(["-c", archive])
        .current_dir(&early)
        .stdout(initrd))?;
    fs::remove_dir_all(&early)?;

    // The disk.
    let wanted: BTreeSet<String> = needs
        .of(lines(MODULES).filter_map(last_word))
        .into_iter()
        .collect();
    let disk_tree = image.folder.join("disk.tree");
    if disk_tree.exists() {
        fs::remove_dir_all(&disk_tree)?;
    }
    run(Command::new("cp").args(["-al"]).arg(tree).arg(&disk_tree))?;
    let kept = disk_tree.join("lib/modules").join(&version);
    fs::remove_dir_all(disk_tree.join("lib/modules"))?;
    fs::remove_dir_all(disk_tree.join("boot"))?;
    for path in &wanted {
        let to = kept.join(path);
        fs::create_dir_all(to.parent().context("a module without a folder")?)?;
        fs::copy(modules.join(path), to)?;
    }
    for list in [
        "modules.order",
        "modules.builtin",
        "modules.builtin.modinfo",
    ] {
        fs::copy(modules.join(list), kept.join(list))?;
    }
    within(&disk_tree, &format!("depmod {version}"))?;
    let etc = disk_tree.join("etc/interop");
    fs::create_dir_all(&etc)?;
    write_program(&etc.join("setup.sh"), SETUP)?;
    fs::write(etc.join("agent.py"), AGENT)?;
    let load: Vec<&str> = named("load ").collect();
    fs::write(etc.join("load"), load.join("\n") + "\n")?;
    let size = size_in_mib(&disk_tree)? + ROOM;
    let _not_there = fs::remove_file(&image.disk);
    run(Command::new("mke2fs")
        .args(["-q", "-t", "ext4", "-O", "^has_journal", "-d"])
        .arg(&disk_tree)
        .arg(&image.disk)
        .arg(format!("{size}M")))?;
    Ok(fs::remove_dir_all(&disk_tree)?)
}

/// The dependencies of kernel modules.
struct Needs {
    /// Path of each module and of its dependencies, by name. Names contain `_` for `-`.
    by_name: BTreeMap<String, (String, Vec<String>)>,
}

impl Needs {
    fn read(modules: &Path) -> Result<Needs> {
        let text = fs::read_to_string(modules.join("modules.dep"))?;
        let entry = |line: &str| {
            let (path, needs) = line.split_once(':')?;
            // modules.dep lists dependencies in reverse order of loading.
            let needs = needs.split_whitespace().rev().map(str::to_owned).collect();
            Some((module_name(path), (path.to_owned(), needs)))
        };
        let by_name = text.lines().filter_map(entry).collect();
        Ok(Needs { by_name })
    }

    /// Returns the paths of these modules and of their dependencies, in the order of loading.
    /// Modules that are not listed are built into the kernel.
    fn of<'a>(&self, names: impl Iterator<Item = &'a str>) -> Vec<String> {
        let mut order: Vec<String> = Vec::new();
        for name in names {
            let Some((path, needs)) = self.by_name.get(&name.replace('-', "_")) else {
                continue;
            };
            for path in needs.iter().chain([path]) {
                if !order.contains(path) {
                    order.push(path.clone());
                }
            }
        }
        order
    }
}

fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    let name = file.split(".ko").next().unwrap_or(file);
    name.replace('-', "_")
}

fn kernel_version(tree: &Path) -> Result<String> {
    let mut versions = fs::read_dir(tree.join("lib/modules"))?;
    let version = versions
        .next()
        .context("the packages contain no kernel")??;
    version
        .file_name()
        .into_string()
        .ok()
        .context("a kernel without a name")
}

/// Returns the lines of a list without comments and empty lines.
fn lines(list: &str) -> impl Iterator<Item = &str> {
    list.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Returns the modules of the lines that begin with `word`.
fn named(word: &str) -> impl Iterator<Item = &'static str> {
    lines(MODULES).filter_map(move |line| line.strip_prefix(word))
}

fn last_word(line: &str) -> Option<&str> {
    line.split(' ').next_back()
}

fn write_program(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, text)?;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o755),
    )?)
}

/// Runs a shell command with a folder as its root.
pub(crate) fn within(tree: &Path, command: &str) -> Result<()> {
    run(Command::new("chroot")
        .arg(tree)
        .args(["/bin/sh", "-c", command]))
}

fn size_in_mib(tree: &Path) -> Result<u64> {
    let output = Command::new("du").arg("-sm").arg(tree).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let size = text
        .split_whitespace()
        .next()
        .context("du printed nothing")?;
    Ok(size.parse()?)
}

pub(crate) fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) => ensure!(status.success(), "{program} failed ({status})"),
        Err(error) => bail!("cannot start {program}: {error}"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_come_once_and_before_their_module() {
        let entry = |path: &str, needs: &[&str]| {
            let needs = needs.iter().map(|need| (*need).to_owned()).collect();
            (module_name(path), (path.to_owned(), needs))
        };
        let by_name = BTreeMap::from([
            entry("fs/ext4.ko", &["lib/crc16.ko", "fs/jbd2.ko"]),
            entry("drivers/virtio-pci.ko.xz", &["lib/crc16.ko"]),
        ]);
        let needs = Needs { by_name };
        let order = needs.of(["virtio_pci", "built_in", "ext4"].into_iter());
        let expected = [
            "lib/crc16.ko",
            "drivers/virtio-pci.ko.xz",
            "fs/jbd2.ko",
            "fs/ext4.ko",
        ];
        assert_eq!(order, expected);
    }
}
