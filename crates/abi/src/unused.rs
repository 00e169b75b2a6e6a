//! A note for people whose program opened a device and sent nothing over it.
//!
//! Libraries such as UCX open all devices there are and then choose one, or TCP. Only under
//! `ferroce run`, and only if the program did more than ask the device what it is, standard
//! error gets one line when the program ends.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use ferroce_control::path::SYSFS_VARIABLE;
use ferroce_device::Device;

/// Whether the program has made a protection domain.
static PREPARED: AtomicBool = AtomicBool::new(false);
/// Whether any device has carried a packet.
static TRAFFIC: AtomicBool = AtomicBool::new(false);
/// The device that was opened last.
static NAME: Mutex<String> = Mutex::new(String::new());

/// The program prepares to use a device.
pub(crate) fn prepares(device: &Device) {
    PREPARED.store(true, Ordering::Relaxed);
    if let Ok(mut name) = NAME.try_lock() {
        *name = device.link().name;
    }
}

/// A device is closed, or the program ends with it.
pub(crate) fn leaves(device: &Device) {
    if device.has_traffic() {
        TRAFFIC.store(true, Ordering::Relaxed);
    }
}

/// The program ends, and all its devices have been looked at.
pub(crate) fn tell() {
    let is_used = TRAFFIC.load(Ordering::Relaxed) || !PREPARED.load(Ordering::Relaxed);
    if is_used || std::env::var_os(SYSFS_VARIABLE).is_none() {
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
