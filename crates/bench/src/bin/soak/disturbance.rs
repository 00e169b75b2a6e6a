//! Disturbances that happen while programs work.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use ferroce_bench::{Ferroced, RoleProcess, add_link};
use ferroce_control::{Connection, Request, find_daemon};
use ferroce_testnet::{deadline, namespace};
use rustix::process::{Pid, Signal, kill_process};

use crate::worker::{Done, LINK, Order};

/// One kind of disturbance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disturbance {
    /// ferroced is killed, and another started.
    Kill,
    /// ferroced is killed several times without a pause.
    KillStorm,
    /// ferroced is stopped while a program opens a device.
    Stop,
    /// A program opens and closes devices.
    Visit,
    /// A program is killed while it does.
    KillVisitor,
    /// The disk is full, and ferroced is killed.
    FullDisk,
    /// A network namespace with a ferroced, a link and a program comes and goes.
    Namespace,
}

pub(crate) const ALL: [Disturbance; 7] = [
    Disturbance::Kill,
    Disturbance::KillStorm,
    Disturbance::Stop,
    Disturbance::Visit,
    Disturbance::KillVisitor,
    Disturbance::FullDisk,
    Disturbance::Namespace,
];

impl Disturbance {
    /// Does it. Afterwards `ferroced` runs.
    pub(crate) fn happen(self, ferroced: &mut Option<Ferroced>, runtime: &Path) -> Result<()> {
        match self {
            Disturbance::Kill => restart(ferroced),
            Disturbance::KillStorm => (0..5).try_for_each(|_| restart(ferroced)),
            Disturbance::Stop => stop(ferroced),
            Disturbance::Visit => visit(None, 10),
            Disturbance::KillVisitor => {
                let mut visitor = RoleProcess::start("worker", None)?;
                visitor.partner.say(&Order::Visit { times: 1 })?;
                let _done: Done = visitor.partner.hear()?;
                visitor.partner.say(&Order::Visit { times: 1000 })
            }
            Disturbance::FullDisk => full_disk(ferroced, runtime),
            Disturbance::Namespace => namespace(),
        }
    }
}

fn restart(ferroced: &mut Option<Ferroced>) -> Result<()> {
    drop(ferroced.take());
    *ferroced = Some(Ferroced::start(None)?);
    Ok(())
}

fn visit(place: Option<std::os::fd::OwnedFd>, times: u32) -> Result<()> {
    let mut visitor = RoleProcess::start("worker", place)?;
    visitor.request::<Done>(&Order::Visit { times }).map(drop)
}

fn stop(ferroced: &Option<Ferroced>) -> Result<()> {
    let pid = ferroced.as_ref().map(|f| f.pid().cast_signed());
    let pid = pid.and_then(Pid::from_raw).context("no ferroced")?;
    kill_process(pid, Signal::STOP)?;
    let mut visitor = RoleProcess::start("worker", None)?;
    visitor.partner.say(&Order::Visit { times: 1 })?;
    kill_process(pid, Signal::CONT)?;
    visitor.partner.hear::<Done>().map(drop)
}

fn full_disk(ferroced: &mut Option<Ferroced>, runtime: &Path) -> Result<()> {
    let ballast = runtime.join("ballast");
    let mut file = File::create(&ballast)?;
    for size in [4096, 1] {
        let block = vec![b'x'; size];
        while file.write_all(&block).is_ok() {}
    }
    visit(None, 2)?;
    restart(ferroced)?;
    visit(None, 2)?;
    fs::remove_file(ballast)?;
    Ok(())
}

fn namespace() -> Result<()> {
    let there = namespace::another()?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("ferroced")
        .args(["--foreground", "--exit-when-unused"])
        .env("FERROCE_LOG", "error")
        .stdin(Stdio::null());
    let inside = there.try_clone()?;
    let mut ferroced = namespace::place(&mut command, inside).spawn()?;
    drop(command);
    let connection = namespace::within(&there, || -> Result<Connection> {
        let mut first = None;
        deadline::until("ferroced listens", || {
            first = find_daemon().ok().flatten();
            first.is_some()
        });
        add_link(LINK, "lo")?;
        first.context("found above")
    })?;
    visit(Some(there), 3)?;
    let name = LINK.to_owned();
    let mut connection = connection?;
    connection.perform(&Request::LinkDelete { name, force: true })?;
    drop(connection);
    // Without a link it ends by itself.
    ferroced.wait()?;
    Ok(())
}
