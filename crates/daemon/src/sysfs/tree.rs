//! Writes the mirror of sysfs.
//!
//! Files are replaced, never changed in place. The directory of a device appears and
//! disappears with all its files. So a reader always finds complete files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::{Files, Node};

/// Directories of classes, whose entries are links, and of device files. They always exist.
const CLASSES: [&str; 3] = [
    "sys/class/infiniband",
    "sys/class/infiniband_verbs",
    "dev/infiniband",
];
/// Directories in which each device has a directory. They always exist, too.
const DEVICES: [&str; 3] = [
    "sys/devices/virtual/infiniband",
    "sys/devices/virtual/infiniband_verbs",
    "sys/kernel/config/rdma_cm",
];
/// Directory in which files are prepared before they are renamed.
const STAGING: &str = "new";

/// A tree of files.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    /// The files on disk, if `known`.
    present: Files,
    known: bool,
}

impl Tree {
    /// Returns the tree at this path, which an earlier ferroced may have written.
    pub(crate) fn open(root: PathBuf) -> Tree {
        Tree {
            root,
            present: Files::new(),
            known: false,
        }
    }

    /// Reads the files on disk.
    fn look(&mut self) {
        let _not_there = fs::remove_dir_all(self.staging());
        self.present.clear();
        let read = read(&self.root, "", &mut self.present);
        if read.is_err() || self.present.keys().any(|path| is_old_form(path)) {
            // An unreadable tree, or one of the old form, is written anew.
            Tree::clear(&self.root);
            self.present.clear();
        }
    }

    /// Writes the files that differ. After an error the next call reads the disk again.
    pub(crate) fn update(&mut self, files: Files) -> io::Result<()> {
        if !self.known {
            self.look();
        }
        let written = self.write(&files);
        self.known = written.is_ok();
        self.present = files;
        written
    }

    fn write(&self, files: &Files) -> io::Result<()> {
        for folder in CLASSES.iter().chain(&DEVICES) {
            make_folder(&self.root.join(folder))?;
        }
        make_folder(&self.staging())?;
        let wanted: BTreeSet<&str> = files.keys().filter_map(|path| device(path)).collect();
        let old: BTreeSet<&str> = self
            .present
            .keys()
            .filter_map(|path| device(path))
            .collect();
        let is_new = |path: &str| device(path).is_some_and(|device| !old.contains(device));
        let goes = |path: &str| device(path).is_some_and(|device| !wanted.contains(device));
        // A device's directory is added before the links to it, and removed after them.
        let mut copies = Copies::default();
        for (path, node) in files.iter().filter(|(path, _)| is_new(path)) {
            let device = device(path).expect("it is one of a device");
            copies.write(self.staged(device).join(&path[device.len() + 1..]), node)?;
        }
        for device in wanted.difference(&old) {
            fs::rename(self.staged(device), self.root.join(device))?;
        }
        for (path, node) in files {
            if !is_new(path) && self.present.get(path) != Some(node) {
                self.replace(path, node)?;
            }
        }
        for path in self.present.keys() {
            if !goes(path) && !files.contains_key(path) {
                self.remove(path);
            }
        }
        for device in old.difference(&wanted) {
            fs::rename(self.root.join(device), self.staged(device))?;
            fs::remove_dir_all(self.staged(device))?;
        }
        Ok(())
    }

    fn staging(&self) -> PathBuf {
        self.root.join(STAGING)
    }

    /// Returns the path at which the directory of a device is prepared or removed.
    fn staged(&self, device: &str) -> PathBuf {
        self.staging().join(device.replace('/', "-"))
    }

    /// Removes a tree.
    pub(crate) fn clear(root: &Path) {
        let _not_there = fs::remove_dir_all(root);
    }

    fn replace(&self, path: &str, node: &Node) -> io::Result<()> {
        let place = self.root.join(path);
        if let Some(folder) = place.parent() {
            make_folder(folder)?;
        }
        let new = self.staging().join("file");
        write(&new, node)?;
        // A link may become a directory, and the other way round.
        if place.is_dir() && !place.is_symlink() {
            fs::remove_dir_all(&place)?;
        }
        fs::rename(new, place)
    }

    /// Removes a file, and the directories that become empty.
    fn remove(&self, path: &str) {
        let mut path = Path::new(path);
        let _gone = fs::remove_file(self.root.join(path));
        while let Some(folder) = path.parent() {
            let mut kept = CLASSES.iter().chain(&DEVICES);
            let keep = kept.any(|kept| Path::new(kept) == folder);
            if keep || fs::remove_dir(self.root.join(folder)).is_err() {
                return;
            }
            path = folder;
        }
    }
}

/// The files of a new device. Files with equal contents are hard links to one file. That is
/// safe because files are replaced, never changed in place.
#[derive(Default)]
struct Copies<'a> {
    places: BTreeMap<&'a str, PathBuf>,
    folders: BTreeSet<PathBuf>,
}

impl<'a> Copies<'a> {
    fn write(&mut self, path: PathBuf, node: &'a Node) -> io::Result<()> {
        if let Some(folder) = path.parent()
            && !self.folders.contains(folder)
        {
            make_folder(folder)?;
            self.folders.insert(folder.to_owned());
        }
        if let Node::File(text) = node {
            if let Some(other) = self.places.get(text.as_str()) {
                return fs::hard_link(other, path);
            }
            self.places.insert(text, path.clone());
        }
        write(&path, node)
    }
}

/// Returns the directory of the device that a file belongs to.
fn device(path: &str) -> Option<&str> {
    let class = DEVICES.iter().find_map(|class| {
        let rest = path.strip_prefix(class)?.strip_prefix('/')?;
        Some((class.len() + 1, rest))
    });
    let (start, rest) = class?;
    let (name, _file) = rest.split_once('/')?;
    Some(&path[..start + name.len()])
}

/// Returns true if a ferroced of version 0.1 wrote this file: the directories of its devices
/// were in those of their classes, where links are now.
fn is_old_form(path: &str) -> bool {
    let classes = CLASSES.iter();
    let mut rests = classes.filter_map(|class| path.strip_prefix(class)?.strip_prefix('/'));
    rests.any(|rest| rest.contains('/'))
}

/// Creates a directory with mode 0755, whatever the umask is.
fn make_folder(path: &Path) -> io::Result<()> {
    if path.is_symlink() {
        fs::remove_file(path)?;
    }
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_folder(parent)?;
    }
    DirBuilder::new().mode(0o755).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

fn write(path: &Path, node: &Node) -> io::Result<()> {
    match node {
        Node::Link(target) => symlink(target, path),
        Node::File(text) => {
            fs::write(path, text)?;
            fs::set_permissions(path, Permissions::from_mode(0o444))
        }
    }
}

/// Adds all files below a directory.
fn read(root: &Path, prefix: &str, files: &mut Files) -> io::Result<()> {
    let entries = match fs::read_dir(root.join(prefix)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|_| invalid())?;
        let path = match prefix {
            "" => name,
            prefix => format!("{prefix}/{name}"),
        };
        let kind = entry.file_type()?;
        if kind.is_dir() {
            read(root, &path, files)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path())?.into_os_string();
            let target = target.into_string().map_err(|_| invalid())?;
            files.insert(path, Node::Link(target));
        } else {
            files.insert(path, Node::File(fs::read_to_string(entry.path())?));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> (String, Node) {
        (path.into(), Node::File(text.into()))
    }

    fn link(path: &str, target: &str) -> (String, Node) {
        (path.into(), Node::Link(target.into()))
    }

    fn seen(root: &Path) -> Files {
        let mut files = Files::new();
        read(root, "", &mut files).unwrap();
        files
    }

    #[test]
    fn tree_holds_exactly_the_given_files() {
        let root = std::env::temp_dir().join(format!("ferroce-tree-{}", std::process::id()));
        let mut tree = Tree::open(root.clone());
        let first = Files::from([
            file("sys/devices/virtual/infiniband/a/x", "1\n"),
            file("sys/devices/virtual/infiniband/a/same", "1\n"),
            file("sys/devices/virtual/infiniband/a/device/y", "2\n"),
            link(
                "sys/class/infiniband/a",
                "../../devices/virtual/infiniband/a",
            ),
            link("dev/infiniband/uverbs0", "/dev/null"),
        ]);
        tree.update(first.clone()).unwrap();
        assert_eq!(seen(&root), first);
        assert!(root.join("sys/class/infiniband_verbs").is_dir());
        let mode = |path: &str| fs::metadata(root.join(path)).unwrap().permissions().mode();
        assert_eq!(mode("sys/devices/virtual/infiniband/a/x") & 0o777, 0o444);
        assert_eq!(mode("sys/devices/virtual/infiniband/a") & 0o777, 0o755);

        // A directory becomes a link, and back; a file changes; a device is removed.
        let second = Files::from([
            file("sys/devices/virtual/infiniband/a/x", "3\n"),
            file("sys/devices/virtual/infiniband/a/same", "1\n"),
            link("sys/devices/virtual/infiniband/a/device", "/tmp"),
        ]);
        tree.update(second.clone()).unwrap();
        assert_eq!(seen(&root), second);
        tree.update(first.clone()).unwrap();
        assert_eq!(seen(&root), first);

        // Another ferroced continues with the files on disk.
        let mut tree = Tree::open(root.clone());
        tree.look();
        assert_eq!(tree.present, first);
        tree.update(Files::new()).unwrap();
        assert_eq!(seen(&root), Files::new());
        assert!(!root.join("sys/devices/virtual/infiniband/a").exists());
        assert!(root.join("sys/class/infiniband").is_dir());
        Tree::clear(&root);
        assert!(!root.exists());
    }

    #[test]
    fn tree_of_the_old_form_is_written_anew() {
        let root = std::env::temp_dir().join(format!("ferroce-old-tree-{}", std::process::id()));
        fs::create_dir_all(root.join("sys/class/infiniband/a/ports")).unwrap();
        fs::write(root.join("sys/class/infiniband/a/x"), "old\n").unwrap();
        let files = Files::from([
            file("sys/devices/virtual/infiniband/a/x", "1\n"),
            link(
                "sys/class/infiniband/a",
                "../../devices/virtual/infiniband/a",
            ),
        ]);
        let mut tree = Tree::open(root.clone());
        tree.update(files.clone()).unwrap();
        assert_eq!(seen(&root), files);
        let through = fs::read_to_string(root.join("sys/class/infiniband/a/x"));
        assert_eq!(through.unwrap(), "1\n");
        Tree::clear(&root);
    }
}
