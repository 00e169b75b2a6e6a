//! Calls that cannot be served, and messages that change nothing.

use crate::{DecodeError, State};

/// Why a call was refused. Nothing has changed.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// No such connection, request or listener.
    #[error("no such connection")]
    Unknown,
    /// Not what can be done in this state.
    #[error("not possible in state {0:?}")]
    State(State),
    /// The service and address already have a listener.
    #[error("the service already has a listener at this address")]
    InUse,
}

/// Why a message changed nothing.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Ignored {
    /// It is not a message.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    /// It names no connection of ours.
    #[error("no connection has these IDs")]
    UnknownId,
    /// It comes from somebody else than the peer.
    #[error("not from the peer's address to ours")]
    Address,
    /// It names another queue pair than ours.
    #[error("names another queue pair")]
    Qpn,
    /// There is nothing it could mean now.
    #[error("means nothing in this state")]
    State,
    /// We have it already; where there was an answer, it was sent again.
    #[error("a duplicate")]
    Duplicate,
    /// It names nobody we know, but whoever it names may come back: see
    /// [`Cm::hold_refusals`](crate::Cm::hold_refusals).
    #[error("nobody is back yet whom it could be for")]
    NotYet,
    /// The listener has as many unanswered requests as it wants.
    #[error("the backlog of the listener is full")]
    Backlog,
}
