//! Where ferroced keeps its socket and its notes: the runtime directory.
//!
//! | who | directory |
//! | --- | --- |
//! | everybody, if set | `$FERROCE_RUNTIME_DIR/<netns>/` |
//! | root (system-wide) | `/run/ferroce/<netns>/` |
//! | a user | `$XDG_RUNTIME_DIR/ferroce/<netns>/`, else `/tmp/ferroce-<uid>/<netns>/` |
//!
//! `<netns>` is the inode number of the network namespace. Directories of a user are
//! 0700 and must belong to that user: `/tmp` is open to everybody.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The environment variable that replaces all of the above.
pub const RUNTIME_DIR_VARIABLE: &str = "FERROCE_RUNTIME_DIR";
/// The environment variable that tells the preload library where [`SYSFS_DIR`] is.
pub const SYSFS_VARIABLE: &str = "FERROCE_SYSFS";
/// The control socket in a runtime directory.
pub const SOCKET: &str = "control.sock";
/// The file whose lock says that a ferroced runs; holds its process number.
pub const PID_FILE: &str = "ferroced.pid";
/// What a ferroced leaves for the next one.
pub const STATE_FILE: &str = "state.json";
/// What a ferroced in the background has to say.
pub const LOG_FILE: &str = "ferroced.log";
/// Files that look like those of sysfs and /dev, for programs that look there.
pub const SYSFS_DIR: &str = "sysfs";
/// Whoever connects to it finds the counters in [`SYSFS_DIR`] up to date when the connection
/// has been closed.
pub const REFRESH: &str = "refresh.sock";

const SYSTEM_BASE: &str = "/run/ferroce";
/// How often a directory is made that somebody else takes away again.
const ATTEMPTS: u32 = 100;

/// The runtime directory of one ferroced, whether it exists or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeDir {
    /// The directory for all network namespaces.
    base: PathBuf,
    /// The one for ours.
    path: PathBuf,
}

/// All that counts in the choice, as an argument so that it can be tested.
#[derive(Debug)]
struct Surroundings {
    uid: u32,
    netns: u64,
    override_dir: Option<OsString>,
    xdg_dir: Option<OsString>,
}

/// The directories where a ferroced of this user would be, the preferred one first.
pub fn own_dirs() -> Result<Vec<RuntimeDir>, Error> {
    Ok(Surroundings::here()?.own())
}

/// The directories where a ferroced may be that serves this user: their own, then
/// the system-wide one.
pub fn runtime_dirs() -> Result<Vec<RuntimeDir>, Error> {
    Ok(Surroundings::here()?.all())
}

/// The inode number of this thread's network namespace.
pub fn netns_inode() -> Result<u64, Error> {
    let path = "/proc/thread-self/ns/net";
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.ino()),
        Err(error) => Err(Error::system(format!("cannot read {path}"), error)),
    }
}

impl Surroundings {
    fn here() -> Result<Surroundings, Error> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Ok(Surroundings {
            uid: rustix::process::geteuid().as_raw(),
            netns: netns_inode()?,
            override_dir: variable(RUNTIME_DIR_VARIABLE),
            xdg_dir: variable("XDG_RUNTIME_DIR"),
        })
    }

    fn own(&self) -> Vec<RuntimeDir> {
        if let Some(base) = &self.override_dir {
            // ferroced leaves the directory it is started in.
            let base = std::path::absolute(base).unwrap_or_else(|_| base.into());
            return vec![self.dir(base)];
        }
        let mut bases = Vec::new();
        if self.uid == 0 {
            bases.push(PathBuf::from(SYSTEM_BASE));
        }
        // Root of a user namespace cannot write to /run, and goes on like a user.
        let sessions = self.xdg_dir.iter().map(PathBuf::from);
        // A program without a login session finds what was started in one.
        let session = PathBuf::from(format!("/run/user/{}", self.uid));
        for dir in sessions.chain([session]) {
            bases.push(dir.join("ferroce"));
        }
        bases.push(PathBuf::from(format!("/tmp/ferroce-{}", self.uid)));
        bases.dedup();
        bases.into_iter().map(|base| self.dir(base)).collect()
    }

    fn all(&self) -> Vec<RuntimeDir> {
        let mut dirs = self.own();
        let system = self.dir(SYSTEM_BASE.into());
        if self.override_dir.is_none() && !dirs.contains(&system) {
            dirs.push(system);
        }
        dirs
    }

    fn dir(&self, base: PathBuf) -> RuntimeDir {
        RuntimeDir {
            path: base.join(self.netns.to_string()),
            base,
        }
    }
}

impl RuntimeDir {
    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The control socket in it.
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// Makes it, and makes sure that it is ours alone to write to.
    pub fn create(&self) -> Result<(), Error> {
        // A ferroced that ends takes its directory away, perhaps under our hands.
        for _ in 0..ATTEMPTS {
            if self.make()? {
                return Ok(());
            }
        }
        let error = io::Error::from(io::ErrorKind::NotFound);
        let path = self.path.display();
        Err(Error::system(format!("cannot create {path}"), error))
    }

    /// False if it was taken away meanwhile.
    fn make(&self) -> Result<bool, Error> {
        let uid = rustix::process::geteuid().as_raw();
        // Root's serves others, too: the socket in it has permissions of its own.
        let mode = if uid == 0 { 0o755 } else { 0o700 };
        for path in [&self.base, &self.path] {
            let failed = |error| Error::system(format!("cannot create {}", path.display()), error);
            let made = match DirBuilder::new().mode(mode).create(path) {
                // Whatever the umask says.
                Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                // What the base lies in is not ours to make.
                Err(error) if path == &self.base => return Err(failed(error)),
                Err(error) => Err(error),
            };
            match made.and_then(|()| fs::symlink_metadata(path)) {
                Ok(metadata) => check(path, &metadata, uid)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(true)
    }

    /// Whether it exists, and belongs to us or to root alone.
    pub fn is_usable(&self) -> Result<bool, Error> {
        let uid = rustix::process::geteuid().as_raw();
        for path in [&self.base, &self.path] {
            let Ok(metadata) = fs::symlink_metadata(path) else {
                return Ok(false);
            };
            check(path, &metadata, uid)?;
        }
        Ok(true)
    }
}

fn check(path: &Path, metadata: &Metadata, uid: u32) -> Result<(), Error> {
    match complaint(metadata, uid) {
        None => Ok(()),
        Some(reason) => Err(Error::UnsafeDirectory {
            path: path.into(),
            reason,
        }),
    }
}

fn complaint(metadata: &Metadata, uid: u32) -> Option<&'static str> {
    if !metadata.is_dir() {
        Some("is not a directory")
    } else if metadata.uid() != uid && metadata.uid() != 0 {
        Some("belongs to another user")
    } else if metadata.mode() & 0o022 != 0 {
        Some("can be written to by other users")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_takes_nothing_is_given_up_on() {
        let dir = RuntimeDir {
            base: "/proc".into(),
            path: "/proc/ferroce".into(),
        };
        let error = dir.create().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot create /proc/ferroce: ")
        );
    }

    fn paths(dirs: &[RuntimeDir]) -> Vec<&str> {
        dirs.iter().map(|d| d.path().to_str().unwrap()).collect()
    }

    fn surroundings(uid: u32) -> Surroundings {
        Surroundings {
            uid,
            netns: 77,
            override_dir: None,
            xdg_dir: None,
        }
    }

    #[test]
    fn a_user_looks_at_home_then_system_wide() {
        let mut user = surroundings(1000);
        let without = [
            "/run/user/1000/ferroce/77",
            "/tmp/ferroce-1000/77",
            "/run/ferroce/77",
        ];
        assert_eq!(paths(&user.all()), without);
        assert_eq!(paths(&user.own()), without[..2]);
        user.xdg_dir = Some("/x".into());
        assert_eq!(paths(&user.all())[0], "/x/ferroce/77");
        user.xdg_dir = Some("/run/user/1000".into());
        assert_eq!(paths(&user.all()), without, "nothing twice");
    }

    #[test]
    fn root_is_system_wide() {
        let root = surroundings(0);
        assert_eq!(paths(&root.all())[0], "/run/ferroce/77");
        assert_eq!(paths(&root.all()).len(), paths(&root.own()).len());
    }

    #[test]
    fn the_variable_rules() {
        let mut any = surroundings(1000);
        any.override_dir = Some("/elsewhere".into());
        assert_eq!(paths(&any.all()), ["/elsewhere/77"]);
    }
}
