//! What a device refuses, and why.

use ferroce_transport::VerbsError;

/// A device operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something between us and ferroced.
    #[error(transparent)]
    Control(#[from] ferroce_control::Error),
    /// The engine says no.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The kernel says no.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        error: std::io::Error,
    },
}

impl Error {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        move |error| Error::System { what, error }
    }
}
