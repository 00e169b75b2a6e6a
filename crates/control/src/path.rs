//! Runtime directories, in which ferroced keeps its socket, state and log.
//!
//! | for | directory |
//! | --- | --- |
//! | all users, if set | `$FERROCE_RUNTIME_DIR/<netns>/` |
//! | root (system-wide) | `/run/ferroce/<netns>/` |
//! | a user | `$XDG_RUNTIME_DIR/ferroce/<netns>/` |
//! | a user without the variable | `ferroce/<netns>/` in the user's directory in `/run/user` |
//! | a user without either (cron, containers) | `/tmp/ferroce.<random>/<netns>/` |
//!
//! `<netns>` is the inode number of the network namespace.
//!
//! A directory belongs to a user by its owner, never by a UID in its name: in a user
//! namespace the same user has another UID. Directories that another user could have
//! created are skipped. Every user can write to `/tmp`, so no name there can be reserved:
//! the name is random, and the directory is found by its owner and its mode 0700.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
pub use crate::runtime_dir::RuntimeDir;
use crate::runtime_dir::{Kind, Viewer};
use crate::temporary;

/// Environment variable with the base directory, in place of the others.
pub const RUNTIME_DIR_VARIABLE: &str = "FERROCE_RUNTIME_DIR";
/// Environment variable with the path of [`SYSFS_DIR`], for the preload library.
pub const SYSFS_VARIABLE: &str = "FERROCE_SYSFS";
/// Environment variable that turns off the warnings and notes of `ferroce run`.
pub const QUIET_VARIABLE: &str = "FERROCE_QUIET";
/// The variable that limits programs to links of one type, `rxe` or `siw`.
pub const TYPE_VARIABLE: &str = "FERROCE_TYPE";
/// The variable of the flight recorder, which records the last packets of queue pairs: 0 turns it
/// off, and 1 includes packets through shared memory.
pub const RECORDER_VARIABLE: &str = "FERROCE_RECORDER";
/// Environment variable that tells that `ferroce run` has set one of NCCL's.
pub const NCCL_SET_VARIABLE: &str = "FERROCE_NCCL_SET";
/// Name of the control socket in a runtime directory.
pub const SOCKET: &str = "control.sock";
/// Suffix of a socket's name while it is created. The kernel keeps listing this name.
pub const NEW_SUFFIX: &str = ".new";
/// Name of the file with ferroced's PID. ferroced holds a lock on it.
pub const PID_FILE: &str = "ferroced.pid";
/// Name of the file with the state for the next ferroced.
pub const STATE_FILE: &str = "state.json";
/// Name of the log file of a ferroced in the background.
pub const LOG_FILE: &str = "ferroced.log";
/// Name of the directory with files that mirror those in sysfs and /dev.
pub const SYSFS_DIR: &str = "sysfs";
/// Name of a socket that refreshes counters: ferroced updates [`SYSFS_DIR`] and then closes
/// each connection to it.
pub const REFRESH: &str = "refresh.sock";

const SYSTEM_BASE: &str = "/run/ferroce";
/// Directory with one directory per logged-in user.
const SESSIONS: &str = "/run/user";
const TEMPORARY: &str = "/tmp";

/// Inputs of the choice of a directory. Tests supply their own.
#[derive(Debug)]
struct Environment {
    viewer: Viewer,
    netns: u64,
    override_dir: Option<OsString>,
    xdg_dir: Option<OsString>,
    system: PathBuf,
    sessions: PathBuf,
    temporary: PathBuf,
}

/// Returns the runtime directories for a ferroced of this user, the preferred one first.
pub fn own_dirs() -> Result<Vec<RuntimeDir>, Error> {
    Ok(Environment::here()?.own())
}

/// Returns the runtime directories of a ferroced that may serve this user: the user's own,
/// then the system-wide one.
pub fn runtime_dirs() -> Result<Vec<RuntimeDir>, Error> {
    Ok(Environment::here()?.all())
}

/// Creates the runtime directory for a ferroced of this user: the one with the state of an
/// earlier ferroced, else the first that can be created.
pub fn create_own_dir() -> Result<RuntimeDir, Error> {
    Environment::here()?.create()
}

/// Returns the inode number of this thread's network namespace.
pub fn netns_inode() -> Result<u64, Error> {
    let path = "/proc/thread-self/ns/net";
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.ino()),
        Err(error) => Err(Error::system(format!("cannot read {path}"), error)),
    }
}

impl Environment {
    fn here() -> Result<Environment, Error> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Ok(Environment {
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
            // ferroced changes its working directory later.
            let base = std::path::absolute(base).unwrap_or_else(|_| base.into());
            return vec![self.dir(base, Kind::Chosen)];
        }
        let mut dirs = Vec::new();
        if self.viewer.uid == 0 {
            dirs.push(self.dir(self.system.clone(), Kind::System));
        }
        // Root of a user namespace cannot write to /run, and uses a user's directories.
        let named = self.xdg_dir.iter().map(PathBuf::from);
        // A program without a login session finds a ferroced that was started in one.
        for session in named.chain(self.sessions()) {
            dirs.push(self.dir(session.join("ferroce"), Kind::Private));
        }
        for base in temporary::find(&self.temporary, self.viewer).unwrap_or_default() {
            dirs.push(self.dir(base, Kind::Temporary));
        }
        dirs.dedup();
        dirs
    }

    /// Returns the session directories of this user.
    fn sessions(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.sessions).into_iter().flatten().flatten();
        let ours = |path: &Path| {
            let metadata = fs::symlink_metadata(path);
            metadata.is_ok_and(|metadata| metadata.is_dir() && self.viewer.owns(path, &metadata))
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
        // Running programs watch the directory of the last ferroced.
        dirs.sort_by_key(|dir| !dir.has_state());
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
            let what = format!("cannot create a directory in {}", self.temporary.display());
            Error::system(what, error)
        };
        let base = temporary::create(&self.temporary, self.viewer).map_err(failed)?;
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

    /// Empty directories in place of `/run`, `/run/user` and `/tmp`.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Scratch {
            let path = temporary::make(&std::env::temp_dir(), "ferroce-path-").unwrap();
            for part in ["run", "user", "tmp"] {
                fs::create_dir(path.join(part)).unwrap();
            }
            Scratch(path)
        }

        /// Returns the environment of a user who is not root.
        fn environment(&self) -> Environment {
            let viewer = Viewer {
                root: u32::MAX,
                ..Viewer::here()
            };
            Environment {
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
    fn user_searches_sessions_then_the_system_wide_directory() {
        let scratch = Scratch::new();
        let mut user = scratch.environment();
        user.viewer.uid = user.viewer.uid.max(1);
        assert_eq!(scratch.shown(&user.all()), ["run/ferroce/77"]);
        user.xdg_dir = Some("/x".into());
        let both = ["/x/ferroce/77", "run/ferroce/77"];
        assert_eq!(scratch.shown(&user.all()), both);
        assert_eq!(scratch.shown(&user.own()), both[..1]);
    }

    #[test]
    fn root_uses_the_system_wide_directory() {
        let scratch = Scratch::new();
        let mut root = scratch.environment();
        root.viewer.uid = 0;
        assert_eq!(scratch.shown(&root.all())[0], "run/ferroce/77");
        assert_eq!(root.all(), root.own());
    }

    #[test]
    fn variable_replaces_all_directories() {
        let scratch = Scratch::new();
        let mut any = scratch.environment();
        any.override_dir = Some("/elsewhere".into());
        assert_eq!(scratch.shown(&any.all()), ["/elsewhere/77"]);
    }

    #[test]
    fn session_directory_is_found_by_its_owner() {
        let scratch = Scratch::new();
        let user = scratch.environment();
        let session = scratch.0.join("user/4242");
        fs::create_dir(&session).unwrap();
        let own = user.own();
        assert!(
            own.iter()
                .any(|dir| dir.path() == session.join("ferroce/77"))
        );
        let mut other = scratch.environment();
        other.viewer.uid += 1;
        assert_eq!(scratch.shown(&other.own()), [] as [&str; 0]);
    }

    #[test]
    fn temporary_directory_is_created_without_a_session_and_found_again() {
        let scratch = Scratch::new();
        let user = scratch.environment();
        // Without the parent nothing can be created, as for an ordinary user.
        fs::remove_dir(scratch.0.join("run")).unwrap();
        let made = user.create().unwrap();
        assert!(made.path().starts_with(scratch.0.join("tmp")));
        assert!(user.own().contains(&made));
        assert_eq!(user.create().unwrap(), made);
        let mode = fs::metadata(made.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn directories_writable_by_others_are_skipped() {
        let scratch = Scratch::new();
        let user = scratch.environment();
        // All users may write to these.
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
    fn next_ferroced_uses_the_directory_with_the_state() {
        let scratch = Scratch::new();
        let mut user = scratch.environment();
        fs::remove_dir(scratch.0.join("run")).unwrap();
        let made = user.create().unwrap();
        fs::write(made.path().join(STATE_FILE), "").unwrap();
        user.xdg_dir = Some(scratch.0.join("user").into());
        assert_eq!(user.create().unwrap(), made);
    }

    #[test]
    fn error_names_all_directories_that_were_tried() {
        let scratch = Scratch::new();
        let mut user = scratch.environment();
        fs::remove_dir(scratch.0.join("run")).unwrap();
        fs::remove_dir(scratch.0.join("tmp")).unwrap();
        user.xdg_dir = Some("/proc".into());
        let error = user.create().unwrap_err().to_string();
        assert!(error.contains("cannot create /proc/ferroce: "), "{error}");
        assert!(error.contains("tmp: "), "{error}");
        assert!(error.contains("FERROCE_RUNTIME_DIR"), "{error}");
    }
}
