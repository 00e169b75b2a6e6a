//! What the engine has to tell that is not a completion.

use crate::error::Failure;

/// Something happened that the program, or a person, may want to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// An armed completion queue got what it was armed for.
    CqNotify {
        /// The queue's id.
        cq: u32,
    },
    /// `IBV_EVENT_CQ_ERR`: a completion was lost for want of room.
    CqError {
        /// The queue's id.
        cq: u32,
    },
    /// `IBV_EVENT_SRQ_LIMIT_REACHED`.
    SrqLimitReached {
        /// The queue's number.
        srq: u32,
    },
    /// An event of a queue pair.
    Qp {
        /// Its number.
        qpn: u32,
        /// The event.
        kind: QpEvent,
    },
    /// A work request failed, and why: for logs, not part of verbs.
    Failure(Failure),
}

/// Asynchronous events of queue pairs, numbered as in `ibv_event_type`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum QpEvent {
    /// The queue pair failed for a reason no completion tells.
    Fatal = 1,
    /// The peer sent a request that breaks the protocol.
    RequestError = 2,
    /// The peer tried something its key does not allow.
    AccessError = 3,
    /// The first packet arrived before the program moved to RTS.
    CommunicationEstablished = 4,
    /// The send queue has come to rest.
    SqDrained = 5,
    /// No more receives will be taken from the shared queue.
    LastWqeReached = 16,
}
