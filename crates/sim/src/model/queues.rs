//! The models of shared receive queues, completion queues and memory windows.

use std::collections::BTreeSet;
use std::sync::Arc;

use ferroce_roce::{Cq, Mw, Srq, Time};

use crate::zone::Place;

/// A shared receive queue.
pub(crate) struct SrqModel {
    pub(crate) host: usize,
    pub(crate) srq: Arc<Srq>,
    /// Domain and completion queue of an XRC shared receive queue.
    pub(crate) xrc: Option<(usize, usize)>,
    pub(crate) recv_size: u64,
    /// Receives that are posted and not completed.
    pub(crate) outstanding: BTreeSet<usize>,
    pub(crate) posted: usize,
    /// Number of receives that reset or destroyed queue pairs may have consumed.
    pub(crate) may_be_lost: usize,
    /// The limit is armed: an event must come when fewer receives are left.
    pub(crate) limit_armed: bool,
}

/// Whether a completion triggers a notification armed for solicited completions.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Solicited {
    No,
    Unknown,
    Yes,
}

impl From<bool> for Solicited {
    fn from(solicited: bool) -> Solicited {
        match solicited {
            true => Solicited::Yes,
            false => Solicited::No,
        }
    }
}

/// The way in which a program waits for completions.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum CqMode {
    /// The program polls from time to time.
    Polled,
    /// The program waits for the notification of any completion.
    Any,
    /// The program waits for the notification of a solicited completion, and also polls.
    Solicited,
}

/// A completion queue.
pub(crate) struct CqModel {
    pub(crate) host: usize,
    pub(crate) cq: Arc<Cq>,
    pub(crate) mode: CqMode,
    pub(crate) notified: bool,
    /// Armed for solicited completions, and every completion polled since is accounted for.
    pub(crate) armed: bool,
    /// Timestamp of the last completion.
    pub(crate) latest: Time,
    /// The queue is so small that it may overflow.
    pub(crate) small: bool,
    pub(crate) overflowed: bool,
}

/// The state of a memory window.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum WindowState {
    /// Not bound.
    Free,
    /// A bind is posted.
    Binding,
    /// Bound.
    Bound,
    /// An invalidation is posted.
    Ending,
}

/// A memory window.
pub(crate) struct WindowModel {
    /// The queue pair that binds it.
    pub(crate) qp: usize,
    pub(crate) mw: Arc<Mw>,
    pub(crate) state: WindowState,
    pub(crate) rkey: u32,
    pub(crate) place: Option<Place>,
    /// Remote address of the first byte.
    pub(crate) first: u64,
    /// Number of bytes already assigned to work requests.
    pub(crate) used: u64,
    /// A former rkey, which must be refused.
    pub(crate) stale: Option<u32>,
}
