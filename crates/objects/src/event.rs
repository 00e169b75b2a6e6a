//! Events of an engine: asynchronous events of verbs, notifications, failures, and counts of
//! received messages.

use crate::error::Failure;

/// An event of an engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// An armed completion queue got a completion that it was armed for.
    CqNotify {
        /// Id of the completion queue.
        cq: u32,
    },
    /// `IBV_EVENT_CQ_ERR`: a completion was lost because the queue was full.
    CqError {
        /// Id of the completion queue.
        cq: u32,
    },
    /// `IBV_EVENT_SRQ_LIMIT_REACHED`: fewer receives than the limit are left.
    SrqLimitReached {
        /// Number of the shared receive queue.
        srq: u32,
    },
    /// An asynchronous event of a queue pair.
    Qp {
        /// Number of the queue pair.
        qpn: u32,
        /// The event.
        kind: QpEvent,
    },
    /// A work request or queue pair failed. The event is for logs and not part of verbs.
    Failure(Failure),
}

/// Numbers of messages that an engine has received, modulo 2^32.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct ReceivedMessages {
    /// WRITEs without immediate data, of which verbs tell the program nothing.
    pub writes: u32,
    /// Messages that completed a receive.
    pub receives: u32,
}

/// Asynchronous events of queue pairs, numbered as in `ibv_event_type`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum QpEvent {
    /// The queue pair failed, and no completion reports it.
    Fatal = 1,
    /// The peer sent a request that breaks the protocol.
    RequestError = 2,
    /// The peer requested an access that its key does not allow.
    AccessError = 3,
    /// The first packet arrived before the queue pair was in RTS.
    CommunicationEstablished = 4,
    /// The send queue has drained.
    SqDrained = 5,
    /// The queue pair takes no more receives from its shared receive queue.
    LastWqeReached = 16,
}
