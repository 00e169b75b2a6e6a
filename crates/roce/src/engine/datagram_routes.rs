//! Routes of datagrams to queue pairs of this host: UDP, or shared memory.
//!
//! A connected queue pair has one peer, and one route. A UD queue pair names the destination in
//! each work request. So the caller finds a route for each destination QPN on this host, once,
//! while the datagrams to it wait in the send queue. **Why they wait**: sent over UDP meanwhile,
//! they would be overtaken by those that follow through memory. A neighbour's link address is
//! resolved in the same way: packets wait for the answer.

use std::collections::BTreeMap;

use super::Engine;
use crate::time::Time;
use crate::verbs::UdTarget;

/// Most destinations. If there are more, the caller finds those in use again.
const MOST: usize = 1 << 14;

/// The route to a destination QPN.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// The caller looks for the route. Datagrams wait.
    Sought,
    Udp,
    Memory,
}

/// The routes to destination QPNs on this host.
#[derive(Debug, Default)]
pub(crate) struct DatagramRoutes(BTreeMap<u32, Route>);

impl DatagramRoutes {
    /// Returns the route of a datagram. It is UDP to other hosts, and to destinations for which
    /// the caller looks for no route.
    #[inline]
    pub(crate) fn of(&self, target: &UdTarget) -> Route {
        match target.ah.is_local() {
            true => self
                .0
                .get(&target.remote_qpn)
                .copied()
                .unwrap_or(Route::Udp),
            false => Route::Udp,
        }
    }

    fn set(&mut self, qpn: u32, route: Route) {
        if self.0.len() >= MOST && !self.0.contains_key(&qpn) {
            self.0.retain(|_, route| *route == Route::Sought);
        }
        self.0.insert(qpn, route);
    }
}

impl Engine {
    /// Returns true if the caller shall look for the route of a datagram, and call
    /// [`seek_datagram_route`](Engine::seek_datagram_route) before it posts the datagram.
    #[inline]
    pub fn lacks_datagram_route(&self, target: &UdTarget) -> bool {
        target.ah.is_local() && !self.cx.routes.0.contains_key(&target.remote_qpn)
    }

    /// Holds datagrams to a QPN on this host back, until
    /// [`set_datagram_route`](Engine::set_datagram_route).
    pub fn seek_datagram_route(&mut self, qpn: u32) {
        self.cx.routes.set(qpn, Route::Sought);
    }

    /// Sets the route of datagrams to a QPN on this host: through shared memory, or by UDP.
    pub fn set_datagram_route(&mut self, now: Time, qpn: u32, in_memory: bool) {
        let route = match in_memory {
            true => Route::Memory,
            false => Route::Udp,
        };
        self.cx.routes.set(qpn, route);
        self.wake_waiting_datagrams(now);
    }

    /// Forgets the routes through memory to QPNs for which `is_reached` returns false: their
    /// process has ended, and another one may have their numbers.
    pub fn forget_datagram_routes(&mut self, is_reached: impl Fn(u32) -> bool) {
        let routes = &mut self.cx.routes.0;
        routes.retain(|&qpn, route| *route != Route::Memory || is_reached(qpn));
    }

    /// Returns true if the next datagram of a queue pair waits for a route.
    pub fn awaits_datagram_route(&self, qpn: u32) -> bool {
        let qp = self.qps.get(qpn);
        qp.is_some_and(|qp| qp.awaits_route(&self.cx))
    }

    /// Sends datagrams by UDP that wait for a route, because the process or their queue pair ends.
    /// Returns false if there are none.
    pub fn stop_seeking_routes(&mut self, now: Time) -> bool {
        let mut found = false;
        for route in self.cx.routes.0.values_mut() {
            if *route == Route::Sought {
                *route = Route::Udp;
                found = true;
            }
        }
        if found {
            self.wake_waiting_datagrams(now);
        }
        found
    }

    /// Lets UD queue pairs look at their routes again.
    fn wake_waiting_datagrams(&mut self, now: Time) {
        self.cx.now = now;
        let qpns: Vec<u32> = self.qpns().collect();
        for qpn in qpns {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.wake_datagrams(&mut self.cx);
            }
        }
    }
}
