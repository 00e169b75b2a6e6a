//! A note at exit if the program opened a device and sent nothing over it.
//!
//! Libraries such as UCX open all devices and then choose one, or TCP. The note is one line
//! on standard error. It appears only under `ferroce run` without `--quiet`, and only if the
//! program has allocated a protection domain: `ibv_devinfo` opens devices to query them.
//! A program that has connected with rdma_cm gets no note: tests such as DAPL's `dtestcm` connect
//! and disconnect. ferroced sends their messages, which the device does not count.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use ferroce_control::path::{QUIET_VARIABLE, SYSFS_VARIABLE};
use ferroce_device::Device;

/// True if the program has allocated a protection domain.
static PREPARED: AtomicBool = AtomicBool::new(false);
/// True if a device has sent or received a packet, or rdma_cm has established a connection.
static USED: AtomicBool = AtomicBool::new(false);
/// The name of the device with the last protection domain.
static NAME: Mutex<String> = Mutex::new(String::new());

/// Records that the program allocates a protection domain.
pub(crate) fn prepares(device: &Device) {
    PREPARED.store(true, Ordering::Relaxed);
    if let Ok(mut name) = NAME.try_lock() {
        *name = device.link().name.clone();
    }
}

/// Records that rdma_cm has established a connection, or has found the peer of datagrams.
pub(crate) fn connects() {
    USED.store(true, Ordering::Relaxed);
}

/// Records whether a device had traffic, when it is closed or the program exits.
pub(crate) fn leaves(device: &Device) {
    if device.has_traffic() {
        USED.store(true, Ordering::Relaxed);
    }
}

/// Writes the note, if it is due. Called at exit, after `leaves` for all devices.
pub(crate) fn tell() {
    let is_used = USED.load(Ordering::Relaxed) || !PREPARED.load(Ordering::Relaxed);
    let is_set = |variable| std::env::var_os(variable).is_some();
    if is_used || !is_set(SYSFS_VARIABLE) || is_set(QUIET_VARIABLE) {
        return;
    }
    let Ok(device) = NAME.try_lock() else {
        return;
    };
    let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let line = format!(
        "note: {} opened {device} and neither sent nor received a byte over it; it may have used \
         another transport, and FERROCE_LOG=debug shows calls that were refused\n",
        program.trim_end(),
    );
    let _closed = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
}
