//! Measurements of plain sockets and pipes, in two processes, and of copies.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use ferroce_endpoint::Partner;
use serde::{Deserialize, Serialize};

use super::one_host;
use super::probe::{Probe, RunLength, Sockets};
use super::sample::{Metric, Sample};
use crate::comparison::{median, quantile};
use crate::sockets::{FloorSockets, Plain, TcpPing};
use crate::{RoleProcess, end_with_parent};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Role of the processes.
pub const ROLE: &str = "sockets";

/// A request to one of the processes. It replies with its address, then reads the address of
/// the other end and replies with a [`Done`]. For a pipe, it reads the pipes at once.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Task {
    kind: Sockets,
    size: u32,
    mtu: u32,
    times: u32,
    ms: u64,
    active: bool,
}

/// The result of a task. The passive end has none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Done {
    Nothing,
    /// Bytes per second.
    Rate(f64),
    /// Microseconds of half a round trip: the median and the 99th percentile.
    Latency(f64, f64),
}

/// Measures with two processes, which inherit the processors of this one.
pub(super) fn measure(kind: Sockets, probe: &Probe, run_length: RunLength) -> Result<Sample> {
    let task = Task {
        kind,
        size: probe.size,
        mtu: probe.mtu,
        times: run_length.round_trips,
        ms: run_length.ms,
        active: true,
    };
    if kind == Sockets::Memcpy {
        let rate = one_host::memcpy(probe.size as usize, run_length.ms);
        return Ok(Sample::default().with(Metric::Bandwidth, rate * 8.0 / 1e9));
    }
    let mut near = RoleProcess::start(ROLE, None)?;
    let mut far = RoleProcess::start(ROLE, None)?;
    let passive = Task {
        active: false,
        ..task
    };
    if kind == Sockets::Pipe {
        near.partner.say(&task)?;
        far.partner.say(&passive)?;
        one_host::connect(&mut near, &mut far)?;
    } else {
        let here: SocketAddr = near.request(&task)?;
        let there: SocketAddr = far.request(&passive)?;
        // The passive end confirms that it has connected before the active one sends.
        far.request::<()>(&here)?;
        near.request::<()>(&there)?;
    }
    let figure = near.partner.hear()?;
    far.partner.hear::<Done>()?;
    Ok(match figure {
        Done::Nothing => Sample::default(),
        Done::Rate(rate) => Sample::default().with(Metric::Bandwidth, rate * 8.0 / 1e9),
        Done::Latency(median, p99) => Sample::default()
            .with(Metric::Latency, median)
            .with(Metric::P99, p99),
    })
}

/// Runs one of the processes.
///
/// # Errors
/// If a socket fails.
pub fn work() -> Result<()> {
    end_with_parent()?;
    let mut coordinator = Partner::on_stdin()?;
    let task: Task = coordinator.hear()?;
    let (size, payload) = (task.size as usize, task.mtu as usize);
    if task.kind == Sockets::Pipe {
        let round_trips = one_host::ping_pong(&mut coordinator, size, task.times, task.active)?;
        return coordinator.say(&match task.active {
            true => latency(round_trips),
            false => Done::Nothing,
        });
    }
    if let Sockets::TcpPolling | Sockets::TcpBlocking = task.kind {
        return work_with_tcp(&mut coordinator, task);
    }
    if task.kind == Sockets::Floor {
        let mut floor = FloorSockets::open(LOOPBACK)?;
        coordinator.say(&floor.address()?)?;
        floor.reach(coordinator.hear()?);
        coordinator.say(&())?;
        let done = match task.active {
            true => latency(floor.ping(task.times)?),
            false => {
                floor.pong(task.times)?;
                Done::Nothing
            }
        };
        return coordinator.say(&done);
    }
    let mut plain = Plain::open(SocketAddr::new(LOOPBACK, 0))?;
    coordinator.say(&plain.address()?)?;
    plain.connect(coordinator.hear()?)?;
    if task.kind == Sockets::Blocking {
        plain.block()?;
    }
    coordinator.say(&())?;
    let done = match (task.kind == Sockets::Stream, task.active) {
        (true, true) => Done::Rate(plain.stream(payload, task.ms)?),
        (false, true) => latency(plain.ping(size, task.times)?),
        (true, false) => {
            plain.sink(payload)?;
            Done::Nothing
        }
        (false, false) => {
            plain.pong(size, task.times)?;
            Done::Nothing
        }
    };
    coordinator.say(&done)
}

/// Runs a ping-pong over TCP. The active end connects; its own address means nothing.
fn work_with_tcp(coordinator: &mut Partner, task: Task) -> Result<()> {
    let (size, polls) = (task.size as usize, task.kind == Sockets::TcpPolling);
    let done = match task.active {
        true => {
            coordinator.say(&SocketAddr::new(LOOPBACK, 0))?;
            let mut tcp = TcpPing::connect(coordinator.hear()?, polls)?;
            coordinator.say(&())?;
            latency(tcp.ping(size, task.times)?)
        }
        false => {
            let listener = TcpPing::listen(LOOPBACK)?;
            coordinator.say(&listener.local_addr()?)?;
            coordinator.hear::<SocketAddr>()?;
            coordinator.say(&())?;
            TcpPing::accept(&listener, polls)?.pong(size, task.times)?;
            Done::Nothing
        }
    };
    coordinator.say(&done)
}

fn latency(round_trips: Vec<Duration>) -> Done {
    let micros = || {
        round_trips
            .iter()
            .map(|time| time.as_secs_f64() * 1e6 / 2.0)
    };
    Done::Latency(median(micros()), quantile(micros(), 0.99))
}
