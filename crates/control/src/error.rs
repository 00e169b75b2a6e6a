//! What can go wrong between a program and ferroced, in words for people and as
//! an errno for C.

use std::io;
use std::path::PathBuf;

use crate::counters::PageError;
use crate::{ANSWER_TIMEOUT, PROTOCOL};

/// A control operation that failed. Messages are whole: none has a source that would be
/// told again behind it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens.
    #[error(
        "no ferroced runs in this network namespace for this user; \
         `ferroce link add rxe0 type rxe netdev lo` starts one and adds a link"
    )]
    NoDaemon,

    /// There is a control socket, and its permissions keep us out.
    #[error(
        "{}: permission denied; the system-wide ferroced serves root and the members \
         of its group (by default `ferroce`): join it, or run a ferroced of your own in \
         another network namespace",
        .0.display()
    )]
    NotPermitted(PathBuf),

    /// ferroced understood, and said no.
    #[error("{message}")]
    Refused {
        /// The reason as an errno.
        errno: i32,
        /// The reason in words, with the remedy.
        message: String,
    },

    /// The two ends were built from different versions.
    #[error(
        "ferroced speaks version {theirs} of the control protocol and this program \
         version {PROTOCOL}: install both from one release, and restart ferroced \
         (running programs survive that)"
    )]
    Version {
        /// What the daemon speaks.
        theirs: u32,
    },

    /// The connection is gone; [`crate::resume`] when ferroced is back.
    #[error("the connection to ferroced is closed")]
    Closed,

    /// ferroced runs, and has not answered in time.
    #[error("{}", silence(*.pid, *.stopped))]
    Timeout {
        /// Its process; 0 if it is in a pid namespace that we cannot see into.
        pid: u32,
        /// Whether a signal or a debugger has stopped it.
        stopped: bool,
    },

    /// An answer that does not fit the question.
    #[error("ferroced answered something unexpected: {0}")]
    Unexpected(String),

    /// Our descriptors did not all fit into this process.
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

    /// Someone else could have put a socket there.
    #[error("{}: {reason}; remove it, or set FERROCE_RUNTIME_DIR", .path.display())]
    UnsafeDirectory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// No directory can be had for ferroced's socket and files.
    #[error(
        "there is no directory for ferroced's files ({0}); set FERROCE_RUNTIME_DIR to a \
         directory of yours"
    )]
    NoDirectory(String),

    /// ferroced could not be started.
    #[error("cannot start ferroced: {0}")]
    Start(String),

    /// The system refused something.
    #[error("{what}: {error}")]
    System {
        /// What we were about to do.
        what: String,
        /// The system's reason.
        error: io::Error,
    },
}

impl Error {
    /// A system error with what it was about.
    pub fn system(what: impl Into<String>, error: impl Into<io::Error>) -> Error {
        Error::System {
            what: what.into(),
            error: error.into(),
        }
    }

    /// The error for a ferroced that does not answer.
    pub(crate) fn silence(pid: u32) -> Error {
        Error::Timeout {
            pid,
            stopped: is_stopped(pid),
        }
    }

    /// The errno that a C interface would report.
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

/// Whether a process is stopped, by a signal or by a debugger.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may have anything in it.
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| state.starts_with(['T', 't']))
}
