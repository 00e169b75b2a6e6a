//! Injected bugs of all layers, each of which the simulator must find.

use core::fmt;

/// An injected bug.
#[derive(Copy, Clone, PartialEq, Eq)]
pub enum Bug {
    /// A bug of the engine.
    Engine(ferroce_roce::Bug),
    /// A bug of the shard around the engine.
    Shard(ferroce_shard::Bug),
    /// A bug of the local wire.
    Wire(ferroce_net::local::Bug),
}

impl Bug {
    /// Returns all bugs.
    pub fn all() -> impl Iterator<Item = Bug> {
        let engine = ferroce_roce::Bug::ALL.iter().copied();
        let shard = ferroce_shard::Bug::ALL.iter().copied();
        let wire = ferroce_net::local::Bug::ALL.iter().copied();
        let outer = shard.map(Bug::Shard).chain(wire.map(Bug::Wire));
        engine.map(Bug::Engine).chain(outer)
    }

    /// Returns the engine's bug.
    pub(crate) fn of_engine(self) -> Option<ferroce_roce::Bug> {
        match self {
            Bug::Engine(bug) => Some(bug),
            Bug::Shard(_) | Bug::Wire(_) => None,
        }
    }

    /// Returns the shard's bug.
    pub(crate) fn of_shard(self) -> Option<ferroce_shard::Bug> {
        match self {
            Bug::Shard(bug) => Some(bug),
            Bug::Engine(_) | Bug::Wire(_) => None,
        }
    }

    /// Returns the bug of the local wire.
    pub(crate) fn of_wire(self) -> Option<ferroce_net::local::Bug> {
        match self {
            Bug::Wire(bug) => Some(bug),
            Bug::Engine(_) | Bug::Shard(_) => None,
        }
    }
}

impl fmt::Debug for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bug::Engine(bug) => bug.fmt(f),
            Bug::Shard(bug) => bug.fmt(f),
            Bug::Wire(bug) => bug.fmt(f),
        }
    }
}
