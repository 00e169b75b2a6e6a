//! Errors of devices as errnos.

use ferroce_device::Error;
use ferroce_device::transport::VerbsError;

use crate::Errno;

/// Returns the errno of an error of the engine, and logs the error.
pub(crate) fn of_verbs(error: VerbsError) -> Errno {
    tracing::debug!("an rsocket's verbs call failed: {error}");
    match error {
        VerbsError::Invalid(_) => Errno::INVAL,
        VerbsError::NoMemory(_) => Errno::NOMEM,
        VerbsError::Busy(_) => Errno::BUSY,
        VerbsError::NotSupported(_) => Errno::OPNOTSUPP,
        VerbsError::NotConnected(_) => Errno::NOTCONN,
        VerbsError::NotFound(_) => Errno::NOENT,
    }
}

/// Returns the errno of an error of a device, and logs the error.
pub(crate) fn of_device(error: Error) -> Errno {
    let number = match error {
        Error::Verbs(error) => return of_verbs(error),
        Error::System { ref error, .. } => error.raw_os_error(),
        Error::Control(ref error) => Some(error.errno()),
    };
    tracing::debug!("an rsocket's device call failed: {error}");
    number.map_or(Errno::IO, Errno::from_raw_os_error)
}
