//! What can go wrong between a program and ferroced, in words for people and as
//! an errno for C.

use std::io;
use std::path::PathBuf;

use crate::PROTOCOL;

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

    /// ferroced is there and says nothing.
    #[error("ferroced did not answer within {0} s; is it stopped or overloaded?")]
    Timeout(u64),

    /// An answer that does not fit the question.
    #[error("ferroced answered something unexpected: {0}")]
    Unexpected(String),

    /// Our descriptors did not all fit into this process.
    #[error(
        "descriptors from ferroced were lost: this process has too many files open \
         (`ulimit -n` raises the limit)"
    )]
    DescriptorsLost,

    /// Someone else could have put a socket there.
    #[error("{}: {reason}; remove it, or set FERROCE_RUNTIME_DIR", .path.display())]
    UnsafeDirectory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },

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

    /// The errno that a C interface would report.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NoDaemon => libc::ENODEV,
            Error::NotPermitted(_) | Error::UnsafeDirectory { .. } => libc::EACCES,
            Error::Refused { errno, .. } => *errno,
            Error::Version { .. } => libc::EPROTONOSUPPORT,
            Error::Closed => libc::ECONNRESET,
            Error::Timeout(_) => libc::ETIMEDOUT,
            Error::Unexpected(_) => libc::EPROTO,
            Error::DescriptorsLost => libc::EMFILE,
            Error::Start(_) => libc::ENODEV,
            Error::System { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}
