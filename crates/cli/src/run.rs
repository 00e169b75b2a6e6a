//! `ferroce run` and `ferroce shell`: a program with our libraries and a link.
//!
//! The program takes the place of this process, so signals, exit code and
//! terminal are its own. If a link had to be made for it, or for one that runs
//! beside it, a guard stays behind: a process that waits until the program is
//! gone, however it went, and takes the link down if it was the last.

pub(crate) mod libraries;
mod program;
mod share;

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use ferroce_control::{Connection, Error, LinkConfig, LinkInfo, Request};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use self::share::Share;
use crate::daemon;

/// The exit codes of shells for a program that is not there, and for one that cannot run.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Run a program with Ferroce's libraries and a link
#[derive(Debug, Args)]
#[command(
    long_about = "\
Runs a program that finds Ferroce's libraries first, the link's files in /sys/class/infiniband \
and /dev/infiniband (through LD_PRELOAD), Ferroce's `rdma`, `rxe_cfg` and `rxe_init.sh` first on \
PATH, and, if there is none yet, a link rxe0 on the \
loopback interface or the one that --netdev names. The link is taken down when the program ends, \
however it ends. Signals and exit code are the program's own.",
    after_long_help = "\
ENVIRONMENT
    FERROCE_LIB_DIR   where the libraries are, if not beside this executable
    FERROCE_LOG       what the libraries write to standard error: `debug` tells in
                      words why each call was refused, `info` why work requests
                      failed; nothing by default

EXIT STATUS
    that of the program; 127 if there is no such program, 126 if it cannot be run, 1 if there is
    no link for it

EXAMPLES
    ferroce run -- ibv_devinfo
    FERROCE_LOG=debug ferroce run -- ibv_rc_pingpong -d rxe0
    ferroce run --netdev eth0 -- ib_send_bw
    ferroce run --no-link -- ibv_devices"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    link: LinkChoice,

    /// Give back the share that is standard input, of this file, when process PID ends
    #[arg(long, hide = true, num_args = 2, value_names = ["PID", "FILE"])]
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
    pub(crate) fn run(self) -> Result<ExitCode> {
        if let Some(guard) = self.guard {
            let [pid, file] = &guard[..] else {
                bail!("--guard wants a process and a file");
            };
            stand_guard(pid.parse()?, Path::new(file))?;
            return Ok(ExitCode::SUCCESS);
        }
        let Some((program, arguments)) = self.program.split_first() else {
            bail!("no program to run; try `ferroce run -- ibv_devinfo`");
        };
        start(&self.link, program, arguments)
    }
}

impl ShellArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let shell = std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
        start(&self.link, &shell, &[])
    }
}

/// Starts the program, which takes the place of this process. Returns only if that cannot
/// be.
fn start(link: &LinkChoice, program: &OsStr, arguments: &[OsString]) -> Result<ExitCode> {
    let mut command = Command::new(program);
    command.args(arguments);
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    let folder = libraries::folder();
    if let Some(folder) = &folder {
        path = libraries::search_path(folder)?;
    }
    let Some(file) = program::find(program, &path) else {
        let problem = match program.as_bytes().contains(&b'/') {
            true => "there is no such file",
            false => "there is no such program in any directory of PATH",
        };
        eprintln!("error: cannot run {}: {problem}", program.display());
        return Ok(NOT_FOUND.into());
    };
    if !link.no_link {
        provide_link(link.netdev.as_deref())?;
    }
    match folder {
        Some(folder) => {
            for (variable, value) in libraries::environment(&folder)? {
                command.env(variable, value);
            }
            for warning in program::warnings(&file, &path) {
                eprintln!("warning: {warning}");
            }
        }
        None => eprintln!(
            "note: no verbs libraries beside this executable: the program uses the system's"
        ),
    }
    let error = command.exec();
    // The file is there, so what is missing is the interpreter that it names.
    let (code, cause) = match error.kind() {
        ErrorKind::NotFound => (
            NOT_FOUND,
            "the interpreter that it names does not exist".into(),
        ),
        _ => (NOT_EXECUTABLE, error.to_string()),
    };
    eprintln!("error: cannot run {}: {cause}", program.display());
    Ok(code.into())
}

/// Sees to it that there is a link that fits, and leaves a guard with it if it is
/// not there for good.
fn provide_link(netdev: Option<&str>) -> Result<()> {
    let mut share = Share::take()?;
    let mut connection = daemon::connect_or_start()?;
    loop {
        let links = connection.links()?;
        let fits = |link: &&LinkInfo| netdev.is_none_or(|wanted| link.netdev == wanted);
        if let Some(link) = links.iter().find(fits) {
            match share.links()?.contains(&link.name) {
                true => break,
                // It stays.
                false => {
                    share.give_back(|links| still_used(&mut Some(connection), links))?;
                    return Ok(());
                }
            }
        }
        let name = (0..)
            .map(|number| format!("rxe{number}"))
            .find(|name| links.iter().all(|link| link.name != *name))
            .context("all names are taken")?;
        share.add(&name)?;
        if netdev.is_none() {
            // In a new network namespace `lo` is off. Where we may not switch it on, ferroced
            // refuses the link with the reason and the remedy.
            let _not_permitted = ferroce_net::set_loopback_up();
        }
        let added = connection.perform(&Request::LinkAdd(LinkConfig {
            name: name.clone(),
            kind: "rxe".into(),
            netdev: netdev.unwrap_or("lo").into(),
            mtu: None,
            crc: true,
            lids: false,
            patience: 0,
        }));
        match added {
            Ok(()) => break,
            // Another run was faster: theirs is as good.
            Err(_) if connection.links()?.iter().any(|link| link.name == name) => {}
            Err(error) => {
                share.give_back(|links| still_used(&mut Some(connection), links))?;
                return Err(error.into());
            }
        }
    }
    leave_guard(&share).context("cannot start a process that takes the link down")
}

fn leave_guard(share: &Share) -> Result<()> {
    let (file, path) = share.hand_over()?;
    let pid = getpid().as_raw_nonzero().to_string();
    Command::new(daemon::OURSELVES)
        .args([OsStr::new("run"), OsStr::new("--guard"), OsStr::new(&pid)])
        .arg(path)
        .stdin(file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    Ok(())
}

/// Waits for a process to end, then gives its share back; if that was the last, the
/// links go as soon as nobody uses them.
fn stand_guard(pid: i32, file: &Path) -> Result<()> {
    let mut share = Share::inherit(std::io::stdin(), file)?;
    let pid = Pid::from_raw(pid).context("no such process")?;
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        while poll(&mut fds, None).is_err() {}
    }
    loop {
        // ferroced ends with its last client, and then clears up: after us.
        let connection = daemon::connect();
        let done = connection
            .and_then(|mut connection| share.give_back(|links| still_used(&mut connection, links)));
        match done {
            Ok(true) => return Ok(()),
            // The program's own children still use them.
            #[allow(clippy::disallowed_methods)] // nobody waits for a guard
            Ok(false) => std::thread::sleep(Duration::from_millis(500)),
            // ferroced is stopped, and goes on one day. The attempt has taken its time.
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

fn is_timeout(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Timeout { .. }))
}

/// Takes links down; returns those that are in use.
fn still_used(connection: &mut Option<Connection>, links: Vec<String>) -> Result<Vec<String>> {
    let Some(connection) = connection else {
        return Ok(Vec::new()); // gone with their ferroced
    };
    let mut left = Vec::new();
    for link in links {
        if delete(connection, &link).is_err()
            && connection.links()?.iter().any(|other| other.name == link)
        {
            left.push(link);
        }
    }
    Ok(left)
}

fn delete(connection: &mut Connection, link: &str) -> Result<()> {
    let name = link.to_string();
    Ok(connection.perform(&Request::LinkDelete { name, force: false })?)
}
