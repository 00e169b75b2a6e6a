//! Errors of device operations.

use ferroce_roce::VerbsError;

/// The cause of a failed device operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection to ferroced failed, or ferroced refused the request.
    #[error(transparent)]
    Control(#[from] ferroce_control::Error),
    /// The engine refused the operation.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A system call failed.
    #[error("{what}: {error}")]
    System {
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        error: std::io::Error,
    },
}

impl Error {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        move |error| Error::System { what, error }
    }
}
