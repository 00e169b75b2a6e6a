//! Neighbour discovery: makes the kernel resolve the next hop, as the kernel's rdma_cm does
//! before it reports an address as resolved.
//!
//! An empty datagram to the discard port starts the kernel's ARP or ND. Until the next hop
//! is known, the datagram counts as unsent on its socket. This works for both IP versions
//! and behind routers, and needs no privilege. The kernel also drops the datagram when
//! discovery fails, so the next hop counts as found only if another datagram leaves at once.

use core::net::SocketAddr;
use core::time::Duration;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ferroce_cm::ports::Host;
use ferroce_control::sockopt::unsent_bytes;
use ferroce_device::start_thread;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, connect, send, socket_with,
};
use rustix::time::{ClockId, clock_gettime};

use crate::address::with_port;
use crate::client::ControlClient;
use crate::id::Shared;

const DISCARD: u16 = 9;
/// Pause between two checks of the socket: the kernel does not report when a datagram has
/// left.
const PAUSE: Duration = Duration::from_millis(5);

/// A running neighbour discovery.
#[derive(Debug)]
pub(crate) struct Discovery(OwnedFd);

impl Discovery {
    /// Starts a discovery. Returns None if the next hop is known already, or if this host
    /// cannot find out.
    pub(crate) fn start(source: Host, mut destination: SocketAddr) -> Option<Discovery> {
        destination.set_port(DISCARD);
        let family = match destination {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::DGRAM, flags, None).ok()?;
        bind(&socket, &with_port(source, 0)).ok()?;
        connect(&socket, &destination).ok()?;
        let discovery = Discovery(socket);
        (!discovery.sends()).then_some(discovery)
    }

    /// Sends a datagram, and returns true if it leaves at once.
    fn sends(&self) -> bool {
        match send(&self.0, &[], SendFlags::NOSIGNAL) {
            Ok(_) => !self.is_pending(),
            Err(Errno::HOSTUNREACH) => false,
            // Refused by the host, which is therefore there, or by a filter on the way out.
            Err(_) => true,
        }
    }

    /// Returns true while a datagram waits for the next hop.
    fn is_pending(&self) -> bool {
        unsent_bytes(&self.0).is_ok_and(|bytes| bytes > 0)
    }

    /// Waits for the next hop, up to `timeout` and while `is_wanted` returns true. Returns
    /// true if it is found.
    fn wait(&self, timeout: Duration, is_wanted: impl Fn() -> bool) -> bool {
        let until = now() + timeout;
        while now() < until && is_wanted() {
            let left = Timespec::try_from(PAUSE.min(until.saturating_sub(now())));
            let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
            let _error_or_time = poll(&mut fds, left.ok().as_ref());
            if !self.is_pending() && self.sends() {
                return true;
            }
        }
        false
    }

    /// Waits in a thread, which calls `report` with the result unless the id is destroyed
    /// before.
    pub(crate) fn wait_in_thread(
        self,
        id: &Arc<Shared>,
        client: &'static ControlClient,
        timeout: Duration,
        report: impl FnOnce(&Arc<Shared>, bool) + Send + 'static,
    ) -> std::io::Result<()> {
        let id = Arc::clone(id);
        let work = move || {
            let found = self.wait(timeout, || client.handles().contains(&id));
            let handles = client.handles();
            if handles.contains(&id) {
                report(&id, found);
            }
        };
        // The program does not wait for the network.
        start_thread("ferroce-resolve".into(), work).map(drop)
    }
}

fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}
