//! Errors of rdma_cm calls.

use std::borrow::Cow;

use ferroce_device::transport::VerbsError;

/// The error of an rdma_cm call: a kind for programs and a reason for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Error {
    kind: ErrorKind,
    reason: Cow<'static, str>,
}

/// The kind of an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call does not fit the state of the id, or an argument is wrong.
    Invalid,
    /// No link has the address, or the link is gone.
    NoDevice,
    /// The address is not in the GID table of the link.
    AddressNotAvailable,
    /// The event channel of the id was closed.
    ChannelClosed,
    /// The connection is established already.
    Connected,
    /// ferroced, or the peer, has not answered in time.
    TimedOut,
    /// ferroced ended during the call: the call may or may not have had an effect.
    ConnectionReset,
    /// ferroced sent a reply of the wrong kind.
    Protocol,
    /// The kernel's rdma_cm does not support it either.
    NotSupported,
    /// Another errno, of ferroced or of the kernel.
    Os(i32),
}

/// `ENOTSUPP`: the kernel's own errno, which C has no name for.
const ENOTSUPP: i32 = 524;

impl Error {
    /// Returns an error of this kind.
    pub fn new(kind: ErrorKind, reason: impl Into<Cow<'static, str>>) -> Error {
        Error {
            kind,
            reason: reason.into(),
        }
    }

    /// Returns an [`ErrorKind::Invalid`] error.
    pub(crate) fn invalid(reason: impl Into<Cow<'static, str>>) -> Error {
        Error::new(ErrorKind::Invalid, reason)
    }

    /// Returns the error of a system call.
    pub(crate) fn system(what: &str, error: impl Into<std::io::Error>) -> Error {
        let error = error.into();
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Error::new(ErrorKind::from_errno(errno), format!("{what}: {error}"))
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the errno that librdmacm reports for the error.
    pub fn errno(&self) -> i32 {
        match self.kind {
            ErrorKind::Invalid => libc::EINVAL,
            ErrorKind::NoDevice => libc::ENODEV,
            ErrorKind::AddressNotAvailable => libc::EADDRNOTAVAIL,
            ErrorKind::ChannelClosed => libc::EBADF,
            ErrorKind::Connected => libc::EISCONN,
            ErrorKind::TimedOut => libc::ETIMEDOUT,
            ErrorKind::ConnectionReset => libc::ECONNRESET,
            ErrorKind::Protocol => libc::EPROTO,
            ErrorKind::NotSupported => ENOTSUPP,
            ErrorKind::Os(errno) => errno,
        }
    }
}

impl ErrorKind {
    fn from_errno(errno: i32) -> ErrorKind {
        match errno {
            libc::EINVAL => ErrorKind::Invalid,
            libc::ENODEV => ErrorKind::NoDevice,
            libc::EADDRNOTAVAIL => ErrorKind::AddressNotAvailable,
            libc::EBADF => ErrorKind::ChannelClosed,
            libc::EISCONN => ErrorKind::Connected,
            libc::ETIMEDOUT => ErrorKind::TimedOut,
            libc::ECONNRESET => ErrorKind::ConnectionReset,
            libc::EPROTO => ErrorKind::Protocol,
            ENOTSUPP => ErrorKind::NotSupported,
            other => ErrorKind::Os(other),
        }
    }
}

impl From<&ferroce_control::Error> for Error {
    fn from(error: &ferroce_control::Error) -> Error {
        Error::new(ErrorKind::from_errno(error.errno()), error.to_string())
    }
}

impl From<ferroce_control::Error> for Error {
    fn from(error: ferroce_control::Error) -> Error {
        Error::from(&error)
    }
}

impl From<VerbsError> for Error {
    fn from(error: VerbsError) -> Error {
        let kind = match error {
            VerbsError::Invalid(_) => ErrorKind::Invalid,
            VerbsError::NoMemory(_) => ErrorKind::Os(libc::ENOMEM),
            VerbsError::Busy(_) => ErrorKind::Os(libc::EBUSY),
            VerbsError::NotSupported(_) => ErrorKind::Os(libc::EOPNOTSUPP),
            VerbsError::NotConnected(_) => ErrorKind::Os(libc::ENOTCONN),
            VerbsError::NotFound(_) => ErrorKind::Os(libc::ENOENT),
        };
        Error::new(kind, error.to_string())
    }
}

impl From<ferroce_device::Error> for Error {
    fn from(error: ferroce_device::Error) -> Error {
        match error {
            ferroce_device::Error::Verbs(error) => error.into(),
            ferroce_device::Error::Control(error) => error.into(),
            ferroce_device::Error::System { what, error } => Error::system(what, error),
        }
    }
}

pub(crate) fn no_device() -> Error {
    Error::invalid("the id has no device: its address is not resolved")
}

pub(crate) fn no_port() -> Error {
    Error::invalid("the id is not bound to a port")
}

pub(crate) fn no_address() -> Error {
    Error::invalid("the id has no addresses: they are not resolved")
}

pub(crate) fn no_destination() -> Error {
    Error::invalid("the id has no destination: it is not resolved")
}

pub(crate) fn no_connection() -> Error {
    Error::invalid("the id has no connection")
}

pub(crate) fn private_data_too_long() -> Error {
    Error::invalid("the private data is longer than the message has room for")
}

pub(crate) fn unexpected_answer() -> Error {
    Error::new(
        ErrorKind::Protocol,
        "ferroced sent an answer of the wrong kind",
    )
}
