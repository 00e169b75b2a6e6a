//! Links that several runs share.
//!
//! The first `ferroce run` adds a link, and the last one to end deletes it. All runs hold a
//! shared lock on one file, which lists the links that were added this way. A run that gets
//! the exclusive lock is the last one. While it holds that lock, no other run can start.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ferroce_control::create_own_dir;
use rustix::fs::{FlockOperation, flock};

const FILE: &str = "runs";
/// Attempts to open the file, if a ferroced that ends removes the runtime directory.
const ATTEMPTS: usize = 100;

/// A share in the links.
#[derive(Debug)]
pub(super) struct Share {
    file: File,
    path: PathBuf,
}

impl Share {
    /// Takes a share. Waits until no other run deletes links; from then on none does.
    pub(super) fn take() -> Result<Share> {
        loop {
            let (file, path) = open()?;
            flock(&file, FlockOperation::LockShared).context("cannot lock the list of runs")?;
            // Another run may have removed the file between opening and locking.
            if is_at(&file, &path) {
                return Ok(Share { file, path });
            }
        }
    }

    /// Takes over the share of another process.
    pub(super) fn inherit(file: impl AsFd, path: &Path) -> Result<Share> {
        let file: OwnedFd = file.as_fd().try_clone_to_owned()?;
        let (file, path) = (file.into(), path.to_owned());
        Ok(Share { file, path })
    }

    /// Returns a descriptor that holds the share, and the path of the file.
    pub(super) fn hand_over(&self) -> io::Result<(File, &Path)> {
        Ok((self.file.try_clone()?, &self.path))
    }

    /// Returns the links that runs have added.
    pub(super) fn links(&mut self) -> io::Result<Vec<String>> {
        let mut text = String::new();
        self.file.rewind()?;
        self.file.read_to_string(&mut text)?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Adds a link to the list.
    pub(super) fn add(&mut self, link: &str) -> Result<()> {
        // The file is open for appending, so lines of several writers do not mix.
        let written = self.file.write_all(format!("{link}\n").as_bytes());
        written.with_context(|| format!("cannot write to {}", self.path.display()))
    }

    /// Releases the share. If this is the last share, calls `take_down` with the links, which
    /// returns those that are still in use. Returns true if no link is left to this share.
    pub(super) fn give_back(
        &mut self,
        take_down: impl FnOnce(Vec<String>) -> Result<Vec<String>>,
    ) -> Result<bool> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(true), // another run is the last
            Err(error) => bail!("cannot lock the list of runs: {error}"),
        }
        let links = self.links()?;
        let left = match take_down(links) {
            Ok(left) => left,
            Err(error) => {
                // Let other runs start: they need not wait for this one.
                flock(&self.file, FlockOperation::LockShared)?;
                return Err(error);
            }
        };
        if left.is_empty() {
            let _gone_already = fs::remove_file(&self.path);
            return Ok(true);
        }
        self.file.set_len(0)?;
        for link in left {
            self.add(&link)?;
        }
        flock(&self.file, FlockOperation::LockShared)?;
        Ok(false)
    }
}

/// Opens the file in the runtime directory.
fn open() -> Result<(File, PathBuf)> {
    for _ in 0..ATTEMPTS {
        let path = create_own_dir()?.path().join(FILE);
        let mut options = File::options();
        match options.read(true).append(true).create(true).open(&path) {
            Ok(file) => return Ok((file, path)),
            // A ferroced that ended has just removed the directory.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => bail!("cannot open {}: {error}", path.display()),
        }
    }
    bail!(
        "cannot open `{FILE}` in the runtime directory: the directory was removed {ATTEMPTS} \
         times meanwhile; is another program starting and ending ferroced in a loop?"
    )
}

/// Returns true if the path names this file.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}
