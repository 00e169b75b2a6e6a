//! The two ends of a connection with several requests in flight.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags};

use crate::connection::{Connection, broken, receive};
use crate::error::Error;
use crate::packet;
use crate::protocol::{Reply, RequestNumber};

/// A reply with the number of its request, or an event, and descriptors.
pub(crate) type Received = (Option<RequestNumber>, Reply, Vec<OwnedFd>);

/// The end of a connection that sends requests; see [`Connection::split`].
#[derive(Debug, Clone)]
pub(crate) struct RequestSender(pub(crate) Arc<Connection>);

impl RequestSender {
    /// Sends an encoded request without waiting. False if ferroced has not read earlier
    /// requests and the socket is full.
    pub(crate) fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<bool, Error> {
        match packet::send(self.0.as_fd(), bytes, fds, SendFlags::DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            sent => sent.map(|()| true).map_err(broken),
        }
    }

    /// Returns the error for a request that was not answered within
    /// [`ANSWER_TIMEOUT`](crate::ANSWER_TIMEOUT).
    pub(crate) fn timeout_error(&self) -> Error {
        self.0.timeout_error()
    }
}

/// The end of a connection that receives replies and events; see [`Connection::split`].
#[derive(Debug)]
pub(crate) struct ReplyReceiver {
    pub(crate) connection: Arc<Connection>,
    pub(crate) buffer: Vec<u8>,
}

impl ReplyReceiver {
    /// Returns the next reply or event, if one has arrived; never waits. Descriptors may be
    /// missing if this process has too many files open: the other calls go on.
    pub(crate) fn try_receive(&mut self) -> Result<Option<Received>, Error> {
        let socket = self.connection.as_fd();
        let received = receive(socket, &mut self.buffer, RecvFlags::DONTWAIT)?;
        Ok(received.map(|(received, _)| received))
    }

    /// Waits up to `timeout` for the next reply or event: None if none arrives.
    pub(crate) fn receive_within(&mut self, timeout: Duration) -> Result<Option<Received>, Error> {
        match self.connection.wait_readable(timeout) {
            Err(Error::Timeout { .. }) => return Ok(None),
            waited => waited?,
        }
        self.try_receive()
    }

    /// Returns the runtime directory of ferroced.
    pub(crate) fn dir(&self) -> &Path {
        self.connection.dir()
    }
}

impl AsFd for ReplyReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}
