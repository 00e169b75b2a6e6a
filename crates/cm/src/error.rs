//! Errors of calls, and the reasons why a message changes no state.

use crate::{DecodeError, State};

/// The reason why a call failed. A failed call changes nothing.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// No such connection, request or listener.
    #[error("no such connection")]
    Unknown,
    /// The connection is in a state that does not allow the call.
    #[error("not possible in state {0:?}")]
    State(State),
    /// The service already has a listener at this address, or the ID is in use.
    #[error("the service already has a listener at this address")]
    InUse,
}

/// The reason why a message changed no state.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Ignored {
    /// The bytes are not a CM message.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    /// No connection has the IDs of the message.
    #[error("no connection has these IDs")]
    UnknownId,
    /// The addresses of the message are not those of the connection.
    #[error("the addresses are not those of the connection")]
    Address,
    /// The message names a queue pair other than that of the connection.
    #[error("the queue pair is not that of the connection")]
    Qpn,
    /// The message is not expected in the state of the connection.
    #[error("not expected in this state")]
    State,
    /// The message is a duplicate. If it had an answer, the answer was sent again.
    #[error("a duplicate")]
    Duplicate,
    /// The listener or connection does not exist, but a program may still restore it:
    /// see [`Cm::hold_refusals`](crate::Cm::hold_refusals) and
    /// [`LISTENER_GAP`](crate::LISTENER_GAP).
    #[error("its listener or connection may come back")]
    NotYet,
    /// The backlog of the listener is full.
    #[error("the backlog of the listener is full")]
    Backlog,
}
