//! Waiting with a timeout, for a descriptor or for a condition.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

/// Timeout after which a test fails; long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Returns true if a descriptor becomes readable within `time`.
pub fn readable_within(fd: impl AsFd, time: Duration) -> bool {
    let end = now() + time;
    loop {
        let left = end.saturating_duration_since(now());
        let timeout = Timespec::try_from(left).expect("a short time");
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
    }
}

/// Waits until a descriptor is readable.
///
/// # Panics
/// If it is not readable within [`PATIENCE`].
pub fn readable(fd: impl AsFd, what: &str) {
    assert!(
        readable_within(fd, PATIENCE),
        "{what}: not readable after {PATIENCE:?}"
    );
}

/// Polls a condition until it is true, every 2 ms. For conditions without a descriptor to
/// wait for, such as the end of a process that is not a child.
///
/// # Panics
/// If the condition is still false after [`PATIENCE`].
pub fn until(what: &str, mut yes: impl FnMut() -> bool) {
    let end = now() + PATIENCE;
    while !yes() {
        assert!(now() < end, "{what}: still false after {PATIENCE:?}");
        let _ = poll(
            &mut [],
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 2_000_000,
            }),
        );
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "tests of real processes need real time"
)]
fn now() -> Instant {
    Instant::now()
}
