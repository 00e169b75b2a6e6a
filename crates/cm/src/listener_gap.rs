//! Requests for a service whose listener has just closed, or is about to come.
//!
//! - A server may close its listener after a connection, and listen again for the next one. A
//!   client that connects in between would be rejected. perftest with `-R` does that: its server
//!   tells the client to connect for the second time before it listens again.
//! - A server may tell its port to a client after it has bound it, and before it listens. qperf
//!   0.4.11 with `-cm 1` does that.
//!
//! So a request for a service without a listener waits a moment if the service had one just
//! before, or its port has just been bound.
//!
//! Services of rdma_cm with the same port in different port spaces share a gap: perftest with
//! `-R -c UD` has its first listener in RDMA_PS_TCP and its second one in RDMA_PS_UDP.

use core::time::Duration;
use std::collections::BTreeMap;

use crate::{Address, Mad, PortSpace, Time};

/// Time for which requests wait for the next listener. perftest's server needs some
/// milliseconds, and a hundred on a busy machine.
pub const LISTENER_GAP: Duration = Duration::from_millis(500);

/// Most requests that wait. Further ones are rejected at once.
const MOST: usize = 64;

/// The services that expect a listener, and the requests that wait for it.
#[derive(Default, Debug)]
pub(crate) struct ListenerGaps {
    /// The end of the gap of each service.
    services: BTreeMap<u64, Time>,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    service_id: u64,
    until: Time,
    address: Address,
    mad: Mad,
}

impl ListenerGaps {
    /// Notes that a service expects a listener.
    pub(crate) fn begin(&mut self, now: Time, service_id: u64) {
        self.services.retain(|_, until| *until > now);
        self.services.insert(service_id, now + LISTENER_GAP);
    }

    /// Notes that a service has a listener. Its requests are due at once.
    pub(crate) fn end(&mut self, service_id: u64) {
        self.services.remove(&service_id);
        let requests = self.waiting.iter_mut();
        requests
            .filter(|request| request.service_id == service_id)
            .for_each(|request| request.until = Time::ZERO);
    }

    /// Lets a request wait if its service, or its port in another port space, is in a gap.
    /// Returns false if it does not wait.
    pub(crate) fn hold(&mut self, now: Time, service_id: u64, address: Address, mad: &Mad) -> bool {
        let services = same_port(service_id).chain([service_id]);
        let ends = services.filter_map(|service| self.services.get(&service));
        let Some(until) = ends.copied().max().filter(|until| *until > now) else {
            return false;
        };
        let is_same = |other: &Waiting| (other.address, other.mad.tid) == (address, mad.tid);
        if self.waiting.iter().any(is_same) {
            return true;
        }
        if self.waiting.len() == MOST {
            return false;
        }
        self.waiting.push(Waiting {
            service_id,
            until,
            address,
            mad: *mad,
        });
        true
    }

    /// Returns the time at which a request has waited long enough.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.waiting.iter().map(|request| request.until).min()
    }

    /// Removes and returns a request that has waited long enough.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<(Address, Mad)> {
        let due = self
            .waiting
            .iter()
            .position(|request| request.until <= now)?;
        let request = self.waiting.remove(due);
        Some((request.address, request.mad))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Returns the services of rdma_cm with the port of this one. A service that is not one of rdma_cm
/// has none.
fn same_port(service_id: u64) -> impl Iterator<Item = u64> {
    let port = PortSpace::of_service(service_id).map(|(_, port)| port);
    let spaces = move |port| PortSpace::ALL.map(|space| space.service_id(port));
    port.map(spaces).into_iter().flatten()
}
