//! The client: connects and disconnects on the coordinator's requests.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, bail};
use ferroce_abi::ffi::*;
use ferroce_bench::end_with_parent;
use ferroce_endpoint::Partner;
use serde::{Deserialize, Serialize};

use crate::ids::{Channel, Id};

/// A request of the coordinator.
#[derive(Serialize, Deserialize)]
pub(crate) enum Request {
    /// Connect and disconnect `times` times, one connection after the other.
    Cycle { port: u16, times: u32 },
    /// Open `count` connections concurrently.
    Open { port: u16, count: u32 },
    /// Disconnect the connections of `Open`.
    Close,
}

/// Measured times in microseconds.
#[derive(Serialize, Deserialize, Default)]
pub(crate) struct Times {
    /// Time from the first to the last connection.
    pub(crate) whole: f64,
    /// Set-up time of each connection.
    pub(crate) each: Vec<f64>,
}

pub(crate) fn run() -> Result<()> {
    end_with_parent()?;
    let channel = Channel::new()?;
    let mut coordinator = Partner::on_stdin()?;
    let mut open = Vec::new();
    while let Some(request) = coordinator.hear_or_end::<Request>()? {
        let times = match request {
            Request::Cycle { port, times } => cycle(channel, port, times)?,
            Request::Open { port, count } => connect_at_once(channel, port, count, &mut open)?,
            Request::Close => close(channel, &mut open)?,
        };
        coordinator.say(&times)?;
    }
    Ok(())
}

fn cycle(channel: Channel, port: u16, count: u32) -> Result<Times> {
    let begun = now();
    let mut times = Times::default();
    for _ in 0..count {
        let begun = now();
        let id = channel.id()?;
        id.resolve_address(port)?;
        channel.expect(id, RDMA_CM_EVENT_ADDR_RESOLVED)?;
        id.resolve_route()?;
        channel.expect(id, RDMA_CM_EVENT_ROUTE_RESOLVED)?;
        id.queue_pair()?;
        id.connect()?;
        channel.expect(id, RDMA_CM_EVENT_ESTABLISHED)?;
        times.each.push(since(begun));
        id.disconnect()?;
        channel.expect(id, RDMA_CM_EVENT_DISCONNECTED)?;
        id.destroy()?;
    }
    times.whole = since(begun);
    Ok(times)
}

fn connect_at_once(channel: Channel, port: u16, count: u32, open: &mut Vec<Id>) -> Result<Times> {
    let begun = now();
    let mut started = BTreeMap::new();
    for _ in 0..count {
        let id = channel.id()?;
        started.insert(id, now());
        id.resolve_address(port)?;
    }
    let mut times = Times::default();
    while open.len() < count as usize {
        let event = channel.next()?;
        match (event.what, event.status) {
            (RDMA_CM_EVENT_ADDR_RESOLVED, 0) => event.id.resolve_route()?,
            (RDMA_CM_EVENT_ROUTE_RESOLVED, 0) => {
                event.id.queue_pair()?;
                event.id.connect()?;
            }
            (RDMA_CM_EVENT_ESTABLISHED, 0) => {
                times.each.push(since(started[&event.id]));
                open.push(event.id);
            }
            (what, status) => bail!("event {what} ({status}) while connecting"),
        }
    }
    times.whole = since(begun);
    Ok(times)
}

fn close(channel: Channel, open: &mut Vec<Id>) -> Result<Times> {
    let begun = now();
    for id in open.iter() {
        id.disconnect()?;
    }
    let mut left = open.len();
    while left > 0 {
        let event = channel.next()?;
        if event.what == RDMA_CM_EVENT_DISCONNECTED {
            event.id.destroy()?;
            left -= 1;
        }
    }
    open.clear();
    Ok(Times {
        whole: since(begun),
        each: Vec::new(),
    })
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn now() -> Instant {
    Instant::now()
}

/// Returns the microseconds since `begun`.
fn since(begun: Instant) -> f64 {
    (now() - begun).as_secs_f64() * 1e6
}
