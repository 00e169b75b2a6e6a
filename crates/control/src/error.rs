//! Errors of control operations, each with a message for users and an errno for C.

use std::io;
use std::path::PathBuf;

use crate::counters::PageError;
use crate::{ANSWER_TIMEOUT, PROTOCOL};

/// Error of a control operation. The messages are complete: no error has a `source`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No ferroced listens.
    #[error(
        "no ferroced runs in this network namespace for this user; \
         `ferroce link add rxe0 type rxe netdev lo` starts one and adds a link"
    )]
    NoDaemon,

    /// The permissions of the control socket deny access.
    #[error(
        "{}: permission denied; the system-wide ferroced serves root and the members \
         of its group (by default `ferroce`): join it, or run a ferroced of your own in \
         another network namespace",
        .0.display()
    )]
    NotPermitted(PathBuf),

    /// ferroced refused the request.
    #[error("{message}")]
    Refused {
        /// The reason as an errno.
        errno: i32,
        /// The reason, with the remedy.
        message: String,
    },

    /// The program and ferroced are of different versions.
    #[error(
        "ferroced speaks version {theirs} of the control protocol and this program \
         version {PROTOCOL}: install both from one release, and restart ferroced \
         (running programs survive that)"
    )]
    Version {
        /// The version of ferroced.
        theirs: u32,
    },

    /// The connection is closed; call [`crate::resume`] when ferroced is back.
    #[error("the connection to ferroced is closed")]
    Closed,

    /// ferroced runs, but has not answered in time.
    #[error("{}", silence(*.pid, *.stopped))]
    Timeout {
        /// Its PID; 0 if it is in a PID namespace that is not visible here.
        pid: u32,
        /// True if a signal or a debugger has stopped it.
        stopped: bool,
    },

    /// A reply that does not match the request.
    #[error("ferroced sent an unexpected reply: {0}")]
    Unexpected(String),

    /// Some of the descriptors that ferroced sent were lost.
    #[error(
        "descriptors from ferroced were lost: this process has too many files open \
         (`ulimit -n` raises the limit)"
    )]
    DescriptorsLost,

    /// ferroced sent a page of counters that this program cannot use.
    #[error("the counter page of slot {slot} cannot be used: {error}")]
    CounterPage {
        /// The slot.
        slot: u8,
        /// The reason.
        error: PageError,
    },

    /// Another user could have put a socket into the directory.
    #[error("{}: {reason}; remove it, or set FERROCE_RUNTIME_DIR", .path.display())]
    UnsafeDirectory {
        /// The directory.
        path: PathBuf,
        /// The problem with it.
        reason: &'static str,
    },

    /// No directory for ferroced's socket and files can be created.
    #[error(
        "there is no directory for ferroced's files ({0}); set FERROCE_RUNTIME_DIR to a \
         directory of yours"
    )]
    NoDirectory(String),

    /// ferroced could not be started.
    #[error("cannot start ferroced: {0}")]
    Start(String),

    /// A system call failed.
    #[error("{what}: {error}")]
    System {
        /// The failed operation.
        what: String,
        /// The system's error.
        error: io::Error,
    },
}

impl Error {
    /// Returns a system error of the operation `what`.
    pub fn system(what: impl Into<String>, error: impl Into<io::Error>) -> Error {
        Error::System {
            what: what.into(),
            error: error.into(),
        }
    }

    /// Returns the error for a ferroced that does not answer.
    pub(crate) fn silence(pid: u32) -> Error {
        Error::Timeout {
            pid,
            stopped: is_stopped(pid),
        }
    }

    /// Returns the same error once more, for another thread that waited for the result. Kinds
    /// that callers treat alike become [`Error::Refused`].
    pub(crate) fn again(&self) -> Error {
        match *self {
            Error::NoDaemon => Error::NoDaemon,
            Error::Closed => Error::Closed,
            Error::DescriptorsLost => Error::DescriptorsLost,
            Error::Timeout { pid, stopped } => Error::Timeout { pid, stopped },
            _ => Error::Refused {
                errno: self.errno(),
                message: self.to_string(),
            },
        }
    }

    /// Returns the errno for a C interface.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NoDaemon => libc::ENODEV,
            Error::NotPermitted(_) | Error::UnsafeDirectory { .. } | Error::NoDirectory(_) => {
                libc::EACCES
            }
            Error::Refused { errno, .. } => *errno,
            Error::Version { .. } | Error::CounterPage { .. } => libc::EPROTONOSUPPORT,
            Error::Closed => libc::ECONNRESET,
            Error::Timeout { .. } => libc::ETIMEDOUT,
            Error::Unexpected(_) => libc::EPROTO,
            Error::DescriptorsLost => libc::EMFILE,
            Error::Start(_) => libc::ENODEV,
            Error::System { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

fn silence(pid: u32, stopped: bool) -> String {
    let seconds = ANSWER_TIMEOUT.as_secs();
    match (pid, stopped) {
        (0, _) => format!("ferroced does not answer within {seconds} s; is it stopped?"),
        (pid, true) => format!(
            "ferroced (pid {pid}) does not answer: it is stopped; `kill -CONT {pid}` continues it"
        ),
        (pid, false) => format!(
            "ferroced (pid {pid}) does not answer within {seconds} s; \
             is it stopped, or the machine overloaded?"
        ),
    }
}

/// Returns true if a signal or a debugger has stopped a process.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may contain any character, `)` included.
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| state.starts_with(['T', 't']))
}
