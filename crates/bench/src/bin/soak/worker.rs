//! A program that uses RDMA: works with a peer, or comes and goes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ferroce_bench::end_with_parent;
use ferroce_device::transport::{QpType, SendOp};
use ferroce_endpoint::{Endpoint, Introduction, Options, Partner, pattern};
use serde::{Deserialize, Serialize};

/// The link of all.
pub(crate) const LINK: &str = "rxe0";
/// Index of 127.0.0.1 in the GID table of a link on loopback.
const GID_INDEX: u8 = 1;
/// Where READs put what they bring.
const INBOX: u64 = 2 << 20;
/// How long a device may take to open while ferroced is not there.
const PATIENCE: Duration = Duration::from_secs(30);

/// An order to a worker, which answers each with a [`Done`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Open a device and stay.
    Open,
    /// Connect to the other worker.
    Connect(Introduction),
    /// Write to the other so many times, read it back and compare.
    Work { seed: u32, times: u32 },
    /// Open and close a device so many times.
    Visit { times: u32 },
}

/// The answer of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Done {
    Opened(Introduction),
    Done,
}

pub(crate) fn run() -> Result<()> {
    end_with_parent()?;
    let mut coordinator = Partner::on_stdin()?;
    let mut end = None;
    while let Some(order) = coordinator.hear_or_end()? {
        let done = match order {
            Order::Open => {
                let opened = open()?;
                let introduction = opened.introduction()?;
                end = Some(opened);
                Done::Opened(introduction)
            }
            Order::Connect(theirs) => {
                end.as_mut().context("not open")?.connect(&theirs)?;
                Done::Done
            }
            Order::Work { seed, times } => {
                let end = end.as_ref().context("not open")?;
                for n in 0..times {
                    work(end, seed.wrapping_add(n))?;
                }
                Done::Done
            }
            Order::Visit { times } => {
                for _ in 0..times {
                    drop(open()?);
                }
                Done::Done
            }
        };
        coordinator.say(&done)?;
    }
    Ok(())
}

fn work(end: &Endpoint, seed: u32) -> Result<()> {
    let length = 1 + seed.wrapping_mul(0x9e37_79b1) % 65_536;
    let bytes = pattern(seed, length);
    end.pages.put(0, &bytes)?;
    end.write(1, 0, length)?;
    end.succeed(1)?;
    let (remote_addr, rkey) = end.remote(0);
    end.post(2, SendOp::Read { remote_addr, rkey }, INBOX, length)?;
    end.succeed(1)?;
    let read = end.pages.get(INBOX, length)?;
    ensure!(read == bytes, "{length} bytes came back changed");
    Ok(())
}

/// Opens a device; a ferroced that is just not there is waited for.
#[allow(clippy::disallowed_methods, reason = "a process that is waited for")]
fn open() -> Result<Endpoint> {
    let until = Instant::now() + PATIENCE;
    loop {
        match Endpoint::open(LINK, Options::new(QpType::Rc, GID_INDEX)) {
            Ok(end) => return Ok(end),
            Err(error) if Instant::now() >= until => bail!("cannot open a device: {error:#}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}
