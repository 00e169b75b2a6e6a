//! Tests of Ferroce against the Linux kernel's `rdma_rxe` and `siw`.
//!
//! ```text
//!   this host, in its own network namespace            | virtual machine
//!   program - libferroce.so - veth0 = veth1 - br0 - tap0 - data0 - rdma_rxe - program
//! ```
//!
//! Both ends run the distribution's unmodified programs. The virtual machine is built from
//! Debian's packages ([`image`]) and runs under QEMU ([`vm`]). Commands reach it over a
//! second interface, so that the bridge carries only the traffic under test. Every case is
//! captured; for a failed case, the capture and the output of both ends are kept.

#![forbid(unsafe_code)]

mod agent;
mod capture;
mod case;
mod cases;
mod enclosure;
mod image;
mod network;
mod run;
mod siw_module;
mod speed;
mod vm;
mod weather;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ferroce_harness::{Outcome, Report, keep, keep_name, now};

use crate::case::{Case, Link};
use crate::cases::Servers;
use crate::vm::Accelerator;

/// Run Ferroce against the Linux kernel's Soft-RoCE and check the output of both ends.
#[derive(Debug, Parser)]
#[command(after_help = "\
EXAMPLES
    interop-kernel --short
    interop-kernel --only ibv_rc_pingpong
    interop-kernel --only NFS                        needs nfs-ganesha, see --ganesha
    interop-kernel --only nvme                       needs SPDK, see --spdk
    interop-kernel --siw
    interop-kernel --list
    interop-kernel --shell 'rdma link; uname -r'     only boot and run this in the guest
    interop-kernel --speed --ferroce target/release/ferroce
    interop-kernel --speed --type siw --ferroce target/release/ferroce
    interop-kernel --speed --guests 2 --ferroce target/release/ferroce

FILES
    $XDG_CACHE_HOME/ferroce-interop/    kernel and disk of the virtual machine
    target/interop/                     captures and logs of cases that failed")]
struct Arguments {
    /// The `ferroce` to run programs with; its libraries are in the same folder
    #[arg(long, default_value = "target/debug/ferroce")]
    ferroce: PathBuf,
    /// Run only the most important cases, which takes some minutes
    #[arg(long)]
    short: bool,
    /// Run only the cases of iWARP, against the kernel's siw
    #[arg(long)]
    siw: bool,
    /// Run only cases whose group or name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Print the cases without running them
    #[arg(long)]
    list: bool,
    /// Folder for captures and logs of failed cases
    #[arg(long, default_value = "target/interop")]
    keep: PathBuf,
    /// Keep captures and logs of working cases, too
    #[arg(long)]
    keep_all: bool,
    /// Write the table to this file
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Accelerator of the virtual machine
    #[arg(long, value_enum, default_value_t = Accelerator::Auto)]
    accelerator: Accelerator,
    /// Debian release of the guest's kernel and programs
    #[arg(long, default_value = "bookworm")]
    suite: String,
    #[command(flatten)]
    servers: Servers,
    /// Measure programs in the guest, with the kernel's driver and with Ferroce by turns
    #[arg(long)]
    speed: bool,
    /// Type of the links that --speed measures
    #[arg(long = "type", value_enum, requires = "speed", default_value_t = Link::Rxe)]
    link: Link,
    /// Number of guests for --speed: 1 has both ends in one guest, 2 has the server in one and the
    /// client in another
    #[arg(long, value_name = "N", requires = "speed", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=2))]
    guests: u8,
    /// Boot, run a shell command in the guest, and exit
    #[arg(long, value_name = "COMMAND")]
    shell: Option<String>,
    /// Run a command in the running guest (internal)
    #[arg(long, hide = true)]
    in_guest: Option<String>,
    /// The host's TCP port of the agent in that guest (internal)
    #[arg(long, hide = true, default_value_t = agent::PORT)]
    agent: u16,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match &arguments.in_guest {
        Some(command) => return agent::main(arguments.agent, command),
        None if arguments.list => list(&arguments),
        None if enclosure::is_inside() => inside(&arguments),
        None => prepare(&arguments),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the requested cases, sorted so that cases with the same network are adjacent.
fn wanted(arguments: &Arguments) -> Vec<Case> {
    let mut cases = cases::all(&arguments.servers);
    let only = arguments.only.as_deref();
    cases.retain(|case| {
        only.is_none_or(|only| {
            case.group.contains(only) || case.name().contains(only) || case.client.contains(only)
        }) && (case.short || !arguments.short)
            && (case.link == Link::Siw || !arguments.siw)
    });
    // A guest that does not come back in time spoils the cases after it.
    let resets = |case: &Case| case.group == "reboot";
    cases.sort_by_key(|case| (case.link, resets(case), case.mtu, case.weather));
    cases
}

fn list(arguments: &Arguments) -> Result<bool> {
    for case in wanted(arguments) {
        println!("{:<14} {}", case.group, case.name());
    }
    Ok(true)
}

/// Builds the image, then starts this program again inside the PID namespace.
fn prepare(arguments: &Arguments) -> Result<bool> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "this needs root: it creates network devices and boots a virtual machine on them"
    );
    image::build(&arguments.suite)?;
    Err(enclosure::enter()?.into())
}

/// Runs the cases, inside the PID namespace; returns true if all work.
fn inside(arguments: &Arguments) -> Result<bool> {
    let folder = enclosure::folder();
    let network = network::Network::make(&arguments.ferroce, &folder)?;
    let image = image::Image::of(&arguments.suite)?;
    let disk = match arguments.speed {
        true => Some(speed::pack(&arguments.ferroce, &folder)?),
        false => None,
    };
    let boot = |place| {
        vm::Vm::boot(
            &image,
            place,
            arguments.accelerator,
            disk.as_deref(),
            &folder,
        )
    };
    let vm = boot(network::GUESTS[0])?;
    if let Some(command) = &arguments.shell {
        print!("{}", vm.run(command)?);
        return Ok(true);
    }
    if arguments.speed {
        let second = match arguments.guests {
            2 => Some(boot(network::GUESTS[1])?),
            _ => None,
        };
        let client = second.as_ref().unwrap_or(&vm);
        let ends = speed::Ends::new(&vm, client, arguments.link, &folder);
        return ends.measure(arguments.only.as_deref());
    }
    let mut site = run::Site::new(network, vm)?;
    let mut report = Report::default();
    for (number, case) in wanted(arguments).iter().enumerate() {
        let logs = folder.join(number.to_string());
        let begun = now();
        let result = run_with_retries(&mut site, case, &logs);
        let kept = arguments.keep.join(keep_name(case.group, &case.name()));
        if result.is_err() || arguments.keep_all {
            site.describe(&logs);
            keep(&logs, &kept).context("cannot keep the logs")?;
        }
        fs::remove_dir_all(&logs)?;
        let outcome = match result {
            Ok(1) => Outcome::Works,
            Ok(tries) => Outcome::WorksAtTry(tries),
            Err(error) => Outcome::Fails(format!("{error:#}"), kept),
        };
        report.add(case.group, &case.name(), outcome, now() - begun);
    }
    let kernel = site.vm.run("uname -r")?;
    drop(site);
    report.summarise();
    if !arguments.siw && !arguments.short {
        let only = arguments.only.as_deref();
        for (group, why) in arguments.servers.missing() {
            if only.is_none_or(|only| group.contains(only)) {
                println!("\nSKIPPED        {group:<13} {why:#}");
            }
        }
    }
    if let Some(file) = &arguments.write {
        let head = HEAD.replace("{kernel}", kernel.trim());
        fs::write(file, report.markdown(&head))?;
    }
    Ok(report.all_work())
}

/// Attempts a case up to `case.attempts` times; returns the number of the attempt that worked.
fn run_with_retries(site: &mut run::Site, case: &Case, logs: &Path) -> Result<u32> {
    for number in 1..case.attempts {
        match site.attempt(case, logs) {
            Ok(()) => return Ok(number),
            Err(error) => println!(
                "again          {:<13} {}: {error:#}",
                case.group,
                case.name()
            ),
        }
    }
    site.attempt(case, logs).map(|()| case.attempts)
}

const HEAD: &str = "\
# Ferroce and the Linux kernel's Soft-RoCE and Soft-iWARP

To connect to a machine that runs the kernel's Soft-RoCE, see [USING.md](USING.md). To repeat the tests below:
`cargo xtask interop`, as root; `cargo xtask interop --short` runs the part that continuous integration runs.

Each line below is a command that was run and checked with Ferroce at one end and `rdma_rxe` of Linux {kernel} at
the other. Lines with `siw` ran on links of type siw, with the same kernel's siw (`cargo xtask interop --siw`), which is compiled from
its source: Debian's kernels come without it. Both ends run unmodified programs of the distribution. `Ferroce client` means that the client runs on
Ferroce and the server on the kernel's driver; `Ferroce server` is the other way round. GID 1 is an IPv4 address,
GID 2 an IPv6 address. `cargo xtask interop --write docs/INTEROP.md` writes this file.

Groups that are not named after a program:

- `flows`: errors and unusual cases of verbs, and the completions that each end must see (`interop/kernel/flows.py`).
- `weather`: a network that loses, reorders, duplicates or delays packets in both directions.
- `connections`: connections are established, rejected, ended and abandoned (`interop/kernel/connections.py`). Both
  ends must see the right events, reject reasons and private data.
- `reboot`: the end at `hold` disappears without a DREQ: the guest by a reset, Ferroce by SIGKILL of the program and
  ferroced. At the other end requests must fail, the connection must end, and the next connection must work. On type siw
  only the guest is reset: the host's kernel closes the TCP connections of a killed program.
- `refusals`: the errnos of calls that siw does not support, compared with those of siw (`interop/kernel/refusals.py`).
- `iSER`: the guest's `ib_iser` uses a disk of tgt. The disk is found, formatted and mounted; 64 MiB are written, read
  back and compared, in the guest and in tgt's file. Ferroce's link must have carried the file in both directions.
  iSER runs on links of both types, NFS and nvme only on type rxe.
- `NFS`: the guest's NFS client mounts an export of nfs-ganesha over RDMA, writes 64 MiB, reads them back and compares. It
  runs if `cargo xtask programs --storage --only NFS` has built nfs-ganesha.
- `nvme`: the guest's `nvme-rdma` uses a disk of SPDK's target. 32 MiB are written, read back and compared, in the guest
  and in the target's file. It runs if `FERROCE_SPDK` names a folder in which `cargo xtask programs --storage --only SPDK` has
  built SPDK.

tshark and `interop/kernel/check_capture.py`, which recomputes the ICRC, check at least one capture of every
operation.

Where rxe deviates from the specification, a flow expects rxe's behaviour of rxe and the specified behaviour of
Ferroce:

| behaviour of rxe | shown by |
| --- | --- |
| detects a lost READ response only by its timer, and repeats from the middle of a message | `read_replay` |
| sends a Q_Key with its highest bit set unchanged, instead of the Q_Key of its queue pair | `qkey_rule` |
| reports packets that follow an RNR NAK as out of sequence | `rnr_pipeline` |
| retries without end if `retry_cnt` is 7 | `silent_7` |
| answers a message longer than the receive with \"remote operational error\" | `short_receive` |
| acknowledges the invalidation of a key that does not exist | `invalidate_nothing` |
| marks an invalidation in completions with the wrong bit | `window_invalidate` |
| checks the range of the region behind a memory window, not that of the window | `window_range` |

siw overlooks messages at the start of a connection. Ferroce takes care of that:

| behaviour of siw | shown by |
| --- | --- |
| its server does not read a message that arrives right after its Reply, until another one arrives | `rping`, Ferroce client |
| its client resets the connection if a message arrives with the Reply | `rstream`, Ferroce server |
| its client loses the private data of a rejection if the connection is closed at once | `reject`, Ferroce server |
| `rdma_connect` waits for TCP and returns ECONNREFUSED, without an event | `nobody_listens`, Ferroce server |
| a SEND that has arrived completes with LOC_QP_OP_ERR, if the peer closes the connection before siw has completed it | `perftest -R` without `--wait_destroy` |

The last line is a race within siw: after it has handed a segment to TCP, siw looks whether the peer has closed the connection. It also
happens with siw at both ends: to one of 300 connections within a guest with one processor for its two, whose client closed as soon as
it had the answer. perftest's ends close right after their last SEND, so the rows have `--wait_destroy=1`: both ends wait for a second first.

Of the calls in `refusals`, nine have another answer than with siw. No other difference is allowed:

| call | siw | Ferroce |
| --- | --- | --- |
| `ibv_create_qp_ex` with send operations, `ibv_create_cq_ex`, `ibv_query_rt_values_ex`, `ibv_alloc_parent_domain` | EOPNOTSUPP | works |
| `ibv_rereg_mr`, `ibv_resize_cq`, `ibv_modify_srq` with a size | EOPNOTSUPP | works |
| `ibv_reg_mr` with IBV_ACCESS_ON_DEMAND | EINVAL | works |
| `ibv_post_send` of a READ into two elements | the connection ends, the READ is flushed | EINVAL, as siw answers kernel programs; the connection remains |

Some commands may fail and are tried again; the list says so where it happened:

- UC and UD lose packets that a busy machine has no time to receive.
- After loss, an end that has all its completions exits and cannot acknowledge retransmissions of the other end. rxe
  then retries without end.

Refusals are lost in the rows of perftest's `-R`: perftest's client connects twice, does not wait until the server listens again, and
crashes if refused. Without the refusal TCP repeats the connection request after 1 s, and the connection manager after 4 s. On type
rxe with a client on Ferroce, the messages of the connection manager also arrive in the guest 300 ms late, because most of these
clients would have to wait for a repeated REQ.

Two programs run with other settings because an emulated kernel is slow: perftest has an ACK timeout of one second
(`-u 18`), and `ibv_srq_pingpong` with 1 MiB has one queue pair. In `weather` it has two: of its usual sixteen, one would
mostly lose its last ACK.

";
