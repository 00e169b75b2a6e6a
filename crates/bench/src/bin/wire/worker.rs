//! One of the two processes between which something is measured.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ferroce_bench::end_with_parent;
use ferroce_device::Device;
use ferroce_device::transport::QpType;
use ferroce_endpoint::{Endpoint, Introduction, Options, Partner};
use ferroce_wire::Mtu;

use crate::bare::Plain;
use crate::framed::Framed;
use crate::orders::{Figure, MTUS, Order, Task};
use crate::{idle, ours};

/// Does as it is told, until there is nobody to tell it.
pub(crate) fn run() -> Result<()> {
    end_with_parent()?;
    let mut stage = Partner::on_stdin()?;
    let mut ends: Vec<Endpoint> = Vec::new();
    let mut plain: Option<Sockets> = None;
    while let Some(order) = stage.hear_or_end::<Order>()? {
        match order {
            Order::Link { name, netdev } => {
                ferroce_bench::add_link(&name, &netdev)?;
                stage.say(&())?;
            }
            Order::Open { link, gid_index } => {
                ends = open(&link, gid_index)?;
                let introductions: Result<Vec<Introduction>> =
                    ends.iter().map(Endpoint::introduction).collect();
                stage.say(&introductions?)?;
            }
            Order::Connect(theirs) => {
                for (end, theirs) in ends.iter_mut().zip(&theirs) {
                    end.connect(theirs)?;
                }
                stage.say(&())?;
            }
            Order::Plain(address) => {
                let opened = Sockets {
                    bare: Plain::open(SocketAddr::new(address, 0))?,
                    framed: Framed::open(address)?,
                };
                stage.say(&[opened.bare.address()?, opened.framed.address()?])?;
                plain = Some(opened);
            }
            Order::Reach([bare, framed]) => {
                let sockets = plain.as_mut().context("no sockets")?;
                sockets.bare.connect(bare)?;
                sockets.framed.reach(framed);
                stage.say(&())?;
            }
            Order::Answer(task) => {
                stage.say(&())?;
                answer(task, &ends, plain.as_mut())?;
                stage.say(&())?;
            }
            Order::Ask(task) => stage.say(&ask(task, &ends, plain.as_mut())?)?,
        }
    }
    Ok(())
}

/// Plain sockets of both kinds.
struct Sockets {
    bare: Plain,
    framed: Framed,
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

fn ask(task: Task, ends: &[Endpoint], plain: Option<&mut Sockets>) -> Result<Figure> {
    let plain = || plain.context("no sockets");
    match task {
        Task::Write { end, size, ms } => ours::write(&ends[end], size, ms),
        Task::WritePingPong { end, times } => ours::write_ping(&ends[end], times),
        Task::SendPingPong { end, times } => ours::send_ping(&ends[end], times),
        Task::BareStream { payload, ms } => plain()?.bare.stream(payload, ms),
        Task::BarePingPong { times } => plain()?.bare.ping(times),
        Task::FramedPingPong { times } => plain()?.framed.ping(times),
        Task::Idle { ms } => idle::watch(ms),
    }
}

fn answer(task: Task, ends: &[Endpoint], plain: Option<&mut Sockets>) -> Result<()> {
    let plain = || plain.context("no sockets");
    match task {
        // The answering end has nothing to do: that is the point of RDMA.
        Task::Write { .. } => Ok(()),
        Task::WritePingPong { end, times } => ours::write_pong(&ends[end], times),
        Task::SendPingPong { end, times } => ours::send_pong(&ends[end], times),
        Task::BareStream { payload, .. } => plain()?.bare.sink(payload),
        Task::BarePingPong { times } => plain()?.bare.pong(times),
        Task::FramedPingPong { times } => plain()?.framed.pong(times),
        Task::Idle { .. } => bail!("idleness is for one"),
    }
}
