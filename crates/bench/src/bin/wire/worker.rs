//! A worker: one of the two processes of a measurement.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ferroce_bench::end_with_parent;
use ferroce_bench::sockets::{FloorSockets, Plain};
use ferroce_device::Device;
use ferroce_device::transport::QpType;
use ferroce_endpoint::{Endpoint, Introduction, Options, Partner};
use ferroce_wire::Mtu;

use crate::requests::{Figure, MTUS, Request, Task};
use crate::{idle, queue_pairs};

/// Handles requests until the coordinator closes the socket.
pub(crate) fn run() -> Result<()> {
    end_with_parent()?;
    let mut coordinator = Partner::on_stdin()?;
    let mut ends: Vec<Endpoint> = Vec::new();
    let mut plain: Option<Sockets> = None;
    while let Some(request) = coordinator.hear_or_end::<Request>()? {
        match request {
            Request::Link { name, netdev } => {
                ferroce_bench::add_link(&name, &netdev)?;
                coordinator.say(&())?;
            }
            Request::Open { link, gid_index } => {
                ends = open(&link, gid_index)?;
                let introductions: Result<Vec<Introduction>> =
                    ends.iter().map(Endpoint::introduction).collect();
                coordinator.say(&introductions?)?;
            }
            Request::Connect(theirs) => {
                for (end, theirs) in ends.iter_mut().zip(&theirs) {
                    end.connect(theirs)?;
                }
                coordinator.say(&())?;
            }
            Request::Plain(address) => {
                let opened = Sockets {
                    bare: Plain::open(SocketAddr::new(address, 0))?,
                    floor: FloorSockets::open(address)?,
                };
                coordinator.say(&[opened.bare.address()?, opened.floor.address()?])?;
                plain = Some(opened);
            }
            Request::Reach([bare, floor]) => {
                let sockets = plain.as_mut().context("no sockets")?;
                sockets.bare.connect(bare)?;
                sockets.floor.reach(floor);
                coordinator.say(&())?;
            }
            Request::Respond(task) => {
                coordinator.say(&())?;
                respond(task, &ends, plain.as_mut())?;
                coordinator.say(&())?;
            }
            Request::Initiate(task) => coordinator.say(&initiate(task, &ends, plain.as_mut())?)?,
        }
    }
    Ok(())
}

/// Bytes of a message of the plain ping-pong.
const SMALL: usize = 8;

/// Plain sockets of both kinds.
struct Sockets {
    bare: Plain,
    floor: FloorSockets,
}

fn open(link: &str, gid_index: u8) -> Result<Vec<Endpoint>> {
    let device = Device::open(link)?;
    let pd = device.alloc_pd();
    MTUS.iter()
        .map(|&mtu| {
            let options = Options {
                mtu: Mtu::from_bytes(mtu as usize),
                ..Options::new(QpType::Rc, gid_index)
            };
            Endpoint::on(&Arc::clone(&device), &pd, options)
        })
        .collect()
}

fn initiate(task: Task, ends: &[Endpoint], plain: Option<&mut Sockets>) -> Result<Figure> {
    let plain = || plain.context("no sockets");
    match task {
        Task::Write { end, size, ms } => queue_pairs::write(&ends[end], size, ms),
        Task::WritePingPong { end, times } => queue_pairs::write_ping(&ends[end], times),
        Task::SendPingPong { end, times } => queue_pairs::send_ping(&ends[end], times),
        Task::BareStream { payload, ms } => plain()?.bare.stream(payload, ms).map(Figure::Rate),
        Task::BarePingPong { times } => plain()?.bare.ping(SMALL, times).map(mean),
        Task::FloorPingPong { times } => plain()?.floor.ping(times).map(mean),
        Task::Idle { ms } => idle::watch(ms),
    }
}

fn respond(task: Task, ends: &[Endpoint], plain: Option<&mut Sockets>) -> Result<()> {
    let plain = || plain.context("no sockets");
    match task {
        // The passive end has nothing to do: its progress thread handles WRITEs.
        Task::Write { .. } => Ok(()),
        Task::WritePingPong { end, times } => queue_pairs::write_pong(&ends[end], times),
        Task::SendPingPong { end, times } => queue_pairs::send_pong(&ends[end], times),
        Task::BareStream { payload, .. } => plain()?.bare.sink(payload),
        Task::BarePingPong { times } => plain()?.bare.pong(SMALL, times),
        Task::FloorPingPong { times } => plain()?.floor.pong(times),
        Task::Idle { .. } => bail!("the idle task has no passive half"),
    }
}

fn mean(round_trips: Vec<Duration>) -> Figure {
    queue_pairs::one_way(round_trips.iter().sum(), round_trips.len() as u32)
}
