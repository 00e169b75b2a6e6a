//! Waiting with an end: for a descriptor, or for something to become true.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

/// How long anything may take on a busy machine before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Whether a descriptor becomes readable in time.
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
/// If it does not become so.
pub fn readable(fd: impl AsFd, what: &str) {
    assert!(
        readable_within(fd, PATIENCE),
        "{what}: nothing after {PATIENCE:?}"
    );
}

/// Asks until the answer is yes. For what announces itself by nothing one could wait
/// for, such as the end of somebody else's process.
///
/// # Panics
/// If the answer stays no.
pub fn until(what: &str, mut yes: impl FnMut() -> bool) {
    let end = now() + PATIENCE;
    while !yes() {
        assert!(now() < end, "{what}: not after {PATIENCE:?}");
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
    reason = "tests of real processes take real time"
)]
fn now() -> Instant {
    Instant::now()
}
