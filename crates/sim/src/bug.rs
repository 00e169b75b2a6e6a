//! Injected bugs of all layers, each of which the simulator must find.

use core::fmt;

/// An injected bug.
#[derive(Copy, Clone, PartialEq, Eq)]
pub enum Bug {
    /// A bug of the engine.
    Engine(ferroce_roce::Bug),
    /// A bug of the shard around the engine.
    Shard(ferroce_shard::Bug),
}

impl Bug {
    /// Returns all bugs.
    pub fn all() -> impl Iterator<Item = Bug> {
        let engine = ferroce_roce::Bug::ALL.iter().copied();
        let shard = ferroce_shard::Bug::ALL.iter().copied();
        engine.map(Bug::Engine).chain(shard.map(Bug::Shard))
    }

    /// Returns the engine's bug.
    pub(crate) fn of_engine(self) -> Option<ferroce_roce::Bug> {
        match self {
            Bug::Engine(bug) => Some(bug),
            Bug::Shard(_) => None,
        }
    }

    /// Returns the shard's bug.
    pub(crate) fn of_shard(self) -> Option<ferroce_shard::Bug> {
        match self {
            Bug::Engine(_) => None,
            Bug::Shard(bug) => Some(bug),
        }
    }
}

impl fmt::Debug for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bug::Engine(bug) => bug.fmt(f),
            Bug::Shard(bug) => bug.fmt(f),
        }
    }
}
