//! `ferroce demo`: everything at once, on one machine, within a minute.
//!
//! The command makes a directory for a ferroced of its own and starts the stage:
//! a process that makes a private network and a link on its loopback interface,
//! and starts two more. One answers, the other asks, checks every byte,
//! measures and prints. All of them are this executable.

mod checks;
mod measure;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use ferroce_control::{
    Connection, LinkConfig, RUNTIME_DIR_VARIABLE, Request, find_or_start, temporary,
};
use ferroce_device::transport::QpType;
use ferroce_endpoint::{Endpoint, Introduction, Options, Partner};
use serde::{Deserialize, Serialize};

/// The link of the demo.
const LINK: &str = "rxe0";
/// Index of 127.0.0.1 in the GID table of a loopback link.
const GID_INDEX: u8 = 1;

/// Show that it works: two processes, every operation, every byte checked
#[derive(Debug, Args)]
#[command(
    long_about = "\
Sets up a private loopback link, starts two processes that talk RoCEv2 over it, checks every byte \
of SEND, WRITE, READ and atomics, and prints how fast they were. Needs no root and leaves nothing \
behind.",
    after_long_help = "\
EXAMPLES
    ferroce demo
    ferroce demo --quick"
)]
pub(crate) struct DemoArgs {
    /// Measure for a shorter time
    #[arg(long)]
    quick: bool,

    /// Check, and measure nothing
    #[arg(long, hide = true)]
    brief: bool,

    /// What one of the demo's own processes does
    #[arg(long, hide = true)]
    role: Option<Role>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    Stage,
    Asks,
    Answers,
}

impl DemoArgs {
    pub(crate) fn run(self) -> Result<()> {
        match self.role {
            None => perform(self.extent()),
            Some(Role::Stage) => stage(self.extent()),
            Some(Role::Asks) => {
                let (endpoint, mut partner) = meet()?;
                checks::ask(&endpoint, &mut partner)?;
                match self.brief {
                    true => Ok(()),
                    false => measure::ask(&endpoint, &mut partner, self.quick),
                }
            }
            Some(Role::Answers) => {
                let (endpoint, mut partner) = meet()?;
                checks::answer(&endpoint, &mut partner)?;
                match self.brief {
                    true => Ok(()),
                    false => measure::answer(&endpoint, &mut partner),
                }
            }
        }
    }
}

impl DemoArgs {
    fn extent(&self) -> Extent {
        match (self.brief, self.quick) {
            (true, _) => Some("--brief"),
            (_, true) => Some("--quick"),
            _ => None,
        }
    }
}

/// The option that says how much of it.
type Extent = Option<&'static str>;

/// What the two say to each other once connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Word {
    /// The receiver is ready, or memory is as agreed.
    Ready,
    /// What was sent has been checked.
    Checked,
    /// That was all.
    Done,
}

/// Opens a device and connects to the other process.
fn meet() -> Result<(Endpoint, Partner)> {
    let mut endpoint = Endpoint::open(LINK, Options::new(QpType::Rc, GID_INDEX))?;
    let mut partner = Partner::on_stdin()?;
    partner.say(&endpoint.introduction()?)?;
    let theirs: Introduction = partner.hear()?;
    endpoint.connect(&theirs)?;
    Ok((endpoint, partner))
}

/// Runs the stage with a runtime directory of its own, removed at the end.
fn perform(extent: Extent) -> Result<()> {
    let directory = make_directory()?;
    let program = std::env::current_exe().context("cannot find this executable")?;
    let mut stage = command(&program, "stage", extent);
    let status = stage.env(RUNTIME_DIR_VARIABLE, &directory).status();
    let removed = std::fs::remove_dir_all(&directory);
    succeeded("set the stage", status.context("cannot start a process")?)?;
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).context(format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

fn make_directory() -> Result<PathBuf> {
    let base = std::env::temp_dir();
    let made = temporary::make(&base, "ferroce-demo-");
    made.with_context(|| format!("cannot make a directory in {}", base.display()))
}

/// Sets everything up, and takes it down again.
fn stage(extent: Extent) -> Result<()> {
    match ferroce_net::enter_private_network() {
        Ok(()) => println!("A private network, with a link {LINK} on its loopback interface."),
        Err(error) => {
            println!("No private network here ({error}): a link {LINK} on the loopback interface.")
        }
    }
    let program = std::env::current_exe().context("cannot find this executable")?;
    let _daemon = start_daemon(&program)?;
    let (ours, theirs) = UnixStream::pair()?;
    let mut answers = command(&program, "answers", extent)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start a process")?;
    let asked = command(&program, "asks", extent)
        .stdin(OwnedFd::from(ours))
        .status()
        .context("cannot start a process")?;
    let answered = answers.wait()?;
    succeeded("asked", asked)?;
    succeeded("answered", answered)
}

fn command(program: &Path, role: &str, extent: Extent) -> Command {
    let mut command = Command::new(program);
    command.args(["demo", "--role", role]);
    command.args(extent);
    command
}

fn succeeded(what: &str, status: ExitStatus) -> Result<()> {
    ensure!(
        status.success(),
        "the process that {what} ended with {status}"
    );
    Ok(())
}

/// Ends ferroced when the demo is over.
struct Daemon {
    connection: Connection,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let name = LINK.to_string();
        let delete = Request::LinkDelete { name, force: true };
        let _gone_with_the_namespace = self.connection.perform(&delete);
        let _gone_with_the_link = self.connection.perform(&Request::Shutdown);
    }
}

fn start_daemon(program: &Path) -> Result<Daemon> {
    let mut connection = find_or_start(program.as_os_str())?;
    connection.perform(&Request::LinkAdd(LinkConfig {
        name: LINK.into(),
        kind: "rxe".into(),
        netdev: "lo".into(),
        mtu: None,
        crc: true,
        lids: false,
        patience: 0,
    }))?;
    Ok(Daemon { connection })
}
