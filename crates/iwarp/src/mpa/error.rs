//! Errors of connection setup, in words that a person can act on.

use core::time::Duration;

use thiserror::Error;

use super::frame::{FrameKind, MAX_PRIVATE_DATA};
use super::{MAX_READS, REPLY_TIMEOUT, REQUEST_TIMEOUT};
use crate::terminate::Code;

/// The defect of a received frame.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum FrameError {
    /// The first 16 bytes are not those of the expected frame.
    #[error("the peer's first bytes are no MPA {expected:?}: it does not speak iWARP")]
    Key {
        /// The frame that should have come.
        expected: FrameKind,
    },
    /// An unknown revision of MPA.
    #[error("MPA revision {0}; revisions up to 2 are known")]
    Revision(u8),
    /// The private data is too long.
    #[error("{0} bytes of private data; at most {MAX_PRIVATE_DATA} are possible")]
    TooLong(usize),
    /// The frame has flag S and no room for the enhanced words.
    #[error("an enhanced MPA frame with {0} bytes; its IRD and ORD need 4")]
    NoEnhancedWords(usize),
    /// Bytes follow the frame before the peer may send any.
    #[error("{0} bytes follow the MPA frame, before the peer may send")]
    Extra(usize),
    /// The frame is not complete.
    #[error("the MPA frame ends after {0} bytes")]
    Cut(usize),
}

/// The reason why a connection was not set up.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SetupError {
    /// The peer sent a frame that is not valid.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The peer wants markers, which neither siw nor this crate sends.
    #[error("the peer asks for MPA markers, which are not supported")]
    Markers,
    /// The Reply to an enhanced Request is not enhanced.
    #[error("the peer answered with MPA revision {revision} without IRD and ORD; offer revision 1")]
    NotEnhanced {
        /// Revision of the Reply.
        revision: u8,
    },
    /// The peer wants to have more Reads outstanding than this end can hold.
    #[error("the peer wants {asked} outstanding reads, at most {MAX_READS} are possible")]
    InsufficientIrd {
        /// The peer's ORD.
        asked: u16,
    },
    /// The peer chose no RTR frame that this end offered.
    #[error("the peer accepts none of the offered RTR frames")]
    NoMatchingRtr,
    /// The peer closed the connection.
    #[error("the peer closed the connection during MPA setup")]
    PeerClosed,
    /// The peer sent no frame in time.
    #[error("the peer sent no MPA {0:?} within {secs} s", secs = Self::patience(*.0).as_secs())]
    Timeout(FrameKind),
}

impl SetupError {
    /// Returns the error code of the TERMINATE that the initiator sends before it closes the
    /// connection. A responder sends none: the initiator expects a Reply.
    pub fn code(&self) -> Option<Code> {
        match self {
            SetupError::Frame(_) | SetupError::NotEnhanced { .. } => Some(Code::MPA_INVALID_FRAME),
            SetupError::InsufficientIrd { .. } => Some(Code::MPA_INSUFFICIENT_IRD),
            SetupError::NoMatchingRtr => Some(Code::MPA_NO_MATCHING_RTR),
            SetupError::Markers | SetupError::PeerClosed | SetupError::Timeout(_) => None,
        }
    }

    fn patience(kind: FrameKind) -> Duration {
        match kind {
            FrameKind::Request => REQUEST_TIMEOUT,
            FrameKind::Reply => REPLY_TIMEOUT,
        }
    }
}

/// An invalid argument of the program.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum ArgumentError {
    /// The private data does not fit into the frame.
    #[error("{length} bytes of private data; at most {most} are possible")]
    PrivateData {
        /// Bytes given.
        length: usize,
        /// Bytes that fit.
        most: usize,
    },
    /// An IRD or ORD is too large.
    #[error("{name} is {value}; at most {MAX_READS} is possible")]
    Depth {
        /// Name of the argument.
        name: &'static str,
        /// Value given.
        value: u16,
    },
    /// The answer comes without a Request, or is the second one.
    #[error("no MPA Request waits for an answer")]
    NoRequest,
}
