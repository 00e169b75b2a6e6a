//! The clock: nanoseconds since boot.

use ferroce_roce::Time;
use rustix::time::{ClockId, clock_gettime};

/// Returns the current time.
pub(crate) fn now() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    Time::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}
