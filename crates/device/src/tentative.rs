//! Addresses during duplicate address detection.
//!
//! The GID table lists an IPv6 address as soon as the netdev has it, so that its index never
//! shows another one. For 1 to 2 s after that the kernel sends nothing from the address, and
//! refuses to bind to it, until it knows that no other host has it. The first use of the
//! address waits for the kernel.

use core::time::Duration;

use ferroce_control::Gid;
use ferroce_net::has_address;
use ferroce_roce::VerbsError;
use rustix::event::{Timespec, poll};

use crate::clock;
use crate::device::Device;

/// The longest wait. The kernel begins after a random delay of up to 1 s, and then waits 1 s
/// for each of its probes, of which it sends one by default (`dad_transmits`).
const LIMIT: Duration = Duration::from_secs(3);
/// Pause between two checks: the kernel tells ferroced, not this process, that it has ended.
const PAUSE: Duration = Duration::from_millis(5);

impl Device {
    /// Waits until packets can be sent from an address of the link. Returns at once for an
    /// address that is not in duplicate address detection. Call it without locks.
    ///
    /// # Errors
    /// If detection has found another host with the address, or has not ended after 3 s.
    pub fn await_usable(&self, gid: &Gid) -> Result<(), VerbsError> {
        if !gid.tentative {
            return Ok(());
        }
        let (address, ifindex) = (gid.address, gid.ifindex);
        let has = |other: &Gid| (other.address, other.ifindex) == (address, ifindex);
        let until = clock::now() + LIMIT;
        // The kernel knows first. The link reports a failure, after which the kernel has no such
        // address, and success, if this process cannot ask the kernel.
        while !has_address(address, ifindex) {
            let link = self.link();
            let (name, netdev) = (&link.name, &link.netdev);
            let Some(now) = link.gids.iter().find(|gid| has(gid)) else {
                return Err(VerbsError::Invalid(format!(
                    "{name} has lost the address {address} before duplicate address detection \
                     has ended: another host has the address, or netdev {netdev} was set down"
                )));
            };
            if !now.tentative {
                return Ok(());
            }
            if clock::now() >= until {
                return Err(VerbsError::Invalid(format!(
                    "duplicate address detection of {address} on {name} has not ended after \
                     {} s: wait until `ip address show dev {netdev}` does not show it as \
                     tentative, or use another GID index",
                    LIMIT.as_secs()
                )));
            }
            let _error_or_time = poll(&mut [], Timespec::try_from(PAUSE).ok().as_ref());
        }
        Ok(())
    }
}
