//! Plain UDP and TCP sockets: the references for bandwidth and latency.

mod bare;
mod floor;
mod tcp;

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

pub use bare::Plain;
pub use floor::FloorSockets;
pub use tcp::TcpPing;

/// Time without progress after which a measurement fails.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A timeout for polling loops. It reads the clock once in 65,536 checks.
#[derive(Debug, Default)]
pub struct Deadline {
    asked: u32,
    begun: Option<Instant>,
}

impl Deadline {
    /// Counts a poll without success.
    ///
    /// # Errors
    /// If [`PATIENCE`] has passed.
    pub fn check(&mut self) -> Result<()> {
        self.asked = self.asked.wrapping_add(1);
        if self.asked.is_multiple_of(1 << 16) {
            let begun = *self.begun.get_or_insert_with(now);
            ensure!(now() < begun + PATIENCE, "no progress for {PATIENCE:?}");
        }
        Ok(())
    }
}

/// Returns the current time.
#[allow(clippy::disallowed_methods)] // a benchmark measures time
pub fn now() -> Instant {
    Instant::now()
}

/// Sets a socket option whose value is a number or another plain value.
#[allow(unsafe_code)] // rustix has no UDP_SEGMENT, UDP_GRO or SO_ATTACH_REUSEPORT_CBPF
fn set_option<T: Copy>(socket: &impl AsFd, level: i32, option: i32, value: T) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which outlives the call. The kernel
    // only reads it, and validates any pointers inside it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
