//! Errors as data: what a verbs call refuses, and why a work request failed.

use core::fmt;

use thiserror::Error;

use crate::memory::Fault;
use crate::region::AccessError;
use crate::verbs::WcStatus;

/// Why a verbs call was refused. Nothing has changed when one is returned.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum VerbsError {
    /// A value is out of range or does not fit the object's state (EINVAL).
    #[error("invalid argument: {0}")]
    Invalid(String),
    /// A queue is full or a table has no room (ENOMEM).
    #[error("no room: {0}")]
    NoMemory(String),
    /// Something else still uses the object (EBUSY).
    #[error("busy: {0}")]
    Busy(String),
    /// The adapter does not do that (EOPNOTSUPP).
    #[error("not supported: {0}")]
    NotSupported(String),
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

/// Why a work request failed, in words a person can act on.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Reason {
    /// A key did not allow the access.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The memory behind a valid key is gone.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The peer refused the request.
    #[error("the peer answered {nak} to {request}")]
    Refused {
        /// The NAK, in words.
        nak: &'static str,
        /// The request, in words.
        request: String,
    },
    /// The peer did not answer.
    #[error("no answer to PSN {psn:#08x} after {retries} retries, {timeout_us} us each")]
    NoAnswer {
        /// The oldest PSN without an answer.
        psn: u32,
        /// How often it was sent again.
        retries: u8,
        /// How long each of them waited for an answer.
        timeout_us: u64,
    },
    /// The network kept losing packets of the same request.
    #[error("gave up after {retries} retries in a row without progress at PSN {psn:#08x}")]
    NoProgress {
        /// The oldest PSN without an answer.
        psn: u32,
        /// How often it was sent again.
        retries: u8,
    },
    /// The peer had no receive posted.
    #[error("the peer had no receive posted, {retries} times in a row")]
    ReceiverNotReady {
        /// How often it was tried.
        retries: u8,
    },
    /// The peer sent something that cannot be an answer to the request.
    #[error("response does not fit: {0}")]
    BadResponse(String),
    /// The peer sent a request that breaks the protocol.
    #[error("invalid request: {0}")]
    InvalidRequest(String),
    /// The message does not fit the receive buffer.
    #[error("message of {message} bytes or more for a receive buffer of {buffer}")]
    ReceiveTooShort {
        /// Bytes of the message so far.
        message: u64,
        /// Bytes posted.
        buffer: u64,
    },
    /// The message does not fit a datagram.
    #[error("datagram of {length} bytes exceeds the port MTU {mtu}")]
    DatagramTooLong {
        /// Bytes posted.
        length: u64,
        /// The port's MTU.
        mtu: u32,
    },
    /// A memory window could not be bound.
    #[error("bind: {0}")]
    Bind(AccessError),
    /// The completion queue had no room.
    #[error("completion queue overflow")]
    CqOverflow,
}

/// A failed work request or queue pair: which, how, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The queue pair.
    pub qpn: u32,
    /// The work request, if the failure belongs to one.
    pub wr_id: Option<u64>,
    /// The status of its completion.
    pub status: WcStatus,
    /// The reason.
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
