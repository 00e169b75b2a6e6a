//! The lock on the runtime directory, and the sockets in it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ferroce_control::path::{
    self, LOG_FILE, NEW_SUFFIX, PID_FILE, REFRESH, SOCKET, STATE_FILE, SYSFS_DIR, create_own_dir,
};
use ferroce_control::{sockopt, unix};
use rustix::fs::FlockOperation;
use rustix::net::SocketFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::access::Access;
use crate::state::State;
use crate::sysfs::tree::Tree;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// The lock on a runtime directory: an exclusive lock on its PID file.
#[derive(Debug)]
pub(crate) struct Lock {
    dir: PathBuf,
    _file: File,
}

/// Reason why the lock cannot be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    /// Another ferroced has the lock.
    #[error("ferroced runs already{}: {}", pid_note(.0), .0.display())]
    Taken(PathBuf),
    /// A ferroced that this process cannot signal has the lock.
    #[error(
        "ferroced runs already in another PID namespace, so this process cannot end it; \
         stop it there: {}", .0.display()
    )]
    OutOfReach(PathBuf),
    #[error(transparent)]
    Path(#[from] ferroce_control::Error),
    #[error("{}: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
}

impl Lock {
    /// Locks the runtime directory of this user.
    pub(crate) fn take() -> Result<Lock, LockError> {
        loop {
            if let Some(lock) = Lock::take_in(create_own_dir()?.path())? {
                return Ok(lock);
            }
        }
    }

    /// Ends the ferroced that has the lock; its state file is complete at any time. The PID in
    /// the PID file is not used: in another PID namespace it is that of another process.
    pub(crate) fn end_holder(dir: &Path) -> Result<(), LockError> {
        let Ok(peer) = unix::connect(&dir.join(SOCKET)).and_then(sockopt::peer) else {
            // That ferroced does not listen yet, or no longer.
            return Ok(());
        };
        match Pid::from_raw(peer.pid.cast_signed()) {
            Some(pid) => {
                let _it_may_be_gone = kill_process(pid, Signal::TERM);
                Ok(())
            }
            None => Err(LockError::OutOfReach(dir.into())),
        }
    }

    /// Locks a directory. Returns `None` if another ferroced is removing it.
    fn take_in(dir: &Path) -> Result<Option<Lock>, LockError> {
        let path = dir.join(PID_FILE);
        let failed = |error| LockError::File {
            path: path.clone(),
            error,
        };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o644)
            .open(&path);
        let mut file = match file {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(failed)?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(LockError::Taken(dir.into())),
            Err(error) => return Err(failed(error.into())),
        }
        // A lock on a deleted file does not exclude another ferroced.
        if file.metadata().map_err(failed)?.nlink() == 0 {
            return Ok(None);
        }
        // The PID is for users only: on a full disk ferroced continues without it.
        let text = format!("{}\n", std::process::id());
        if let Err(error) = file
            .write_all(text.as_bytes())
            .and_then(|()| file.set_len(text.len() as u64))
        {
            tracing::warn!(path = %path.display(), %error, "cannot write the PID file");
        }
        Ok(Some(Lock {
            dir: dir.into(),
            _file: file,
        }))
    }

    pub(crate) fn state_file(&self) -> PathBuf {
        self.dir.join(STATE_FILE)
    }

    pub(crate) fn sysfs_dir(&self) -> PathBuf {
        self.dir.join(SYSFS_DIR)
    }

    pub(crate) fn log_file(&self) -> PathBuf {
        self.dir.join(LOG_FILE)
    }

    /// Opens the control socket. Programs can connect as soon as it exists.
    pub(crate) fn listen(&self, access: &Access) -> io::Result<Listener> {
        self.listen_at(SOCKET, access)
    }

    /// Opens the socket that refreshes the mirror of sysfs.
    pub(crate) fn listen_for_readers(&self, access: &Access) -> io::Result<Listener> {
        self.listen_at(REFRESH, access)
    }

    fn listen_at(&self, name: &str, access: &Access) -> io::Result<Listener> {
        let path = self.dir.join(name);
        let new = self.dir.join(format!("{name}{NEW_SUFFIX}"));
        remove(&new)?;
        let socket = unix::socket(SocketFlags::NONBLOCK)?;
        unix::bind(&socket, &new)?;
        fs::set_permissions(&new, Permissions::from_mode(0o600))?;
        if let Some(group) = access.group {
            match std::os::unix::fs::chown(&new, None, Some(group)) {
                Ok(()) => fs::set_permissions(&new, Permissions::from_mode(0o660))?,
                Err(error) if access.group_is_chosen => return Err(error),
                // Root of a container without CAP_CHOWN cannot serve the default group.
                Err(error) => {
                    tracing::warn!(group, %error, "cannot give the socket to the group; its members are not served")
                }
            }
        }
        rustix::net::listen(&socket, BACKLOG)?;
        // Replaces the socket of a killed ferroced.
        fs::rename(&new, &path)?;
        Ok(Listener { socket, path })
    }

    /// Removes all files, because no program will resume.
    pub(crate) fn clear(self) {
        let _ = fs::remove_file(self.state_file());
        Tree::clear(&self.sysfs_dir());
        let log = self.log_file();
        if fs::metadata(&log).is_ok_and(|metadata| metadata.len() == 0) {
            let _ = fs::remove_file(log);
        }
        let _ = fs::remove_file(State::spare(&self.state_file()));
        let _ = fs::remove_file(self.dir.join(PID_FILE));
        // Each fails if the directory is not empty.
        if fs::remove_dir(&self.dir).is_ok() {
            let _ = self.dir.parent().map(fs::remove_dir);
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Accepts a connection, without waiting.
    pub(crate) fn accept(&self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(rustix::net::accept_with(&self.socket, flags)?)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn pid_note(dir: &Path) -> String {
    match fs::read_to_string(dir.join(path::PID_FILE)) {
        Ok(text) if !text.trim().is_empty() => format!(" (process {})", text.trim()),
        _ => String::new(),
    }
}
