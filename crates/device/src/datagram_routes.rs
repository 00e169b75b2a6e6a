//! Routes of datagrams to programs of this host: through shared memory, or by UDP.
//!
//! Each datagram of a UD queue pair names its destination. The first datagram to a queue pair on
//! this host waits in the send queue, and a thread looks for a channel to the slot of that
//! queue pair: it asks ferroced for one if there is none, as a move to RTR does. Then the engine
//! sends the datagrams by the route that was found. No post waits for another process. The
//! thread ends when no route is sought.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferroce_control::{LinkInfo, start_thread};
use ferroce_net::local::Readiness;
use ferroce_net::{has_address, slot_of_qpn};
use ferroce_roce::{AddressVector, Time};

use crate::adapter::Adapter;
use crate::core::Core;
use crate::shard::Shard;
use crate::shared_link::SharedLink;

/// Destinations of datagrams to which a thread looks for a route.
#[derive(Debug, Default)]
pub(crate) struct SoughtRoutes(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    /// The shards that send, and the destination QPNs.
    sought: VecDeque<(Arc<Shard>, u32)>,
    /// True while the thread runs.
    is_served: bool,
}

impl SoughtRoutes {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next destination. Without one, the thread ends.
    fn next(&self) -> Option<(Arc<Shard>, u32)> {
        let mut queue = self.lock();
        let next = queue.sought.pop_front();
        queue.is_served = next.is_some();
        next
    }
}

impl SharedLink {
    /// Returns true if datagrams of an address handle may travel through shared memory: the
    /// destination is an address of this host, and the user has not chosen UDP.
    pub(crate) fn may_send_in_memory(&self, link: &LinkInfo, av: &AddressVector) -> bool {
        // The source address is that of a GID of the link.
        let is_here = || av.destination == av.source || has_address(av.destination, link.ifindex);
        self.local.is_allowed() && link.local && is_here()
    }

    /// Looks for the routes to destinations, while the datagrams to them wait.
    #[cold]
    pub(crate) fn seek_routes(self: &Arc<SharedLink>, shard: &Arc<Shard>, mut qpns: Vec<u32>) {
        // A channel within the process needs no other process. Its datagrams are sent when the post
        // returns, as over UDP: a test of pyverbs counts on that.
        qpns.retain(|&qpn| {
            let slot = slot_of_qpn(qpn);
            let is_own = self.shards.iter().any(|own| own.slot() == slot);
            if is_own {
                shard.set_route(qpn, self.reaches_in_memory(shard, slot));
            }
            !is_own
        });
        if qpns.is_empty() {
            return;
        }
        let mut queue = self.local.sought.lock();
        let all = qpns.into_iter().map(|qpn| (Arc::clone(shard), qpn));
        queue.sought.extend(all);
        if core::mem::replace(&mut queue.is_served, true) {
            return;
        }
        drop(queue);
        let link = Arc::clone(self);
        let thread = start_thread("ferroce-routes".into(), move || {
            while let Some((shard, qpn)) = link.local.sought.next() {
                let in_memory = link.reaches_in_memory(&shard, slot_of_qpn(qpn));
                shard.set_route(qpn, in_memory);
            }
        });
        if let Err(error) = thread {
            tracing::warn!("datagrams use UDP instead of memory, without a thread: {error}");
            while let Some((shard, qpn)) = self.local.sought.next() {
                shard.set_route(qpn, false);
            }
        }
    }
}

impl Shard {
    /// Sets the routes to slots to which a channel is open, and removes them from `sought`. The
    /// caller holds the lock of the core, to which `adapter` belongs.
    #[cold]
    pub(crate) fn use_open_channels(
        &self,
        adapter: &mut Adapter<'_>,
        now: Time,
        sought: &mut Vec<u32>,
    ) {
        let Adapter::Roce(engine) = adapter else {
            return;
        };
        sought.retain(|&qpn| {
            let end = self.doorbell().end_to(slot_of_qpn(qpn));
            let is_open = end.is_some_and(|end| end.readiness() == Readiness::Ready);
            if is_open {
                engine.set_datagram_route(now, qpn, true);
            }
            !is_open
        });
    }

    /// Sets the route to a destination, and sends the datagrams that wait for it.
    fn set_route(&self, qpn: u32, in_memory: bool) {
        self.with_core(|core, now, _| {
            if let Core::Roce(core) = core {
                core.engine.set_datagram_route(now, qpn, in_memory);
            }
        });
    }

    /// Sends datagrams that wait for a route by UDP: the process ends. If another thread holds the
    /// lock, they are lost.
    pub(crate) fn stop_seeking_routes(&self) {
        self.try_with_core(|core, now| {
            if let Core::Roce(core) = core {
                core.engine.stop_seeking_routes(now);
            }
        });
    }
}
