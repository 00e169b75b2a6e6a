//! A runtime directory: its creation, and the check that only this user or root can write
//! to it.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD};

use crate::error::Error;
use crate::path::{SOCKET, STATE_FILE};

/// Attempts to create a directory that another process removes at the same time.
const ATTEMPTS: u32 = 100;
/// UID of all users that have no UID in this user namespace.
const OVERFLOW_UID: u32 = 65534;

/// The runtime directory of one ferroced. It need not exist.
#[derive(Debug, Clone)]
pub struct RuntimeDir {
    /// The directory for all network namespaces.
    base: PathBuf,
    /// The directory for this network namespace.
    path: PathBuf,
    kind: Kind,
    viewer: Viewer,
}

/// The location of a runtime directory, which decides who may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Named by FERROCE_RUNTIME_DIR. There is no other directory, so a problem is an error.
    Chosen,
    /// Root's directory below `/run`, which serves other users as well.
    System,
    /// A user's directory, in another directory of that user.
    Private,
    /// A user's directory in `/tmp`. [`temporary`](crate::temporary) creates its base.
    Temporary,
}

/// UIDs as this process sees them: a user namespace changes them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Viewer {
    /// This user.
    pub(crate) uid: u32,
    /// Root of the machine: 0, or [`OVERFLOW_UID`] if root has no UID here.
    pub(crate) root: u32,
}

impl Viewer {
    pub(crate) fn here() -> Viewer {
        Viewer {
            uid: rustix::process::geteuid().as_raw(),
            // In every namespace root of the machine owns /proc.
            root: fs::metadata("/proc").map_or(0, |metadata| metadata.uid()),
        }
    }

    /// Returns true if a directory belongs to this user. Users without a UID in this
    /// namespace all appear as [`OVERFLOW_UID`]. If this user does too, the kernel must tell
    /// by permissions: it compares the real UIDs.
    pub(crate) fn owns(self, path: &Path, metadata: &Metadata) -> bool {
        metadata.uid() == self.uid && (self.uid != OVERFLOW_UID || is_writable_by_owner(path))
    }

    /// Returns true if the owner of a control socket is this user or root. Only they can
    /// create a socket in a trusted directory.
    pub(crate) fn trusts_peer(self, uid: u32) -> bool {
        uid == self.uid || uid == self.root
    }
}

/// Returns true if this process may write to a directory because it is the owner. The
/// directory must deny writing to group and others.
fn is_writable_by_owner(path: &Path) -> bool {
    let denied = |metadata: Metadata| metadata.mode() & 0o022 == 0;
    let flags = AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::accessat(CWD, path, Access::WRITE_OK, flags).is_ok()
        && fs::symlink_metadata(path).is_ok_and(denied)
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

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the control socket.
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// Returns true if the directory is in `/tmp`.
    pub fn is_temporary(&self) -> bool {
        self.kind == Kind::Temporary
    }

    /// Returns true if a killed ferroced has left its state there for the next one.
    pub fn has_state(&self) -> bool {
        self.is_usable().unwrap_or(false) && self.path.join(STATE_FILE).exists()
    }

    /// Creates the directory.
    ///
    /// # Errors
    /// If it cannot be created, or other users can write to it.
    pub fn create(&self) -> Result<(), Error> {
        // A ferroced that ends may remove its directory at the same time.
        for _ in 0..ATTEMPTS {
            if self.make()? {
                return Ok(());
            }
        }
        let error = io::Error::from(io::ErrorKind::NotFound);
        let path = self.path.display();
        Err(Error::system(format!("cannot create {path}"), error))
    }

    /// Creates base and directory. Returns false if another process removed one meanwhile.
    fn make(&self) -> Result<bool, Error> {
        if self.kind == Kind::Temporary {
            self.check_base()?;
        }
        let mode = self.mode();
        // The base in `/tmp` is not created a second time: another user may have taken its
        // name.
        let existing = usize::from(self.kind == Kind::Temporary);
        for path in [&self.base, &self.path].into_iter().skip(existing) {
            let failed = |error| Error::system(format!("cannot create {}", path.display()), error);
            let is_base = path == &self.base;
            let made = match DirBuilder::new().mode(mode).create(path) {
                // The umask may have cleared bits.
                Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                // The parent of the base must exist.
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

    /// Returns the mode. Root's directory serves other users: its socket has permissions of
    /// its own.
    fn mode(&self) -> u32 {
        match self.kind {
            Kind::Chosen | Kind::System if self.viewer.uid == 0 => 0o755,
            _ => 0o700,
        }
    }

    /// Returns true if the directory exists and only this user or root can write to it. A
    /// directory that another user could have created counts as absent. Otherwise any user
    /// could deny Ferroce to others.
    ///
    /// # Errors
    /// If FERROCE_RUNTIME_DIR names the directory and it is not safe.
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

    /// Removes the directory if it is empty, and then the base if it is empty.
    pub fn remove_if_empty(&self) {
        if fs::remove_dir(&self.path).is_ok() {
            let _others_use_it = fs::remove_dir(&self.base);
        }
    }

    fn check(&self, path: &Path, metadata: &Metadata) -> Result<(), Error> {
        let owner = metadata.uid();
        let reason = if !metadata.is_dir() {
            "is not a directory"
        } else if !self.viewer.owns(path, metadata) && !self.is_root(owner) {
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

    /// Returns true if the owner is root. In a user namespace where root has no UID, other
    /// users may have none either. Then only a directory in root's `/run` is root's.
    fn is_root(&self, owner: u32) -> bool {
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

    /// Returns another user, for whom this user's directories are foreign.
    fn another() -> Viewer {
        let me = Viewer::here().uid;
        Viewer {
            uid: me + 1,
            root: me + 2,
        }
    }

    #[test]
    fn creation_fails_where_nothing_can_be_created() {
        // No process has this PID.
        let netns = u64::MAX;
        let dir = RuntimeDir::new("/proc".into(), netns, Kind::Private, Viewer::here());
        let error = dir.create().unwrap_err().to_string();
        let expected = format!("cannot create /proc/{netns}: ");
        assert!(error.starts_with(&expected), "{error}");
    }

    #[test]
    fn directory_of_another_user_counts_as_absent() {
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

    /// Environment variable that tells the test below that it runs in the namespace.
    const INSIDE: &str = "FERROCE_TEST_OWN_DIRECTORY";

    /// In a user namespace without a map all users appear as the overflow user.
    #[test]
    fn user_without_a_uid_trusts_its_own_directories_only() {
        if let Some(base) = std::env::var_os(INSIDE) {
            let viewer = Viewer::here();
            assert_eq!(viewer.uid, OVERFLOW_UID);
            let parent = Path::new(&base);
            assert!(
                dir(&parent.join("own"), Kind::Private, viewer)
                    .create()
                    .is_ok()
            );
            let found = temporary::find(&parent.join("own"), viewer).unwrap();
            assert_eq!(found, [parent.join("own/ferroce.own")]);
            // An ordinary user can create no foreign directory, but knows one of root's.
            let foreign = Some(parent.join("foreign")).filter(|path| path.exists());
            let foreign = foreign.unwrap_or_else(|| "/usr".into());
            let metadata = fs::symlink_metadata(&foreign).unwrap();
            assert_eq!(metadata.uid(), OVERFLOW_UID);
            let checked = dir(parent, Kind::Private, viewer).check(&foreign, &metadata);
            let error = checked.unwrap_err().to_string();
            assert!(error.contains("belongs to another user"), "{error}");
            return;
        }
        let parent = temporary::make(&std::env::temp_dir(), "ferroce-runtime-").unwrap();
        fs::set_permissions(&parent, Permissions::from_mode(0o755)).unwrap();
        let private = |path: &Path| DirBuilder::new().mode(0o700).create(path).unwrap();
        private(&parent.join("own"));
        private(&parent.join("own/ferroce.own"));
        if Viewer::here().uid == 0 {
            let foreign = parent.join("foreign");
            fs::create_dir(&foreign).unwrap();
            std::os::unix::fs::chown(&foreign, Some(12345), None).unwrap();
        }
        let name = "runtime_dir::tests::user_without_a_uid_trusts_its_own_directories_only";
        let output = std::process::Command::new("unshare")
            .arg("--user")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(INSIDE, &parent)
            .output()
            .expect("util-linux is installed: this test needs `unshare`");
        fs::remove_dir_all(parent).unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        if stderr.contains("unshare failed") && Viewer::here().uid != 0 {
            eprintln!("SKIPPED: this system permits no user namespaces: {stderr}");
            return;
        }
        assert!(output.status.success(), "{stderr}");
    }

    #[test]
    fn root_without_a_uid_is_trusted_below_run_only() {
        let parent = temporary::make(&std::env::temp_dir(), "ferroce-runtime-").unwrap();
        let base = parent.join("ferroce");
        fs::create_dir(&base).unwrap();
        let owner = Viewer::here().uid;
        let is_root = |kind| {
            let root = dir(&base, kind, another());
            root.is_root(owner)
        };
        assert!(!is_root(Kind::System), "root is another");
        let viewer = Viewer {
            uid: OVERFLOW_UID - 1,
            root: OVERFLOW_UID,
        };
        assert!(!dir(&base, Kind::Private, viewer).is_root(OVERFLOW_UID));
        assert!(!dir(&base, Kind::Temporary, viewer).is_root(OVERFLOW_UID));
        // The owner of the parent has a UID.
        assert!(!dir(&base, Kind::System, viewer).is_root(OVERFLOW_UID));
        fs::remove_dir_all(parent).unwrap();
    }
}
