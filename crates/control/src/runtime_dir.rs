//! One runtime directory: making it, and whether it can be trusted.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::path::{SOCKET, STATE_FILE};

/// How often a directory is made that another process removes again.
const ATTEMPTS: u32 = 100;
/// The user number of everybody who has none in this user namespace.
const OVERFLOW_UID: u32 = 65534;

/// The runtime directory of one ferroced, whether it exists or not.
#[derive(Debug, Clone)]
pub struct RuntimeDir {
    /// The directory for all network namespaces.
    base: PathBuf,
    /// The one for ours.
    path: PathBuf,
    kind: Kind,
    viewer: Viewer,
}

/// Where a runtime directory lies, and so whom it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Where FERROCE_RUNTIME_DIR says: there is no other, so trouble with it is an error.
    Chosen,
    /// Root's, below `/run`, which serves other users as well.
    System,
    /// A user's, in a directory of that user.
    Private,
    /// A user's, in a directory that is open to everybody. The base is not made here.
    Temporary,
}

/// User numbers as this process sees them: a user namespace changes them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Viewer {
    /// This user.
    pub(crate) uid: u32,
    /// Root of the machine: 0, or [`OVERFLOW_UID`] where root has no number.
    pub(crate) root: u32,
}

impl Viewer {
    pub(crate) fn here() -> Viewer {
        Viewer {
            uid: rustix::process::geteuid().as_raw(),
            // The kernel makes /proc as root of the machine, in every namespace.
            root: fs::metadata("/proc").map_or(0, |metadata| metadata.uid()),
        }
    }

    /// True if this user or root serves a control socket. Only they can have put one
    /// into a directory that is trusted.
    pub(crate) fn trusts_peer(self, uid: u32) -> bool {
        uid == self.uid || uid == self.root
    }
}

impl PartialEq for RuntimeDir {
    fn eq(&self, other: &RuntimeDir) -> bool {
        self.path == other.path
    }
}

impl Eq for RuntimeDir {}

impl RuntimeDir {
    pub(crate) fn new(base: PathBuf, netns: u64, kind: Kind, viewer: Viewer) -> RuntimeDir {
        RuntimeDir {
            path: base.join(netns.to_string()),
            base,
            kind,
            viewer,
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The control socket in it.
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// True if it has a random name in a directory that is open to everybody.
    pub fn is_temporary(&self) -> bool {
        self.kind == Kind::Temporary
    }

    /// True if a ferroced was killed and has left its notes there for the next one.
    pub fn has_notes(&self) -> bool {
        self.is_usable().unwrap_or(false) && self.path.join(STATE_FILE).exists()
    }

    /// Makes it, and makes sure that it is ours alone to write to.
    pub fn create(&self) -> Result<(), Error> {
        // A ferroced that ends removes its directory, perhaps at this moment.
        for _ in 0..ATTEMPTS {
            if self.make()? {
                return Ok(());
            }
        }
        let error = io::Error::from(io::ErrorKind::NotFound);
        let path = self.path.display();
        Err(Error::system(format!("cannot create {path}"), error))
    }

    /// False if it was removed meanwhile.
    fn make(&self) -> Result<bool, Error> {
        if self.kind == Kind::Temporary {
            self.check_base()?;
        }
        let mode = self.mode();
        // In a directory that is open to everybody the base is not made a second time:
        // its name may be another user's by now.
        let made_elsewhere = usize::from(self.kind == Kind::Temporary);
        for path in [&self.base, &self.path].into_iter().skip(made_elsewhere) {
            let failed = |error| Error::system(format!("cannot create {}", path.display()), error);
            let is_base = path == &self.base;
            let made = match DirBuilder::new().mode(mode).create(path) {
                // Whatever the umask says.
                Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                // The parent of the base is not ours to make.
                Err(error) if is_base => return Err(failed(error)),
                Err(error) => Err(error),
            };
            match made.and_then(|()| fs::symlink_metadata(path)) {
                Ok(metadata) => self.check(path, &metadata)?,
                Err(error) if self.kind == Kind::Temporary => return Err(failed(error)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(true)
    }

    fn check_base(&self) -> Result<(), Error> {
        let failed = |error| Error::system(format!("cannot use {}", self.base.display()), error);
        let metadata = fs::symlink_metadata(&self.base).map_err(failed)?;
        self.check(&self.base, &metadata)
    }

    /// Root's serves others, too: the socket in it has permissions of its own.
    fn mode(&self) -> u32 {
        match self.kind {
            Kind::Chosen | Kind::System if self.viewer.uid == 0 => 0o755,
            _ => 0o700,
        }
    }

    /// True if it exists and only this user or root can have put anything there. One
    /// that anybody else could have made counts as absent, or else everybody could keep
    /// others from using Ferroce.
    ///
    /// # Errors
    /// If it was chosen by FERROCE_RUNTIME_DIR and is not safe.
    pub fn is_usable(&self) -> Result<bool, Error> {
        for path in [&self.base, &self.path] {
            let Ok(metadata) = fs::symlink_metadata(path) else {
                return Ok(false);
            };
            match self.check(path, &metadata) {
                Ok(()) => {}
                Err(error) if self.kind == Kind::Chosen => return Err(error),
                Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Removes it if it is empty, and the base if that is empty then.
    pub fn remove_if_empty(&self) {
        if fs::remove_dir(&self.path).is_ok() {
            let _others_use_it = fs::remove_dir(&self.base);
        }
    }

    fn check(&self, path: &Path, metadata: &Metadata) -> Result<(), Error> {
        let owner = metadata.uid();
        let reason = if !metadata.is_dir() {
            "is not a directory"
        } else if owner != self.viewer.uid && !self.is_roots(owner) {
            "belongs to another user"
        } else if metadata.mode() & 0o022 != 0 {
            "can be written to by other users"
        } else {
            return Ok(());
        };
        Err(Error::UnsafeDirectory {
            path: path.into(),
            reason,
        })
    }

    /// True if the owner is root. Where root has no number other users have none
    /// either: then only a path below `/run` says that root has made it.
    fn is_roots(&self, owner: u32) -> bool {
        if owner != self.viewer.root {
            return false;
        }
        match (self.kind, self.viewer.root) {
            (Kind::Temporary, _) => false,
            (Kind::System, OVERFLOW_UID) => self.base.parent().is_some_and(|run| {
                let run = fs::symlink_metadata(run);
                run.is_ok_and(|run| run.uid() == owner && run.mode() & 0o022 == 0)
            }),
            (_, root) => root != OVERFLOW_UID,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::temporary;

    fn dir(base: &Path, kind: Kind, viewer: Viewer) -> RuntimeDir {
        RuntimeDir::new(base.into(), 77, kind, viewer)
    }

    /// Sees this user's directories as another user would.
    fn another() -> Viewer {
        let me = Viewer::here().uid;
        Viewer {
            uid: me + 1,
            root: me + 2,
        }
    }

    #[test]
    fn a_place_that_takes_nothing_is_given_up_on() {
        // No process has this number.
        let netns = u64::MAX;
        let dir = RuntimeDir::new("/proc".into(), netns, Kind::Private, Viewer::here());
        let error = dir.create().unwrap_err().to_string();
        let expected = format!("cannot create /proc/{netns}: ");
        assert!(error.starts_with(&expected), "{error}");
    }

    #[test]
    fn a_directory_of_another_user_counts_as_absent() {
        let base = temporary::make(&std::env::temp_dir(), "ferroce-runtime-").unwrap();
        let own = dir(&base, Kind::Private, Viewer::here());
        own.create().unwrap();
        assert!(own.is_usable().unwrap());
        assert!(!dir(&base, Kind::Private, another()).is_usable().unwrap());
        let chosen = dir(&base, Kind::Chosen, another()).is_usable();
        let error = chosen.unwrap_err().to_string();
        assert!(error.contains("belongs to another user"), "{error}");
        own.remove_if_empty();
        assert!(!base.exists());
    }

    #[test]
    fn root_without_a_number_is_trusted_below_run_only() {
        let parent = temporary::make(&std::env::temp_dir(), "ferroce-runtime-").unwrap();
        let base = parent.join("ferroce");
        fs::create_dir(&base).unwrap();
        let owner = Viewer::here().uid;
        let numberless = |kind| {
            let root = dir(&base, kind, another());
            root.is_roots(owner)
        };
        assert!(!numberless(Kind::System), "root is another");
        let viewer = Viewer {
            uid: OVERFLOW_UID - 1,
            root: OVERFLOW_UID,
        };
        assert!(!dir(&base, Kind::Private, viewer).is_roots(OVERFLOW_UID));
        assert!(!dir(&base, Kind::Temporary, viewer).is_roots(OVERFLOW_UID));
        // The parent is not of the user without a number.
        assert!(!dir(&base, Kind::System, viewer).is_roots(OVERFLOW_UID));
        fs::remove_dir_all(parent).unwrap();
    }
}
