//! The wait for a link-local address that the kernel is about to add.
//!
//! A message that a netdev runs can arrive before the kernel has added its link-local address, or
//! `::1` of a loopback netdev. Index 0 of the GID table stays free meanwhile. But a netdev may never get
//! such an address: after `ip address flush`, for example, the kernel adds it again only when the netdev is set
//! down and up. So the wait has an end. Afterwards index 0 shows a substitute, which it keeps.

use std::time::{Duration, Instant};

use crate::poller::now;
use crate::server::Server;

/// The longest wait. The kernel starts a netdev and adds the address in one critical section, which
/// takes less than a millisecond unless the machine is busy.
const LONGEST: Duration = Duration::from_millis(300);

/// A wait for the addresses of some netdevs.
#[derive(Debug)]
pub(crate) struct LinkLocalWait {
    /// The netdevs, each with the number of addresses of its link. A change begins the wait anew.
    netdevs: Vec<(u32, usize)>,
    until: Instant,
}

impl LinkLocalWait {
    pub(crate) fn deadline(&self) -> Instant {
        self.until
    }
}

impl Server {
    /// Begins, continues or ends the wait.
    pub(crate) fn await_link_local(&mut self) {
        let netdevs = self.links.awaiting_link_local();
        if netdevs.is_empty() {
            self.link_local_wait = None;
            return;
        }
        let known = self.link_local_wait.take();
        let wait = known.filter(|wait| wait.netdevs == netdevs);
        let wait = wait.unwrap_or_else(|| LinkLocalWait {
            netdevs,
            until: now() + LONGEST,
        });
        if now() < wait.until {
            self.link_local_wait = Some(wait);
        } else {
            self.find_tentative_addresses();
            self.netdevs.give_up_link_local();
            self.refresh();
        }
    }
}
