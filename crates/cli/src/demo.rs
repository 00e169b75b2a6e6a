//! `ferroce demo`: transfers, checks and measures data on one machine, within a minute.
//!
//! The command creates a runtime directory for a ferroced of its own and starts a process,
//! the stage. The stage creates a private network namespace with a link on its loopback
//! interface and starts a server and a client. The client checks every byte, measures and
//! prints. All processes run this executable.

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
/// Index of 127.0.0.1 in the GID table of a link on loopback.
const GID_INDEX: u8 = 1;

/// Transfer data between two processes, check every byte and measure
#[derive(Debug, Args)]
#[command(
    long_about = "\
Adds a private link on loopback, transfers data between two processes with SEND, WRITE, READ and \
atomics, checks every byte, and prints throughput and latency. It needs no root and leaves nothing \
behind. An exit status of 0 means that RDMA works on this machine.",
    after_long_help = "\
EXAMPLES
    ferroce demo
    ferroce demo --quick"
)]
pub(crate) struct DemoArgs {
    /// Measure for a shorter time
    #[arg(long)]
    quick: bool,

    /// Check only, and skip the measurement
    #[arg(long, hide = true)]
    brief: bool,

    /// Role of a process that the demo starts
    #[arg(long, hide = true)]
    role: Option<Role>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    Stage,
    Client,
    Server,
}

impl DemoArgs {
    pub(crate) fn run(self) -> Result<()> {
        match self.role {
            None => perform(self.extent()),
            Some(Role::Stage) => stage(self.extent()),
            Some(Role::Client) => {
                let (endpoint, mut partner) = connect()?;
                checks::client(&endpoint, &mut partner)?;
                match self.brief {
                    true => Ok(()),
                    false => measure::client(&endpoint, &mut partner, self.quick),
                }
            }
            Some(Role::Server) => {
                let (endpoint, mut partner) = connect()?;
                checks::server(&endpoint, &mut partner)?;
                match self.brief {
                    true => Ok(()),
                    false => measure::server(&endpoint, &mut partner),
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

/// The option that shortens the demo, passed on to its processes.
type Extent = Option<&'static str>;

/// A message between client and server that keeps them in step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Step {
    /// The receive is posted, or memory has the agreed contents.
    Ready,
    /// The received data was checked.
    Checked,
    /// The measurement is complete.
    Done,
}

/// Opens a device and connects to the other process.
fn connect() -> Result<(Endpoint, Partner)> {
    let mut endpoint = Endpoint::open(LINK, Options::new(QpType::Rc, GID_INDEX))?;
    let mut partner = Partner::on_stdin()?;
    partner.say(&endpoint.introduction()?)?;
    let theirs: Introduction = partner.hear()?;
    endpoint.connect(&theirs)?;
    Ok((endpoint, partner))
}

/// Runs the stage with a runtime directory of its own, and removes that at the end.
fn perform(extent: Extent) -> Result<()> {
    let directory = make_directory()?;
    let program = std::env::current_exe().context("cannot find this executable")?;
    let mut stage = command(&program, "stage", extent);
    let status = stage.env(RUNTIME_DIR_VARIABLE, &directory).status();
    let removed = std::fs::remove_dir_all(&directory);
    succeeded("stage", status.context("cannot start a process")?)?;
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

/// Adds the link, runs server and client, and deletes the link.
fn stage(extent: Extent) -> Result<()> {
    match ferroce_net::enter_private_network() {
        Ok(()) => println!("Link {LINK} on the loopback interface of a private network namespace:"),
        Err(error) => println!(
            "Link {LINK} on the loopback interface (no private network namespace: {error}):"
        ),
    }
    let program = std::env::current_exe().context("cannot find this executable")?;
    let _daemon = start_daemon(&program)?;
    let (ours, theirs) = UnixStream::pair()?;
    let mut server = command(&program, "server", extent)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start a process")?;
    let client = command(&program, "client", extent)
        .stdin(OwnedFd::from(ours))
        .status()
        .context("cannot start a process")?;
    let server = server.wait()?;
    succeeded("client", client)?;
    succeeded("server", server)
}

fn command(program: &Path, role: &str, extent: Extent) -> Command {
    let mut command = Command::new(program);
    command.args(["demo", "--role", role]);
    command.args(extent);
    command
}

/// Fails if a process of the demo failed. Its own error message is already printed.
fn succeeded(role: &str, status: ExitStatus) -> Result<()> {
    ensure!(
        status.success(),
        "the demo's {role} process failed ({status})"
    );
    Ok(())
}

/// The demo's ferroced. Dropping it deletes the link and ends ferroced.
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
        speed: None,
        local: true,
        strict: String::new(),
        profile: String::new(),
    }))?;
    Ok(Daemon { connection })
}
