//! Errors of verbs calls, and causes of failed work requests.
//!
//! Both are data and texts for people. The causes include those of RoCE, which name PSNs, and
//! of iWARP, whose connections break.

use core::fmt;

use thiserror::Error;

use crate::memory::Fault;
use crate::region::AccessError;
use crate::verbs::WcStatus;

/// The error of a verbs call. A call that returns an error has changed nothing.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum VerbsError {
    /// A value is out of range or not possible in the object's state (EINVAL).
    #[error("invalid argument: {0}")]
    Invalid(String),
    /// A queue is full or a table has no room (ENOMEM).
    #[error("no room: {0}")]
    NoMemory(String),
    /// Another object still uses this one (EBUSY).
    #[error("busy: {0}")]
    Busy(String),
    /// The adapter does not support the call (EOPNOTSUPP).
    #[error("not supported: {0}")]
    NotSupported(String),
    /// The queue pair is not connected (ENOTCONN).
    #[error("not connected: {0}")]
    NotConnected(String),
    /// The object does not exist (ENOENT).
    #[error("not found: {0}")]
    NotFound(String),
}

impl VerbsError {
    /// Returns [`VerbsError::Invalid`] with this explanation.
    pub fn invalid(why: impl Into<String>) -> VerbsError {
        VerbsError::Invalid(why.into())
    }
}

/// The cause of a failed work request, in words that a person can act on.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Reason {
    /// A key does not allow the access.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The memory behind a valid key is not accessible.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The peer answered with a NAK.
    #[error("the peer answered {nak} to {request}")]
    Refused {
        /// Name of the NAK.
        nak: &'static str,
        /// Description of the request.
        request: String,
    },
    /// The peer did not respond.
    #[error("no answer to PSN {psn:#08x} after {retries} retries, {timeout_us} us each")]
    NoAnswer {
        /// Oldest unacknowledged PSN.
        psn: u32,
        /// Number of retries.
        retries: u8,
        /// ACK timeout of each retry.
        timeout_us: u64,
    },
    /// All retries of a request were lost.
    #[error("gave up after {retries} retries in a row without progress at PSN {psn:#08x}")]
    NoProgress {
        /// Oldest unacknowledged PSN.
        psn: u32,
        /// Number of retries.
        retries: u8,
    },
    /// The peer answered with RNR NAKs: no receive was posted.
    #[error("the peer had no receive posted, {retries} times in a row")]
    ReceiverNotReady {
        /// Number of retries.
        retries: u8,
    },
    /// The peer sent a response that does not match the request.
    #[error("response does not fit: {0}")]
    BadResponse(String),
    /// A request breaks the protocol.
    #[error("invalid request: {0}")]
    InvalidRequest(String),
    /// The message is longer than the receive buffer.
    #[error("message of {message} bytes or more for a receive buffer of {buffer}")]
    ReceiveTooShort {
        /// Bytes of the message up to this packet.
        message: u64,
        /// Bytes of the receive.
        buffer: u64,
    },
    /// The message is longer than a datagram.
    #[error("datagram of {length} bytes exceeds the port MTU {mtu}")]
    DatagramTooLong {
        /// Bytes of the message.
        length: u64,
        /// MTU of the port.
        mtu: u32,
    },
    /// The peer ended the stream with a TERMINATE (iWARP).
    #[error("the peer terminated the connection: {0}")]
    Terminated(String),
    /// The connection broke (iWARP).
    #[error("connection lost: {0}")]
    StreamLost(&'static str),
    /// A memory window cannot be bound.
    #[error("bind: {0}")]
    Bind(AccessError),
    /// The completion queue is full.
    #[error("completion queue overflow")]
    CqOverflow,
    /// A fault in force failed the queue pair.
    #[error("a fault that is in force moved the queue pair to the error state")]
    Provoked,
}

/// The failure of a work request or a queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Number of the queue pair.
    pub qpn: u32,
    /// Id of the work request, if the failure belongs to one.
    pub wr_id: Option<u64>,
    /// Status of the completion.
    pub status: WcStatus,
    /// Cause of the failure.
    pub reason: Reason,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qp {:#08x}", self.qpn)?;
        if let Some(wr_id) = self.wr_id {
            write!(f, " wr {wr_id:#x}")?;
        }
        write!(f, ": {}: {}", self.status, self.reason)
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WcStatus::Success => "success",
            WcStatus::LocalLength => "local length error",
            WcStatus::LocalQpOperation => "local QP operation error",
            WcStatus::LocalProtection => "local protection error",
            WcStatus::WrFlush => "work request flushed",
            WcStatus::MwBind => "memory window bind error",
            WcStatus::BadResponse => "bad response error",
            WcStatus::LocalAccess => "local access error",
            WcStatus::RemoteInvalidRequest => "remote invalid request error",
            WcStatus::RemoteAccess => "remote access error",
            WcStatus::RemoteOperation => "remote operation error",
            WcStatus::RetryExceeded => "transport retry counter exceeded",
            WcStatus::RnrRetryExceeded => "RNR retry counter exceeded",
            WcStatus::Fatal => "fatal error",
            WcStatus::General => "general error",
        })
    }
}
