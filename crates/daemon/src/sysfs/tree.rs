//! Files on disk as they should be.
//!
//! A file is replaced, never written to, and the folder of a device comes and goes with
//! all that is in it: who looks at any moment sees something whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::{Files, Node};

/// Directories of classes, whose devices are links, and of device files. They are there
/// whether anything is in them or not.
const CLASSES: [&str; 3] = [
    "sys/class/infiniband",
    "sys/class/infiniband_verbs",
    "dev/infiniband",
];
/// Directories in which each device has a directory. They, too, are always there.
const DEVICES: [&str; 3] = [
    "sys/devices/virtual/infiniband",
    "sys/devices/virtual/infiniband_verbs",
    "sys/kernel/config/rdma_cm",
];
/// Where things are made before they get their places.
const WORKSHOP: &str = "new";

/// A tree of files.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    /// What is there, if `known`.
    there: Files,
    known: bool,
}

impl Tree {
    /// The tree at this path, which another ferroced may have left.
    pub(crate) fn open(root: PathBuf) -> Tree {
        Tree {
            root,
            there: Files::new(),
            known: false,
        }
    }

    /// Finds out what is there.
    fn look(&mut self) {
        let _not_there = fs::remove_dir_all(self.workshop());
        self.there.clear();
        let read = read(&self.root, "", &mut self.there);
        if read.is_err() || self.there.keys().any(|path| is_of_old(path)) {
            // What cannot be understood is written again.
            Tree::clear(&self.root);
            self.there.clear();
        }
    }

    /// Makes it so, or as much of it as is possible now; the next time does the rest.
    pub(crate) fn update(&mut self, files: Files) -> io::Result<()> {
        if !self.known {
            self.look();
        }
        let written = self.write(&files);
        self.known = written.is_ok();
        self.there = files;
        written
    }

    fn write(&self, files: &Files) -> io::Result<()> {
        for folder in CLASSES.iter().chain(&DEVICES) {
            make_folder(&self.root.join(folder))?;
        }
        make_folder(&self.workshop())?;
        let wanted: BTreeSet<&str> = files.keys().filter_map(|path| device(path)).collect();
        let old: BTreeSet<&str> = self.there.keys().filter_map(|path| device(path)).collect();
        let is_new = |path: &str| device(path).is_some_and(|device| !old.contains(device));
        let goes = |path: &str| device(path).is_some_and(|device| !wanted.contains(device));
        // Directories of devices come before the links to them, and go after them.
        let mut copies = Copies::default();
        for (path, node) in files.iter().filter(|(path, _)| is_new(path)) {
            let device = device(path).expect("it is one of a device");
            copies.write(self.bench(device).join(&path[device.len() + 1..]), node)?;
        }
        for device in wanted.difference(&old) {
            fs::rename(self.bench(device), self.root.join(device))?;
        }
        for (path, node) in files {
            if !is_new(path) && self.there.get(path) != Some(node) {
                self.replace(path, node)?;
            }
        }
        for path in self.there.keys() {
            if !goes(path) && !files.contains_key(path) {
                self.remove(path);
            }
        }
        for device in old.difference(&wanted) {
            fs::rename(self.root.join(device), self.bench(device))?;
            fs::remove_dir_all(self.bench(device))?;
        }
        Ok(())
    }

    fn workshop(&self) -> PathBuf {
        self.root.join(WORKSHOP)
    }

    /// Where the folder of a device is made, and taken apart.
    fn bench(&self, device: &str) -> PathBuf {
        self.workshop().join(device.replace('/', "-"))
    }

    /// Takes it away.
    pub(crate) fn clear(root: &Path) {
        let _not_there = fs::remove_dir_all(root);
    }

    fn replace(&self, path: &str, node: &Node) -> io::Result<()> {
        let place = self.root.join(path);
        if let Some(folder) = place.parent() {
            make_folder(folder)?;
        }
        let new = self.workshop().join("file");
        write(&new, node)?;
        // A link may become a folder, and the other way round.
        if place.is_dir() && !place.is_symlink() {
            fs::remove_dir_all(&place)?;
        }
        fs::rename(new, place)
    }

    /// Removes a file, and folders that are empty without it.
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

/// Files of a new device. Many say the same, and then they are one file with several
/// names: files are replaced, so none of them changes with another.
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

/// The folder of the device that a file is about.
fn device(path: &str) -> Option<&str> {
    let class = DEVICES.iter().find_map(|class| {
        let rest = path.strip_prefix(class)?.strip_prefix('/')?;
        Some((class.len() + 1, rest))
    });
    let (start, rest) = class?;
    let (name, _file) = rest.split_once('/')?;
    Some(&path[..start + name.len()])
}

/// Whether a ferroced of version 0.1 wrote this file: its devices stood in the directories
/// of their classes, where links are now.
fn is_of_old(path: &str) -> bool {
    let classes = CLASSES.iter();
    let mut rests = classes.filter_map(|class| path.strip_prefix(class)?.strip_prefix('/'));
    rests.any(|rest| rest.contains('/'))
}

/// Everybody may look, whatever the umask is.
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

/// Adds what is there below a folder.
fn read(root: &Path, prefix: &str, files: &mut Files) -> io::Result<()> {
    let entries = match fs::read_dir(root.join(prefix)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let strange = || io::Error::from(io::ErrorKind::InvalidData);
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|_| strange())?;
        let path = match prefix {
            "" => name,
            prefix => format!("{prefix}/{name}"),
        };
        let kind = entry.file_type()?;
        if kind.is_dir() {
            read(root, &path, files)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path())?.into_os_string();
            let target = target.into_string().map_err(|_| strange())?;
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
    fn what_is_wanted_is_there_and_nothing_else() {
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

        // A folder becomes a link, and back; a file changes; a device is gone.
        let second = Files::from([
            file("sys/devices/virtual/infiniband/a/x", "3\n"),
            file("sys/devices/virtual/infiniband/a/same", "1\n"),
            link("sys/devices/virtual/infiniband/a/device", "/tmp"),
        ]);
        tree.update(second.clone()).unwrap();
        assert_eq!(seen(&root), second);
        tree.update(first.clone()).unwrap();
        assert_eq!(seen(&root), first);

        // Another one goes on with what it finds.
        let mut tree = Tree::open(root.clone());
        tree.look();
        assert_eq!(tree.there, first);
        tree.update(Files::new()).unwrap();
        assert_eq!(seen(&root), Files::new());
        assert!(!root.join("sys/devices/virtual/infiniband/a").exists());
        assert!(root.join("sys/class/infiniband").is_dir());
        Tree::clear(&root);
        assert!(!root.exists());
    }

    #[test]
    fn a_tree_of_the_old_form_is_written_anew() {
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
