//! A ferroced for a measurement. It is the benchmark's own executable under another name,
//! with a runtime directory that is removed at the end.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Parser;
use ferroce_control::{
    LinkConfig, RUNTIME_DIR_VARIABLE, Request, Watch, find_daemon, runtime_dirs, temporary,
};
use ferroce_testnet::{deadline, namespace};

/// A ferroced process, killed when dropped.
#[derive(Debug)]
pub struct Ferroced(Child);

impl Ferroced {
    /// Starts ferroced in the network namespace `place`, or in the current one.
    ///
    /// # Errors
    /// If ferroced does not start.
    pub fn start(place: Option<OwnedFd>) -> Result<Ferroced> {
        let directory = runtime_dirs()?.remove(0);
        directory.create()?;
        let watch = Watch::new(directory.path())?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("ferroced")
            .arg("--foreground")
            .env("FERROCE_LOG", "error")
            .stdin(Stdio::null());
        if let Some(place) = place {
            namespace::place(&mut command, place);
        }
        let ferroced = Ferroced(command.spawn().context("ferroced")?);
        while find_daemon()?.is_none() {
            deadline::readable(&watch, "ferroced's control socket");
            watch.clear();
        }
        Ok(ferroced)
    }

    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    /// If it has failed.
    pub fn wait(mut self) -> Result<()> {
        match self.0.wait()? {
            status if status.success() => Ok(()),
            status => bail!("ferroced ended with {status}"),
        }
    }
}

impl Drop for Ferroced {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the main function of a benchmark whose processes are all this executable: ferroced if
/// it was started under that name, the role that `play` finds in the command line, or the
/// coordinator with a runtime directory of its own.
pub fn run_roles<C: Parser>(name: &str, play: impl FnOnce(&C) -> Option<Result<()>>) -> ExitCode {
    if let Some(code) = run_as_ferroced() {
        return code;
    }
    match play(&C::parse()).unwrap_or_else(|| run_coordinator(name)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs ferroced and returns its exit code, if this process was started under that name.
fn run_as_ferroced() -> Option<ExitCode> {
    let name = std::env::args_os().next().unwrap_or_default();
    let ferroced = Path::new(&name).file_name() == Some(OsStr::new("ferroced"));
    ferroced.then(ferroce_daemon::main)
}

/// Adds a link on a netdev.
///
/// # Errors
/// If ferroced refuses.
pub fn add_link(name: &str, netdev: &str) -> Result<()> {
    // These benchmarks measure UDP.
    add_link_with(name, netdev, false)
}

/// Adds a link of type rxe as [`add_link`] does, with a value of its option `local`.
pub fn add_link_with(name: &str, netdev: &str, local: bool) -> Result<()> {
    let mut daemon = find_daemon()?.context("no ferroced")?;
    daemon.perform(&Request::LinkAdd(LinkConfig {
        name: name.into(),
        kind: "rxe".into(),
        netdev: netdev.into(),
        mtu: None,
        crc: true,
        lids: false,
        patience: 0,
        speed: None,
        local,
        strict: String::new(),
        profile: String::new(),
    }))?;
    Ok(())
}

/// Runs this executable again as the coordinator of a measurement (`--role coordinator`),
/// with its own runtime directory.
fn run_coordinator(name: &str) -> Result<()> {
    let base = std::env::temp_dir();
    let directory = temporary::make(&base, &format!("ferroce-{name}-"));
    let directory =
        directory.with_context(|| format!("cannot make a directory in {}", base.display()))?;
    let status = Command::new("/proc/self/exe")
        .args(["--role", "coordinator"])
        .args(std::env::args_os().skip(1))
        .env(RUNTIME_DIR_VARIABLE, &directory)
        .status();
    let removed = std::fs::remove_dir_all(&directory);
    let status = status.context("cannot start this executable again")?;
    if !status.success() {
        bail!("the measurement ended with {status}");
    }
    removed.with_context(|| format!("cannot remove {}", directory.display()))
}

/// Ends this process when the one that started it ends.
///
/// # Errors
/// If the kernel refuses.
pub fn end_with_parent() -> Result<()> {
    let signal = Some(rustix::process::Signal::KILL);
    Ok(rustix::process::set_parent_process_death_signal(signal)?)
}
