//! `ferroce run` and `ferroce shell`: a program with our libraries and a link.
//!
//! The program takes the place of this process, so signals, exit code and
//! terminal are its own. If a link had to be made for it, a guard stays behind:
//! a process that waits until the program is gone, however it went, and takes
//! the link down again.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use ferroce_control::{Connection, LinkConfig, Request};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use crate::daemon;

/// Run a program with Ferroce's libraries and a link
#[derive(Debug, Args)]
#[command(
    long_about = "\
Runs a program that finds Ferroce's libraries first and, if there is none yet, a link rxe0 on the \
loopback interface or the one that --netdev names. The link is taken down when the program ends, \
however it ends. Signals and exit code are the program's own.",
    after_long_help = "\
ENVIRONMENT
    FERROCE_LIB_DIR   where the libraries are, if not beside this executable

EXAMPLES
    ferroce run -- ibv_devinfo
    ferroce run --netdev eth0 -- ib_send_bw
    ferroce run --no-link -- ibv_devices"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    link: LinkChoice,

    /// Take down this link when process PID ends
    #[arg(long, hide = true, num_args = 2, value_names = ["PID", "LINK"])]
    guard: Option<Vec<String>>,

    /// The program and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// Run a shell with Ferroce's libraries and a link
#[derive(Debug, Args)]
#[command(long_about = "\
As `ferroce run`, with your shell ($SHELL) as the program: what you start from it finds the \
libraries and the link.")]
pub(crate) struct ShellArgs {
    #[command(flatten)]
    link: LinkChoice,
}

#[derive(Debug, Args)]
struct LinkChoice {
    /// The netdev for a link, if one has to be made
    #[arg(long, value_name = "IF")]
    netdev: Option<String>,

    /// Make no link
    #[arg(long, conflicts_with = "netdev")]
    no_link: bool,
}

impl RunArgs {
    pub(crate) fn run(self) -> Result<()> {
        if let Some(guard) = self.guard {
            let [pid, link] = &guard[..] else {
                bail!("--guard wants a process and a link");
            };
            return stand_guard(pid.parse()?, link);
        }
        let Some((program, arguments)) = self.program.split_first() else {
            bail!("no program to run; try `ferroce run -- ibv_devinfo`");
        };
        start(&self.link, program, arguments)
    }
}

impl ShellArgs {
    pub(crate) fn run(self) -> Result<()> {
        let shell = std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
        start(&self.link, &shell, &[])
    }
}

fn start(link: &LinkChoice, program: &OsStr, arguments: &[OsString]) -> Result<()> {
    if !link.no_link {
        provide_link(link.netdev.as_deref())?;
    }
    let mut command = Command::new(program);
    command.args(arguments);
    match library_dir() {
        Some(dir) => {
            command.env("LD_LIBRARY_PATH", with_first(dir, "LD_LIBRARY_PATH")?);
        }
        None => eprintln!(
            "note: no verbs libraries beside this executable: the program uses the system's"
        ),
    }
    let error = command.exec();
    Err(anyhow!("cannot run {}: {error}", program.display()))
}

/// Makes a link if there is none that fits, and a guard that takes it down.
fn provide_link(netdev: Option<&str>) -> Result<()> {
    let mut connection = daemon::connect_or_start()?;
    let links = connection.links()?;
    let fits = |wanted: &str| links.iter().any(|link| link.netdev == wanted);
    if netdev.map_or(!links.is_empty(), fits) {
        return Ok(());
    }
    let name = (0..)
        .map(|number| format!("rxe{number}"))
        .find(|name| links.iter().all(|link| link.name != *name))
        .context("all names are taken")?;
    connection.perform(&Request::LinkAdd(LinkConfig {
        name: name.clone(),
        kind: "rxe".into(),
        netdev: netdev.unwrap_or("lo").into(),
        mtu: None,
        crc: true,
    }))?;
    let guarded = Command::new(daemon::OURSELVES)
        .args([
            "run",
            "--guard",
            &getpid().as_raw_nonzero().to_string(),
            &name,
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    if let Err(error) = guarded {
        delete(&mut connection, &name)?;
        bail!("cannot start a process: {error}");
    }
    Ok(())
}

/// Waits for a process to end, then takes its link down as soon as nobody uses it.
fn stand_guard(pid: i32, link: &str) -> Result<()> {
    let pid = Pid::from_raw(pid).context("no such process")?;
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        while poll(&mut fds, None).is_err() {}
    }
    loop {
        let Some(mut connection) = daemon::connect()? else {
            return Ok(()); // gone with its ferroced
        };
        let links = connection.links()?;
        if links.iter().all(|other| other.name != link) || delete(&mut connection, link).is_ok() {
            return Ok(());
        }
        drop(connection);
        // The program's own children still use it.
        #[allow(clippy::disallowed_methods)] // nobody waits for a guard
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn delete(connection: &mut Connection, link: &str) -> Result<()> {
    let name = link.to_string();
    Ok(connection.perform(&Request::LinkDelete { name, force: false })?)
}

/// Where libibverbs.so.1 of ours is.
fn library_dir() -> Option<PathBuf> {
    let chosen = std::env::var_os("FERROCE_LIB_DIR").map(PathBuf::from);
    let beside = || {
        let bin = std::env::current_exe().ok()?.parent()?.to_owned();
        Some([bin.join("../lib/ferroce"), bin.join("lib")])
    };
    let candidates = chosen.into_iter().chain(beside().into_iter().flatten());
    candidates
        .into_iter()
        .find(|dir| dir.join("libibverbs.so.1").exists())
}

/// A list of directories with one more in front.
fn with_first(dir: PathBuf, variable: &str) -> Result<OsString> {
    let before = std::env::var_os(variable).unwrap_or_default();
    let rest = std::env::split_paths(&before).filter(|path| !path.as_os_str().is_empty());
    std::env::join_paths(std::iter::once(dir).chain(rest))
        .context("a directory's name has a colon in it")
}
