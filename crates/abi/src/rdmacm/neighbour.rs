//! Whether anybody is there: the kernel is made to look for the next hop, as its own
//! rdma_cm does before it says that an address is resolved.
//!
//! An empty datagram to the discard port starts the search. While the kernel looks, the
//! datagram waits, and counts as not sent by its socket; that works for both IP versions,
//! behind routers too, and needs no privilege. A datagram is also gone when the search has
//! failed: so the answer counts only if another one leaves at once.

use core::net::SocketAddr;
use core::time::Duration;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use ferroce_cm::ports::Host;
use ferroce_device::block_all;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, connect, send, socket_with,
};
use rustix::time::{ClockId, clock_gettime};

use super::address::with_port;
use super::id::Id;
use super::line::Line;

const DISCARD: u16 = 9;
/// Between two looks: nothing tells when a datagram has left.
const PAUSE: Duration = Duration::from_millis(5);

/// A search that goes on.
#[derive(Debug)]
pub(crate) struct Search(OwnedFd);

impl Search {
    /// Starts one. None if somebody is there, or if nothing can be found out.
    pub(crate) fn start(source: Host, mut destination: SocketAddr) -> Option<Search> {
        destination.set_port(DISCARD);
        let family = match destination {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::DGRAM, flags, None).ok()?;
        bind(&socket, &with_port(source, 0)).ok()?;
        connect(&socket, &destination).ok()?;
        let search = Search(socket);
        (!search.passes()).then_some(search)
    }

    /// Whether a datagram leaves at once.
    fn passes(&self) -> bool {
        match send(&self.0, &[], SendFlags::NOSIGNAL) {
            Ok(_) => !self.waits(),
            Err(Errno::HOSTUNREACH) => false,
            // Refused by the host, which is there, or by something on the way out.
            Err(_) => true,
        }
    }

    fn waits(&self) -> bool {
        let mut bytes = 0;
        // SAFETY: the kernel writes one number.
        let asked = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        asked == 0 && bytes > 0
    }

    /// Whether somebody is found in time, while anybody wants to know.
    fn finds(&self, timeout: Duration, wanted: impl Fn() -> bool) -> bool {
        let until = now() + timeout;
        while now() < until && wanted() {
            let left = Timespec::try_from(PAUSE.min(until.saturating_sub(now())));
            let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
            let _error_or_time = poll(&mut fds, left.ok().as_ref());
            if !self.waits() && self.passes() {
                return true;
            }
        }
        false
    }

    /// Goes on in a thread, which tells how it ended unless the id is gone by then.
    pub(crate) fn go_on(
        self,
        id: &Arc<Id>,
        line: &'static Line,
        timeout: Duration,
        tell: impl FnOnce(&Arc<Id>, bool) + Send + 'static,
    ) -> std::io::Result<()> {
        let id = Arc::clone(id);
        let search = move || {
            let found = self.finds(timeout, || line.who().knows(&id));
            let who = line.who();
            if who.knows(&id) {
                tell(&id, found);
            }
        };
        let _blocked = block_all();
        #[allow(clippy::disallowed_methods)] // the program does not wait for the network
        std::thread::Builder::new()
            .name("ferroce-resolve".into())
            .spawn(search)
            .map(drop)
    }
}

fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}
