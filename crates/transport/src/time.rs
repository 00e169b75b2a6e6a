//! Virtual or real time, as the caller tells it.
//!
//! The engine never reads a clock. Every entry point that depends on time takes
//! a [`Time`]: nanoseconds since an origin the caller chose. Nothing but
//! differences is ever used.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// A point in time: nanoseconds since the caller's origin.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);

    /// The point `ns` nanoseconds after the origin.
    pub const fn from_nanos(ns: u64) -> Time {
        Time(ns)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Nanoseconds from `earlier` to `self`, zero when `earlier` is later.
    pub const fn nanos_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The point `ns` nanoseconds after this one.
    pub const fn after_nanos(self, ns: u64) -> Time {
        Time(self.0.saturating_add(ns))
    }
}

/// A time that may be none, in no more memory than one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Deadline(Time);

impl Deadline {
    /// It never comes.
    pub(crate) const NONE: Deadline = Deadline(Time(u64::MAX));

    pub(crate) const fn at(time: Time) -> Deadline {
        Deadline(time)
    }

    pub(crate) fn get(self) -> Option<Time> {
        (self != Deadline::NONE).then_some(self.0)
    }

    pub(crate) fn is_none(self) -> bool {
        self == Deadline::NONE
    }

    /// Whether its time has come.
    pub(crate) fn is_due(self, now: Time) -> bool {
        !self.is_none() && self.0 <= now
    }

    /// The one that comes first.
    pub(crate) fn min(self, other: Deadline) -> Deadline {
        Deadline(self.0.min(other.0))
    }
}

impl Default for Deadline {
    fn default() -> Deadline {
        Deadline::NONE
    }
}

impl From<Option<Time>> for Deadline {
    fn from(time: Option<Time>) -> Deadline {
        time.map_or(Deadline::NONE, Deadline)
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        self.after_nanos(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Sub for Time {
    type Output = Duration;
    fn sub(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} us", self.0 / 1000, self.0 % 1000)
    }
}
