//! Shared receive queues, completion queues and memory windows.

use std::collections::BTreeSet;
use std::sync::Arc;

use ferroce_transport::{Cq, Mw, Srq, Time};

use crate::zone::Place;

/// A shared receive queue.
pub(crate) struct SrqModel {
    pub(crate) host: usize,
    pub(crate) srq: Arc<Srq>,
    /// An XRC queue's domain, and its completion queue.
    pub(crate) xrc: Option<(usize, usize)>,
    pub(crate) recv_size: u64,
    /// Receives posted and not completed.
    pub(crate) outstanding: BTreeSet<usize>,
    pub(crate) posted: usize,
    /// Receives that a reset or destroyed queue pair may have taken along.
    pub(crate) may_be_lost: usize,
    /// A limit event is due when fewer receives are left.
    pub(crate) limit_armed: bool,
}

/// Whether a completion wakes those who wait for solicited ones.
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

/// How a program learns of completions.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum CqMode {
    /// It looks now and then.
    Polled,
    /// It waits to be told of any completion.
    Any,
    /// It waits to be told of solicited ones, and looks now and then.
    Solicited,
}

/// A completion queue.
pub(crate) struct CqModel {
    pub(crate) host: usize,
    pub(crate) cq: Arc<Cq>,
    pub(crate) mode: CqMode,
    pub(crate) notified: bool,
    /// Armed for solicited completions, and nothing has been taken unaccounted for since.
    pub(crate) armed: bool,
    /// The time of the last completion.
    pub(crate) latest: Time,
    /// It may overflow.
    pub(crate) small: bool,
    pub(crate) overflowed: bool,
}

/// What a memory window shows.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum WindowState {
    /// Nothing.
    Free,
    /// A bind is posted.
    Binding,
    /// This memory.
    Bound,
    /// Its end is posted.
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
    /// The peer's address of its first byte.
    pub(crate) first: u64,
    /// Bytes of it that have been given to work requests.
    pub(crate) used: u64,
    /// Keys it once had, which are good for nothing now.
    pub(crate) stale: Option<u32>,
}
