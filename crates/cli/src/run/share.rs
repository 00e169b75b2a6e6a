//! Links that several runs share.
//!
//! Who starts first makes a link, who ends last takes it down; in between others
//! come and go. All hold a shared lock on one file, in which the links stand that
//! were made this way. Who gets the lock for itself alone is the last, and
//! while it has it nobody new can begin.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ferroce_control::create_own_dir;
use rustix::fs::{FlockOperation, flock};

const FILE: &str = "runs";
/// How often the runtime directory may vanish before the file in it is open.
const ATTEMPTS: usize = 100;

/// A share in the links.
#[derive(Debug)]
pub(super) struct Share {
    file: File,
    path: PathBuf,
}

impl Share {
    /// Waits until nobody takes links down, and sees to it that nobody does.
    pub(super) fn take() -> Result<Share> {
        loop {
            let (file, path) = open()?;
            flock(&file, FlockOperation::LockShared).context("cannot lock the list of runs")?;
            // The last one may have removed it between opening and locking.
            if is_at(&file, &path) {
                return Ok(Share { file, path });
            }
        }
    }

    /// The share that another process has handed over.
    pub(super) fn inherit(file: impl AsFd, path: &Path) -> Result<Share> {
        let file: OwnedFd = file.as_fd().try_clone_to_owned()?;
        let (file, path) = (file.into(), path.to_owned());
        Ok(Share { file, path })
    }

    /// A descriptor that keeps the share, and where the file is.
    pub(super) fn hand_over(&self) -> io::Result<(File, &Path)> {
        Ok((self.file.try_clone()?, &self.path))
    }

    /// The links that were made by runs.
    pub(super) fn links(&mut self) -> io::Result<Vec<String>> {
        let mut text = String::new();
        self.file.rewind()?;
        self.file.read_to_string(&mut text)?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Adds a link.
    pub(super) fn add(&mut self, link: &str) -> Result<()> {
        // The file is open for appending: lines of several writers do not mix.
        let written = self.file.write_all(format!("{link}\n").as_bytes());
        written.with_context(|| format!("cannot write to {}", self.path.display()))
    }

    /// Gives the share back. If it was the last, `take_down` is called with the
    /// links; those that it cannot take down yet it returns. True if all is done.
    pub(super) fn give_back(
        &mut self,
        take_down: impl FnOnce(Vec<String>) -> Result<Vec<String>>,
    ) -> Result<bool> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(true), // somebody else's business
            Err(error) => bail!("cannot lock the list of runs: {error}"),
        }
        let links = self.links()?;
        let left = match take_down(links) {
            Ok(left) => left,
            Err(error) => {
                // Others may begin: they need not wait for us.
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
            // A ferroced that ends has just removed the directory.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => bail!("cannot open {}: {error}", path.display()),
        }
    }
    bail!("the runtime directory is removed again and again; is a ferroced ending all the time?")
}

/// Whether a path leads to this very file.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}
