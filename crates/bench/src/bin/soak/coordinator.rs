//! Sets everything up, disturbs it, and looks what is left.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ferroce_bench::{Ferroced, RoleProcess, add_link, end_with_parent};
use ferroce_control::{RUNTIME_DIR_VARIABLE, Request, find_daemon};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::thread::UnshareFlags;

use crate::Cli;
use crate::disturbance::{ALL, Disturbance};
use crate::traces::{Traces, nothing_is_left};
use crate::worker::{Done, LINK, Order};

/// Rounds of writing and reading for each disturbance.
const ROUNDS: u32 = 300;
/// Visits after the last disturbance, for which one ferroced must not gain anything.
const LAST_VISITS: u32 = 100;

pub(crate) fn run(cli: &Cli) -> Result<()> {
    end_with_parent()?;
    let runtime = small_disk()?;
    ferroce_net::enter_private_network().context("a private network")?;
    let own = Traces::of(std::process::id())?;
    let seed = match cli.seed {
        Some(seed) => seed,
        None => random()?,
    };
    let happened = disturb(cli, seed, &runtime);
    let happened = happened.with_context(|| format!("with --seed {seed}"))?;
    nothing_is_left(&runtime)?;
    own.check("the coordinator", std::process::id())?;
    let total: u32 = happened.iter().map(|(_, count)| count).sum();
    println!("{total} disturbances (seed {seed}), nothing lost and nothing left behind:");
    for (disturbance, count) in happened {
        println!("  {disturbance:?}: {count}");
    }
    Ok(())
}

fn disturb(cli: &Cli, seed: u64, runtime: &std::path::Path) -> Result<Vec<(Disturbance, u32)>> {
    let mut ferroced = Some(Ferroced::start(None)?);
    add_link(LINK, "lo")?;
    let mut workers = [
        RoleProcess::start("worker", None)?,
        RoleProcess::start("worker", None)?,
    ];
    connect(&mut workers)?;
    // Made once is made by then.
    work(&mut workers, 0, || Ok(()))?;
    let before = [Traces::of(workers[0].pid())?, Traces::of(workers[1].pid())?];
    let mut counts = ALL.map(|disturbance| (disturbance, 0));
    let mut random = seed;
    let end = now() + Duration::from_secs_f64(cli.minutes * 60.0);
    while now() < end {
        random = random
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        let chosen = (random >> 33) as usize % ALL.len();
        let (disturbance, count) = &mut counts[chosen];
        let happens = || disturbance.happen(&mut ferroced, runtime);
        work(&mut workers, random as u32, happens).with_context(|| format!("{disturbance:?}"))?;
        *count += 1;
    }
    // The workers may still be on their way back after a restart.
    work(&mut workers, 1, || Ok(()))?;
    for (worker, before) in workers.iter().zip(before) {
        before.check("a worker", worker.pid())?;
    }
    let daemon = ferroced.as_ref().context("it runs")?.pid();
    let mut visitor = RoleProcess::start("worker", None)?;
    visitor.request::<Done>(&Order::Visit { times: 1 })?;
    let before = Traces::of_settled_ferroced(daemon)?;
    visitor.request::<Done>(&Order::Visit { times: LAST_VISITS })?;
    before.check_ferroced(daemon)?;
    drop((visitor, workers));
    stop(ferroced)?;
    Ok(counts.into())
}

fn connect(workers: &mut [RoleProcess; 2]) -> Result<()> {
    let mut introductions = Vec::new();
    for worker in workers.iter_mut() {
        match worker.request(&Order::Open)? {
            Done::Opened(introduction) => introductions.push(introduction),
            other => bail!("unexpected: {other:?}"),
        }
    }
    for (worker, theirs) in workers.iter_mut().zip(introductions.iter().rev()) {
        worker.request::<Done>(&Order::Connect(*theirs))?;
    }
    Ok(())
}

/// Has the first worker write to the second and read back, while something happens.
fn work(
    workers: &mut [RoleProcess; 2],
    seed: u32,
    happens: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let times = ROUNDS;
    workers[0].partner.say(&Order::Work { seed, times })?;
    happens()?;
    workers[0].partner.hear::<Done>().map(drop)
}

/// Deletes the link, and has ferroced end.
fn stop(ferroced: Option<Ferroced>) -> Result<()> {
    let mut daemon = find_daemon()?.context("no ferroced")?;
    let name = LINK.to_owned();
    daemon.perform(&Request::LinkDelete { name, force: true })?;
    daemon.perform(&Request::Shutdown)?;
    drop(daemon);
    ferroced.context("it runs")?.wait()
}

/// Mounts a small file system on the runtime directory, seen by this process and those
/// that it starts.
fn small_disk() -> Result<PathBuf> {
    let runtime = std::env::var_os(RUNTIME_DIR_VARIABLE).context("a runtime directory")?;
    ensure!(
        rustix::process::geteuid().is_root(),
        "a disk to fill needs root; `unshare --map-root-user cargo xtask soak` will do"
    );
    // SAFETY: this process has one thread.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    let mount = |arguments: &[&str], target: &std::ffi::OsStr| -> Result<()> {
        let status = Command::new("mount").args(arguments).arg(target).status();
        ensure!(status?.success(), "cannot mount a small disk");
        Ok(())
    };
    mount(&["--make-rprivate"], "/".as_ref())?;
    let options = ["-t", "tmpfs", "-o", "size=2m,mode=755", "tmpfs"];
    mount(&options, &runtime)?;
    Ok(runtime.into())
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    let got = getrandom(&mut bytes, GetRandomFlags::empty())?;
    ensure!(got == bytes.len(), "too little randomness");
    Ok(u64::from_ne_bytes(bytes) >> 32)
}

#[allow(clippy::disallowed_methods, reason = "how long to go on")]
fn now() -> Instant {
    Instant::now()
}
