//! Where ferroced keeps its socket and its notes: the runtime directory.
//!
//! | for | directory |
//! | --- | --- |
//! | everybody, if set | `$FERROCE_RUNTIME_DIR/<netns>/` |
//! | root (system-wide) | `/run/ferroce/<netns>/` |
//! | a user | `$XDG_RUNTIME_DIR/ferroce/<netns>/` |
//! | a user without the variable | `ferroce/<netns>/` in the user's directory in `/run/user` |
//! | a user without either (cron, containers) | `/tmp/ferroce.<random>/<netns>/` |
//!
//! `<netns>` is the inode number of the network namespace.
//!
//! Directories are told apart by their owner and never by a user number in their name:
//! in a user namespace the same user has another number. A directory that somebody else
//! could have made is skipped. `/tmp` is open to everybody, so no name there can be
//! reserved: the name is random, and found again as a directory of mode 0700 of this user.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
pub use crate::runtime_dir::RuntimeDir;
use crate::runtime_dir::{Kind, Viewer};
use crate::temporary;

/// The environment variable that replaces all of the above.
pub const RUNTIME_DIR_VARIABLE: &str = "FERROCE_RUNTIME_DIR";
/// The environment variable that tells the preload library where [`SYSFS_DIR`] is.
pub const SYSFS_VARIABLE: &str = "FERROCE_SYSFS";
/// The control socket in a runtime directory.
pub const SOCKET: &str = "control.sock";
/// Added to the name of a socket while it is made: the kernel goes on listing it so.
pub const NEW_SUFFIX: &str = ".new";
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
/// Where login sessions have one directory for each user.
const SESSIONS: &str = "/run/user";
const TEMPORARY: &str = "/tmp";

/// All that counts in the choice, as an argument so that it can be tested.
#[derive(Debug)]
struct Surroundings {
    viewer: Viewer,
    netns: u64,
    override_dir: Option<OsString>,
    xdg_dir: Option<OsString>,
    system: PathBuf,
    sessions: PathBuf,
    temporary: PathBuf,
}

/// Lists the directories where a ferroced of this user would be, the preferred one first.
pub fn own_dirs() -> Result<Vec<RuntimeDir>, Error> {
    Ok(Surroundings::here()?.own())
}

/// Lists the directories where a ferroced may be that serves this user: their own, then
/// the system-wide one.
pub fn runtime_dirs() -> Result<Vec<RuntimeDir>, Error> {
    Ok(Surroundings::here()?.all())
}

/// Makes the directory for a ferroced of this user: where an earlier one has left its
/// notes, else the first that can be had.
pub fn create_own_dir() -> Result<RuntimeDir, Error> {
    Surroundings::here()?.create()
}

/// Returns the inode number of this thread's network namespace.
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
            viewer: Viewer::here(),
            netns: netns_inode()?,
            override_dir: variable(RUNTIME_DIR_VARIABLE),
            xdg_dir: variable("XDG_RUNTIME_DIR"),
            system: SYSTEM_BASE.into(),
            sessions: SESSIONS.into(),
            temporary: TEMPORARY.into(),
        })
    }

    fn own(&self) -> Vec<RuntimeDir> {
        if let Some(base) = &self.override_dir {
            // ferroced leaves the directory it is started in.
            let base = std::path::absolute(base).unwrap_or_else(|_| base.into());
            return vec![self.dir(base, Kind::Chosen)];
        }
        let mut dirs = Vec::new();
        if self.viewer.uid == 0 {
            dirs.push(self.dir(self.system.clone(), Kind::System));
        }
        // Root of a user namespace cannot write to /run, and goes on like a user.
        let named = self.xdg_dir.iter().map(PathBuf::from);
        // A program without a login session finds what was started in one.
        for session in named.chain(self.sessions()) {
            dirs.push(self.dir(session.join("ferroce"), Kind::Private));
        }
        for base in temporary::find(&self.temporary, self.viewer.uid).unwrap_or_default() {
            dirs.push(self.dir(base, Kind::Temporary));
        }
        dirs.dedup();
        dirs
    }

    /// The directories of this user's login sessions.
    fn sessions(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.sessions).into_iter().flatten().flatten();
        let ours = |path: &Path| {
            let metadata = fs::symlink_metadata(path);
            metadata.is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == self.viewer.uid)
        };
        let mut ours: Vec<PathBuf> = entries.map(|e| e.path()).filter(|p| ours(p)).collect();
        ours.sort();
        ours
    }

    fn all(&self) -> Vec<RuntimeDir> {
        let mut dirs = self.own();
        let system = self.dir(self.system.clone(), Kind::System);
        if self.override_dir.is_none() && !dirs.contains(&system) {
            dirs.push(system);
        }
        dirs
    }

    fn create(&self) -> Result<RuntimeDir, Error> {
        let mut dirs = self.own();
        // Programs that run watch the directory where the last ferroced has been.
        dirs.sort_by_key(|dir| !dir.has_notes());
        let mut tried = Vec::new();
        for dir in dirs {
            match dir.create() {
                Ok(()) => return Ok(dir),
                Err(error) if self.override_dir.is_some() => return Err(error),
                Err(error) => tried.push(error.to_string()),
            }
        }
        match self.create_temporary() {
            Ok(dir) => return Ok(dir),
            Err(error) => tried.push(error.to_string()),
        }
        Err(Error::NoDirectory(tried.join("; ")))
    }

    fn create_temporary(&self) -> Result<RuntimeDir, Error> {
        let failed = |error| {
            let what = format!("cannot make a directory in {}", self.temporary.display());
            Error::system(what, error)
        };
        let base = temporary::create(&self.temporary, self.viewer.uid).map_err(failed)?;
        let dir = self.dir(base, Kind::Temporary);
        dir.create()?;
        Ok(dir)
    }

    fn dir(&self, base: PathBuf, kind: Kind) -> RuntimeDir {
        RuntimeDir::new(base, self.netns, kind, self.viewer)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Empty directories in the place of `/run`, `/run/user` and `/tmp`.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Scratch {
            let path = temporary::make(&std::env::temp_dir(), "ferroce-path-").unwrap();
            for part in ["run", "user", "tmp"] {
                fs::create_dir(path.join(part)).unwrap();
            }
            Scratch(path)
        }

        /// A user who is not root, whoever runs the tests.
        fn surroundings(&self) -> Surroundings {
            let viewer = Viewer {
                root: u32::MAX,
                ..Viewer::here()
            };
            Surroundings {
                viewer,
                netns: 77,
                override_dir: None,
                xdg_dir: None,
                system: self.0.join("run/ferroce"),
                sessions: self.0.join("user"),
                temporary: self.0.join("tmp"),
            }
        }

        fn shown(&self, dirs: &[RuntimeDir]) -> Vec<String> {
            let shown = |dir: &RuntimeDir| {
                let path = dir.path().strip_prefix(&self.0).unwrap_or(dir.path());
                path.to_str().unwrap().to_owned()
            };
            dirs.iter().map(shown).collect()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_user_looks_in_sessions_then_system_wide() {
        let scratch = Scratch::new();
        let mut user = scratch.surroundings();
        user.viewer.uid = user.viewer.uid.max(1);
        assert_eq!(scratch.shown(&user.all()), ["run/ferroce/77"]);
        user.xdg_dir = Some("/x".into());
        let both = ["/x/ferroce/77", "run/ferroce/77"];
        assert_eq!(scratch.shown(&user.all()), both);
        assert_eq!(scratch.shown(&user.own()), both[..1]);
    }

    #[test]
    fn root_is_system_wide() {
        let scratch = Scratch::new();
        let mut root = scratch.surroundings();
        root.viewer.uid = 0;
        assert_eq!(scratch.shown(&root.all())[0], "run/ferroce/77");
        assert_eq!(root.all(), root.own());
    }

    #[test]
    fn the_variable_rules() {
        let scratch = Scratch::new();
        let mut any = scratch.surroundings();
        any.override_dir = Some("/elsewhere".into());
        assert_eq!(scratch.shown(&any.all()), ["/elsewhere/77"]);
    }

    #[test]
    fn a_session_directory_is_found_by_its_owner() {
        let scratch = Scratch::new();
        let user = scratch.surroundings();
        let session = scratch.0.join("user/4242");
        fs::create_dir(&session).unwrap();
        let own = user.own();
        assert!(
            own.iter()
                .any(|dir| dir.path() == session.join("ferroce/77"))
        );
        let mut other = scratch.surroundings();
        other.viewer.uid += 1;
        assert_eq!(scratch.shown(&other.own()), [] as [&str; 0]);
    }

    #[test]
    fn without_a_session_the_directory_is_temporary_and_found_again() {
        let scratch = Scratch::new();
        let user = scratch.surroundings();
        // Nothing can be made there, as for an ordinary user.
        fs::remove_dir(scratch.0.join("run")).unwrap();
        let made = user.create().unwrap();
        assert!(made.path().starts_with(scratch.0.join("tmp")));
        assert!(user.own().contains(&made));
        assert_eq!(user.create().unwrap(), made);
        let mode = fs::metadata(made.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_squatter_keeps_nobody_out() {
        let scratch = Scratch::new();
        let user = scratch.surroundings();
        // Everybody may write to these, so they count for nothing.
        for squatted in ["run/ferroce", "tmp/ferroce.0", "tmp/ferroce-0"] {
            let path = scratch.0.join(squatted);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        }
        let made = user.create().unwrap();
        assert!(made.is_usable().unwrap());
        assert!(made.path().parent() != Some(&scratch.0.join("tmp/ferroce.0")));
    }

    #[test]
    fn the_next_ferroced_goes_where_notes_are() {
        let scratch = Scratch::new();
        let mut user = scratch.surroundings();
        fs::remove_dir(scratch.0.join("run")).unwrap();
        let made = user.create().unwrap();
        fs::write(made.path().join(STATE_FILE), "").unwrap();
        user.xdg_dir = Some(scratch.0.join("user").into());
        assert_eq!(user.create().unwrap(), made);
    }

    #[test]
    fn every_place_that_was_tried_is_named() {
        let scratch = Scratch::new();
        let mut user = scratch.surroundings();
        fs::remove_dir(scratch.0.join("run")).unwrap();
        fs::remove_dir(scratch.0.join("tmp")).unwrap();
        user.xdg_dir = Some("/proc".into());
        let error = user.create().unwrap_err().to_string();
        assert!(error.contains("cannot create /proc/ferroce: "), "{error}");
        assert!(error.contains("tmp: "), "{error}");
        assert!(error.contains("FERROCE_RUNTIME_DIR"), "{error}");
    }
}
