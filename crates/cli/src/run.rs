//! `ferroce run` and `ferroce shell`: run a program with Ferroce's libraries and a link.
//!
//! The program replaces this process (`exec`), so signals, exit status and terminal are its
//! own. If `ferroce run` added the link, a guard process stays behind. The guard waits until
//! the program has ended, in whatever way, and deletes the link if no other run shares it.

mod faults;
pub(crate) mod libraries;
mod program;
mod share;
mod strict;
mod sweep;
mod variables;

use std::env::VarError;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use ferroce_control::path::{QUIET_VARIABLE, TYPE_VARIABLE};
use ferroce_control::{Connection, Error, LinkConfig, LinkInfo, Request, wait_for};
use ferroce_faults::Plan;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use self::faults::{FaultOptions, RunCounts};
use self::share::Share;
use self::strict::StrictOptions;
use self::sweep::SweepOptions;
use crate::daemon;

/// Exit status of shells for a program that does not exist.
const NOT_FOUND: u8 = 127;
/// Exit status of shells for a program that cannot be executed.
const NOT_EXECUTABLE: u8 = 126;

/// Run a program with Ferroce's libraries and a link
#[derive(Debug, Args)]
#[command(
    long_about = "\
Runs an unmodified RDMA program with Ferroce. The program and its children load Ferroce's \
libibverbs and librdmacm (LD_LIBRARY_PATH), see links in /sys/class/infiniband and \
/dev/infiniband (LD_PRELOAD), and find Ferroce's `rdma`, `rxe_cfg` and `rxe_init.sh` first on PATH. \
Copies of libibverbs and librdmacm that a program brings along under other names, as Python wheels \
do, are replaced too (LD_PRELOAD). NCCL_GIN_TYPE=2 is set unless you set it: NCCL 2.28 crashes \
without it.

A line on standard error warns if a program uses a copy of libibverbs that Ferroce cannot replace, \
such as one linked statically, and tells at its end if it prepared a device and then sent and \
received nothing over it. --quiet leaves these lines out.

If no link exists, this command adds rxe0 on the loopback interface, or on the netdev that \
--netdev names, and deletes it after the program has ended. With --type siw it adds siw0, an iWARP \
link, and the program sees no links of another type. Signals and exit status are those of \
the program.",
    after_long_help = "\
ENVIRONMENT
    FERROCE_LIB_DIR   directory of the libraries, if not beside this executable
    FERROCE_QUIET     if set: as --quiet
    FERROCE_LOG       messages of the libraries on standard error: `debug` prints the
                      reason for each refused call, `warn` the reason for each failed
                      work request; none by default
    FERROCE_RECORDER  `0`: do not record the last packets of each queue pair, which
                      `ferroce explain` shows; `1`: those on the local wire, too
    FERROCE_STRICT    `on`: as --strict, `error`: as --strict=error, `off`: neither, even
                      on a link with `strict on`
    FERROCE_PROFILE   as --profile; `off`: none, even on a link with a profile
    FERROCE_WIRE      `udp` or `tcp`: exchange packets with programs on this host over
                      the network instead of shared memory
    FERROCE_TYPE      `rxe` or `siw`: as --type, but no link is added for it
    FERROCE_SHARDS    number of shards (slots and threads) of a process on a link, 1 to 60

FAULTS
    loss 1% [burst N | gilbert P% R% [BAD% [GOOD%]]], duplicate 1%, reorder 1% [by N],
    corrupt 1% [undetected], delay 2ms [jitter 1ms], rate 100mbit [queue 50ms], partition,
    blackhole BYTES, slow completions 5ms, rnr 10%, nak access|invalid|operation 1%,
    drop|duplicate|corrupt|delay|nak ... the 3rd ACK, every 10th packet, the 2nd to 5th SEND,
    reject the 1st REQ, qp error, cq overrun, srq limit, port down, gid removed, device fatal,
    reset the 3rd SEND (links of type siw), fail VERB [N] ERRNO
    of packets: in, out, qp N (their destination), peer ADDRESS, rc, uc, ud, xrc, and a kind:
      packet, request, ACK, NAK, SEND, WRITE, READ, RESPONSE, ATOMIC, CNP, an opcode such as
      SEND_ONLY, or of the connection manager: CM, REQ, REP, RTU, REJ, MRA, DREQ, DREP
    at times: at 2s, for 500ms, after N packets, times N
    seed N: the same seed is the same weather for the same packets
    Each packet meets the faults once: when it is sent, or when it is received from a program
    without these faults. All processes of the run count together. docs/DEBUGGING.md has more.

STRICT
    --strict warns of mistakes that hardware punishes and this device forgives: LIDs, wrong
    GID indexes, a path MTU above the port's, extreme timeouts, too much inline data, buffers
    that change before their completion, regions deregistered too early, completion queues
    and send queues that are too small, receives without room for the GRH, unaligned atomics,
    queue pairs in forked children. Each warning names the place in the program, what hardware
    does, and a remedy, and is printed once for each place. Data arrives in another order than
    on the wire, to disturb programs that poll memory. docs/DEBUGGING.md has more.

SWEEP
    --sweep runs the test without faults to count its calls and packets, and then once with
    each call of a verb failing, once with each of the first packets lost, and once with each
    message of the connection manager lost. A test that fails when a verb fails is right; one
    that hangs, crashes, or passes with another output is a finding, and so is one that fails
    because of a lost packet. Each finding comes with the command that repeats it.

EXIT STATUS
    that of the program; with --sweep 1 if there are findings; 127 if the program does not exist, 126 if it cannot be executed, 1 if no
    link could be added

EXAMPLES
    ferroce run -- ibv_devinfo
    FERROCE_LOG=debug ferroce run -- ibv_rc_pingpong -d rxe0
    ferroce run --netdev eth0 -- ib_send_bw
    ferroce run --no-link -- ibv_devices
    ferroce run --type siw -- rping -s
    ferroce run --quiet -- python3 train.py
    ferroce run --faults 'drop the 3rd ACK; delay 2ms; fail ibv_reg_mr 2 ENOMEM' -- ./test
    ferroce run --scenario bad-cable.toml -- ./test
    ferroce run --chaos 7 -- ./test
    ferroce run --sweep -- ./test
    ferroce run --strict -- ./test
    ferroce run --strict=error --profile mlx5 -- ./test"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    faults: FaultOptions,

    #[command(flatten)]
    sweep: SweepOptions,

    /// Release the share (FILE, open as standard input) when process PID ends
    #[arg(long, hide = true, num_args = 2, value_names = ["PID", "FILE"])]
    guard: Option<Vec<String>>,

    /// Start the guard, with the same values, as a process without a parent
    #[arg(long, hide = true, num_args = 2, value_names = ["PID", "FILE"])]
    start_guard: Option<Vec<OsString>>,

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
#[command(
    long_about = "\
Runs your shell ($SHELL) as `ferroce run` runs a program: every program that you start from this \
shell loads Ferroce's libraries and finds the link. `exit` ends it.",
    after_long_help = "\
EXAMPLES
    ferroce shell
    ferroce shell --netdev eth0"
)]
pub(crate) struct ShellArgs {
    #[command(flatten)]
    options: Options,
}

/// Options of both commands.
#[derive(Debug, Args)]
struct Options {
    /// Netdev of the link, if one has to be added
    #[arg(long, value_name = "IF")]
    netdev: Option<String>,

    /// Type of the link, rxe or siw: the program sees only links of this type
    #[arg(long = "type", value_name = "TYPE", value_parser = ["rxe", "siw"])]
    kind: Option<String>,

    /// Do not add a link
    #[arg(long, conflicts_with = "netdev")]
    no_link: bool,

    #[command(flatten)]
    strict: StrictOptions,

    /// Do not warn about a program that uses another libibverbs or sends nothing
    #[arg(long, short)]
    quiet: bool,
}

impl Options {
    /// True if warnings and notes are unwanted, here or in a surrounding `ferroce run`.
    fn is_quiet(&self) -> bool {
        self.quiet || std::env::var_os(QUIET_VARIABLE).is_some()
    }
}

impl RunArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if let Some(guard) = self.guard {
            let [pid, file] = &guard[..] else {
                bail!("--guard needs a process number and a file");
            };
            run_guard(pid.parse()?, Path::new(file))?;
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(values) = self.start_guard {
            guard_command("--guard", &values).process_group(0).spawn()?;
            return Ok(ExitCode::SUCCESS);
        }
        let Some((program, arguments)) = self.program.split_first() else {
            bail!("the program to run is missing; for example: `ferroce run -- ibv_devinfo`");
        };
        if self.sweep.sweep {
            if !self.options.no_link {
                provide_link(self.options.netdev.as_deref(), self.options.kind.as_deref())?;
            }
            return self.sweep.run(&self.program, || {
                let command = prepare(&self.options, program, arguments)?;
                command.with_context(|| format!("cannot run {}", program.display()))
            });
        }
        let plan = self.faults.plan()?;
        if let (Some(plan), Some(kind)) = (&plan, self.options.kind.as_deref()) {
            let checked = match kind {
                "siw" => plan.check_for_streams(),
                _ => plan.check_for_packets(),
            };
            checked.map_err(anyhow::Error::msg)?;
        }
        start(&self.options, program, arguments, plan)
    }
}

impl ShellArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let shell = std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
        start(&self.options, &shell, &[], None)
    }
}

/// Replaces this process with the program. Returns only if that fails.
fn start(
    options: &Options,
    program: &OsStr,
    arguments: &[OsString],
    faults: Option<Plan>,
) -> Result<ExitCode> {
    let Some(mut command) = prepare(options, program, arguments)? else {
        return Ok(NOT_FOUND.into());
    };
    if !options.no_link {
        provide_link(options.netdev.as_deref(), options.kind.as_deref())?;
    }
    if let Some(plan) = faults {
        let counts = RunCounts::new()?;
        command.envs(counts.environment(&plan.to_string()));
        counts.keep();
    }
    let error = command.exec();
    // The file exists, so NotFound means that its interpreter does not.
    let (code, cause) = match error.kind() {
        ErrorKind::NotFound => (
            NOT_FOUND,
            "its interpreter (the first line of a script, or the dynamic linker) does not exist"
                .into(),
        ),
        _ => (NOT_EXECUTABLE, error.to_string()),
    };
    eprintln!("error: cannot run {}: {cause}", program.display());
    Ok(code.into())
}

/// Returns the command that runs the program; none, with a message, if it does not exist.
fn prepare(options: &Options, program: &OsStr, arguments: &[OsString]) -> Result<Option<Command>> {
    variables::check(|name| match (name, &options.kind) {
        // The option replaces the variable.
        (TYPE_VARIABLE, Some(_)) => Err(VarError::NotPresent),
        _ => std::env::var(name),
    })?;
    let mut command = Command::new(program);
    command.args(arguments);
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    let folder = libraries::folder();
    if let Some(folder) = &folder {
        path = libraries::search_path(folder)?;
    }
    let Some(file) = program::find(program, &path) else {
        let problem = match program.as_bytes().contains(&b'/') {
            true => "the file does not exist",
            false => "no directory of PATH has a program of that name",
        };
        eprintln!("error: cannot run {}: {problem}", program.display());
        return Ok(None);
    };
    if let Some(kind) = &options.kind {
        command.env(TYPE_VARIABLE, kind);
    }
    match folder {
        Some(folder) => {
            let without_preload = program::ends_with_preload(&file, &path);
            for (variable, value) in libraries::environment(&folder)? {
                if variable != libraries::PRELOAD || !without_preload {
                    command.env(variable, value);
                }
            }
            command.envs(options.strict.environment());
            if options.is_quiet() {
                command.env(QUIET_VARIABLE, "1");
            } else {
                for warning in program::warnings(&file, &path) {
                    eprintln!("warning: {warning}");
                }
            }
        }
        None if options.is_quiet() => {}
        None => eprintln!(
            "note: Ferroce's libraries are not beside this executable, so the program uses those \
             of the system and sees no link of Ferroce; FERROCE_LIB_DIR names their directory"
        ),
    }
    Ok(Some(command))
}

/// Ensures that a suitable link exists. Starts a guard for a link that a run added.
fn provide_link(netdev: Option<&str>, kind: Option<&str>) -> Result<()> {
    let new_kind = kind.unwrap_or("rxe");
    let mut share = Share::take()?;
    let mut connection = daemon::connect_or_start()?;
    loop {
        let links = connection.links()?;
        let fits = |link: &&LinkInfo| {
            netdev.is_none_or(|wanted| link.netdev == wanted)
                && kind.is_none_or(|wanted| link.kind == wanted)
        };
        if let Some(link) = links.iter().find(fits) {
            match share.links()?.contains(&link.name) {
                true => break,
                // A user added this link: it stays after the program has ended.
                false => {
                    share.give_back(|links| still_used(&mut Some(connection), links))?;
                    return Ok(());
                }
            }
        }
        let name = (0..)
            .map(|number| format!("{new_kind}{number}"))
            .find(|name| links.iter().all(|link| link.name != *name))
            .with_context(|| format!("all link names {new_kind}0, {new_kind}1, ... are taken"))?;
        share.add(&name)?;
        if netdev.is_none() {
            // In a new network namespace `lo` is down. If setting it up is not permitted,
            // ferroced refuses the link and names the cause and the remedy.
            let _not_permitted = ferroce_net::set_loopback_up();
        }
        let added = connection.perform(&Request::LinkAdd(LinkConfig {
            name: name.clone(),
            kind: new_kind.into(),
            netdev: netdev.unwrap_or("lo").into(),
            mtu: None,
            crc: new_kind != "siw",
            lids: false,
            patience: 0,
            speed: None,
            local: true,
            strict: String::new(),
            profile: String::new(),
        }));
        match added {
            Ok(()) => break,
            // Another run has added a link of this name meanwhile: share it.
            Err(_) if connection.links()?.iter().any(|link| link.name == name) => {}
            Err(error) => {
                share.give_back(|links| still_used(&mut Some(connection), links))?;
                return Err(error.into());
            }
        }
    }
    start_guard(&share).context("cannot start the process that deletes the link afterwards")
}

/// Starts the guard process. A process in between starts it and ends, so that the guard is no child
/// of the program that replaces this process. A program that waits for all of its children, as
/// strace does, would wait for the guard, and the guard for the program.
fn start_guard(share: &Share) -> Result<()> {
    let (file, path) = share.hand_over()?;
    let pid = getpid().as_raw_nonzero().to_string();
    let values = [OsString::from(pid), path.into()];
    let mut child = guard_command("--start-guard", &values)
        .stdin(file)
        .spawn()?;
    match wait_for(&mut child)? {
        Some(status) if !status.success() => {
            bail!("the process that starts it ended: {status}");
        }
        _ => Ok(()),
    }
}

/// Returns the command for a process with a share, which is its standard input.
fn guard_command(option: &str, values: &[OsString]) -> Command {
    let mut command = Command::new(daemon::THIS_EXECUTABLE);
    command
        .args(["run", option])
        .args(values)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Waits for a process to end, then releases its share. The guard of the last share deletes
/// the links as soon as no program uses them.
fn run_guard(pid: i32, file: &Path) -> Result<()> {
    let mut share = Share::inherit(std::io::stdin(), file)?;
    let pid = Pid::from_raw(pid).context("0 is not a process number")?;
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        while poll(&mut fds, None).is_err() {}
    }
    loop {
        // Stay connected while the share is released: ferroced removes its directory after
        // its last client has left.
        let connection = daemon::connect();
        let done = connection
            .and_then(|mut connection| share.give_back(|links| still_used(&mut connection, links)));
        match done {
            Ok(true) => return Ok(()),
            // Children of the program still use the links.
            #[allow(clippy::disallowed_methods)] // no process waits for the guard
            Ok(false) => std::thread::sleep(Duration::from_millis(500)),
            // ferroced is stopped (SIGSTOP). Try again: each attempt takes eight seconds.
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

fn is_timeout(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Timeout { .. }))
}

/// Deletes links. Returns those that are still in use.
fn still_used(connection: &mut Option<Connection>, links: Vec<String>) -> Result<Vec<String>> {
    let Some(connection) = connection else {
        return Ok(Vec::new()); // the links ended with their ferroced
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
