//! Points in time, given by the caller.
//!
//! Protocol engines never read a clock. Every function that depends on time takes a
//! [`Time`]: real time in a program, virtual time under the simulator. Only differences of
//! times are used, so the caller chooses the origin.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// A point in time: nanoseconds since the caller's origin.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The caller's origin.
    pub const ZERO: Time = Time(0);

    /// Returns the time `ns` nanoseconds after the origin.
    #[inline]
    pub const fn from_nanos(ns: u64) -> Time {
        Time(ns)
    }

    /// Returns the nanoseconds since the origin.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the nanoseconds from `earlier` to `self`, or 0 if `earlier` is later.
    #[inline]
    pub const fn nanos_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time `ns` nanoseconds after this one.
    #[inline]
    pub const fn after_nanos(self, ns: u64) -> Time {
        Time(self.0.saturating_add(ns))
    }
}

/// An optional time in the size of a time: queue pairs keep several.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Deadline(Time);

impl Deadline {
    /// The deadline that never expires.
    pub const NONE: Deadline = Deadline(Time(u64::MAX));

    /// Returns the deadline that expires at `time`.
    #[inline]
    pub const fn at(time: Time) -> Deadline {
        Deadline(time)
    }

    /// Returns the time of expiry, if there is one.
    #[inline]
    pub fn get(self) -> Option<Time> {
        (self != Deadline::NONE).then_some(self.0)
    }

    /// True if the deadline never expires.
    #[inline]
    pub fn is_none(self) -> bool {
        self == Deadline::NONE
    }

    /// True if the deadline has expired.
    #[inline]
    pub fn is_due(self, now: Time) -> bool {
        !self.is_none() && self.0 <= now
    }

    /// Returns the earlier of two deadlines.
    #[inline]
    pub fn min(self, other: Deadline) -> Deadline {
        Deadline(self.0.min(other.0))
    }
}

impl Default for Deadline {
    fn default() -> Deadline {
        Deadline::NONE
    }
}

impl From<Option<Time>> for Deadline {
    #[inline]
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
