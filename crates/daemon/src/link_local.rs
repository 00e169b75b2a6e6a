//! The wait for a link-local address that the kernel is about to add.
//!
//! A message that a netdev runs can arrive before the kernel has added its link-local address, or
//! `::1` of a loopback netdev. Index 0 of the GID table stays free meanwhile. But a netdev may never get
//! such an address: after `ip address flush`, for example, the kernel adds it again only when the netdev is set
//! down and up. So the wait has an end. Afterwards index 0 shows a substitute, which it keeps. The reply to a request
//! that adds a link waits as long, so that programs find index 0 after `ferroce link add`.

use std::time::{Duration, Instant};

use ferroce_control::Reply;

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
    /// Begins, continues or ends the wait, and replies to the requests that it has delayed.
    pub(crate) fn await_link_local(&mut self) {
        self.update_link_local_wait();
        let awaiting = self.links.awaiting_link_local();
        let is_awaited = |netdev: u32| awaiting.iter().any(|(awaiting, _)| *awaiting == netdev);
        let delayed = std::mem::take(&mut self.link_additions);
        for (request, netdev) in delayed {
            match is_awaited(netdev) {
                true => self.link_additions.push((request, netdev)),
                false => self.reply(request, Reply::Done),
            }
        }
    }

    fn update_link_local_wait(&mut self) {
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
