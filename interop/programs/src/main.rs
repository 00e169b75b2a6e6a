//! Tests of unmodified programs on Ferroce: runs each command of `docs/COMPATIBILITY.md` and
//! checks its output.

#![forbid(unsafe_code)]

mod case;
mod cases;
mod place;
mod recipes;
mod run;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Parser;
use ferroce_harness::{Outcome, Report, keep, keep_name, now};

use crate::case::Case;
use crate::place::{Place, Wire};
use crate::recipes::{Group, Network, Prepared, Recipe};

/// Run unmodified RDMA programs on Ferroce and check their output.
#[derive(Debug, Parser)]
#[command(after_help = "\
EXAMPLES
    programs --ferroce target/release/ferroce
    programs --ferroce target/release/ferroce --only perftest
    programs --ferroce target/release/ferroce --only perftest --wire both
    programs --ferroce target/release/ferroce --list
    programs --rdma-core ~/rdma-core --only pyverbs
    programs --wheels --mpi
    programs --storage --only Valkey
    programs --suites --only libfabric

RECIPES
    With --wheels, --mpi, --storage, --video or --suites, the recipes of docs/RECIPES.md run
    instead, as printed. The first block of a recipe installs software in target/recipes, with pip, apt-get
    and compilers; the second runs as an ordinary user on a link rxe0, on loopback, or on a veth
    for software that uses no link on loopback. Sources come from Debian's source packages, or from the folder that a
    variable names; the error of a recipe without sources names the variable.

NEWER SOURCES OF RDMA-CORE
    With --rdma-core, its rping is compiled and run. Its Python tests run if pyverbs is built
    in the folder `build` of the sources; an ordinary user must be able to read both:

        apt-get install cmake ninja-build cython3 python3-dev pkg-config \\
            libnl-3-dev libnl-route-3-dev libudev-dev
        cd ~/rdma-core && mkdir build && cd build
        cmake -GNinja -DNO_MAN_PAGES=1 -DENABLE_STATIC=0 \\
            -DPYTHON_EXECUTABLE=/usr/bin/python3 .. && ninja

    Of the tests of rdma-core 65 at least 189 must pass, and none may fail.

FILES
    target/programs/    output of programs that failed
    target/recipes/     software of recipes, each with its install.log")]
struct Arguments {
    /// The `ferroce` to run programs with; its libraries are in the same folder
    #[arg(long, default_value = "target/release/ferroce")]
    ferroce: PathBuf,
    /// Run only cases whose program or command contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// The wire between server and client: shared memory, UDP, or first the one and then the
    /// other [default: udp; local for recipes, as users have it]
    #[arg(long, value_enum)]
    wire: Option<Wires>,
    /// Print the cases without running them
    #[arg(long)]
    list: bool,
    /// Folder for the output of programs that failed
    #[arg(long, default_value = "target/programs")]
    keep: PathBuf,
    /// Write the table to this file
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Folder with newer sources of rdma-core, to run their rping and Python tests, too
    #[arg(long, value_name = "FOLDER", env = "FERROCE_RDMA_CORE")]
    rdma_core: Option<PathBuf>,
    /// Run the recipes of Python packages: NIXL, Mooncake and others
    #[arg(long)]
    wheels: bool,
    /// Run the recipes of MPI libraries, and mpi4py's tests
    #[arg(long)]
    mpi: bool,
    /// Run the recipes of storage servers
    #[arg(long)]
    storage: bool,
    /// Run the recipe of LGProxy
    #[arg(long)]
    video: bool,
    /// Run the test suites of libfabric, UCX and rdma-core
    #[arg(long)]
    suites: bool,
    /// Folder for the software of recipes
    #[arg(long, default_value = "target/recipes")]
    software: PathBuf,
}

/// The wires that the cases run on.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Wires {
    /// Shared memory, for queue pairs that can use it
    Local,
    /// UDP for all queue pairs
    Udp,
    /// All cases on shared memory, and then on UDP
    Both,
}

impl Wires {
    fn each(self) -> &'static [Wire] {
        match self {
            Wires::Local => &[Wire::Local],
            Wires::Udp => &[Wire::Udp],
            Wires::Both => &[Wire::Local, Wire::Udp],
        }
    }
}

impl Arguments {
    /// Returns the groups of recipes that the user asks for.
    fn groups(&self) -> Vec<Group> {
        let all = [
            (self.wheels, Group::Wheels),
            (self.mpi, Group::Mpi),
            (self.storage, Group::Storage),
            (self.video, Group::Video),
            (self.suites, Group::Suites),
        ];
        let chosen = all.into_iter().filter(|(chosen, _)| *chosen);
        chosen.map(|(_, group)| group).collect()
    }

    /// Returns true if `--only` does not exclude this text.
    fn wants(&self, text: &str) -> bool {
        self.only.as_deref().is_none_or(|only| text.contains(only))
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let groups = arguments.groups();
    let result = match groups.is_empty() {
        true => try_main(&arguments),
        false => run_recipes(&arguments, &groups),
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

/// Runs the cases. Returns true if all work.
fn try_main(arguments: &Arguments) -> Result<bool> {
    let wanted = |text: &str| arguments.wants(text);
    let mut cases = cases::all(arguments.rdma_core.as_deref());
    cases.retain(|case| wanted(case.program) || wanted(&case.name));
    if arguments.list {
        for case in &cases {
            println!("{:<14} {}", case.program, case.name);
        }
        return Ok(true);
    }
    let wires = arguments.wire.unwrap_or(Wires::Udp).each();
    ensure!(
        arguments.write.is_none() || wires.len() == 1,
        "--write records one run of each case: use it with `--wire local` or `--wire udp`"
    );
    let folder = temporary_folder()?;
    let place = Place::enter(&arguments.ferroce, &folder)?;
    let mut report = Report::default();
    for wire in wires {
        place.choose(*wire)?;
        println!("# wire {}", wire.name());
        let before = place.bytes_in_memory()?;
        for (number, case) in cases.iter().enumerate() {
            let logs = folder.join(format!("{}-{number}", wire.name()));
            let begun = now();
            let outcome = match run_with_retries(&place, case, &logs) {
                Ok(()) => Outcome::Works,
                Err(error) => {
                    let name = format!("{} {}", wire.name(), case.name);
                    let kept = arguments.keep.join(keep_name(case.program, &name));
                    keep(&logs, &kept).context("cannot keep the output")?;
                    Outcome::Fails(format!("{error:#}"), kept)
                }
            };
            report.add(case.program, &case.name, outcome, now() - begun);
        }
        let bytes = place.bytes_in_memory()? - before;
        match wire {
            Wire::Udp => ensure!(bytes == 0, "{bytes} bytes went through shared memory"),
            // Some programs use datagrams only. Those of perftest do not.
            Wire::Local => ensure!(
                bytes > 0 || cases.iter().all(|case| case.program != "perftest"),
                "no byte went through shared memory"
            ),
        }
    }
    let pyverbs = arguments.write.as_deref().and_then(|file| {
        let file = file.with_file_name("PYVERBS.md");
        let old = fs::read_to_string(&file).unwrap_or_default();
        Some((cases::pyverbs_document::document(&place, &old)?, file))
    });
    place.leave().context("a program still uses the links")?;
    fs::remove_dir_all(&folder)?;
    report.summarise();
    if let Some(why) = cases::pyverbs::missing(arguments.rdma_core.as_deref())
        && wanted("pyverbs")
    {
        println!("\nSKIPPED        pyverbs       Python tests of newer sources: {why}; see --help");
    }
    if let Some(file) = &arguments.write {
        fs::write(file, report.markdown(HEAD))?;
    }
    if let Some((text, file)) = pyverbs {
        fs::write(file, text)?;
    }
    Ok(report.all_work())
}

/// Runs the recipes of groups. Returns true if all work.
fn run_recipes(arguments: &Arguments, groups: &[Group]) -> Result<bool> {
    ensure!(
        arguments.write.is_none(),
        "--write records the programs of the distribution; docs/RECIPES.md is written by hand"
    );
    let mut recipes = recipes::of_groups(groups);
    recipes.retain(|recipe| arguments.wants(recipe.title));
    if arguments.list {
        for recipe in &recipes {
            println!("{:<14?} {}", recipe.group, recipe.title);
        }
        return Ok(true);
    }
    // Software is installed first: the private network has no way out.
    let prepared: Vec<_> = recipes
        .into_iter()
        .map(|recipe| (recipe, recipes::prepare(recipe, &arguments.software)))
        .collect();
    let mut report = Report::default();
    for network in [Network::Loopback, Network::Ethernet] {
        let of_network = |(recipe, _): &&(&Recipe, _)| recipe.network == network;
        let recipes: Vec<_> = prepared.iter().filter(of_network).collect();
        if !recipes.is_empty() {
            run_prepared(arguments, network, &recipes, &mut report)?;
        }
    }
    report.summarise();
    Ok(report.all_work())
}

/// Runs prepared recipes in a private network.
fn run_prepared(
    arguments: &Arguments,
    network: Network,
    recipes: &[&(&Recipe, Result<Prepared>)],
    report: &mut Report,
) -> Result<()> {
    let folder = temporary_folder()?;
    let place = match network {
        Network::Loopback => Place::enter_loopback(&arguments.ferroce, &folder)?,
        Network::Ethernet => Place::enter_ethernet(&arguments.ferroce, &folder)?,
    };
    for wire in arguments.wire.unwrap_or(Wires::Local).each() {
        place.choose(*wire)?;
        for (recipe, prepared) in recipes {
            let name = format!("{} {}", wire.name(), recipe.title);
            let logs = folder.join(keep_name("recipe", &name));
            let begun = now();
            let result = match prepared {
                Ok(prepared) => recipes::run(&place, prepared, *wire, &logs),
                Err(error) => Err(anyhow!("{error:#}")),
            };
            let (line, outcome) = match result {
                Ok(sent) => (sent.to_string(), Outcome::Works),
                Err(error) => {
                    let kept = arguments.keep.join(keep_name("recipe", &name));
                    fs::create_dir_all(&logs)?;
                    keep(&logs, &kept).context("cannot keep the output")?;
                    let line = format!("{} bytes over rxe0, {}", recipe.bytes, wire.name());
                    (line, Outcome::Fails(format!("{error:#}"), kept))
                }
            };
            report.add(recipe.title, &line, outcome, now() - begun);
        }
    }
    place.leave().context("a program still uses the link")?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Creates a folder for the files of this run.
fn temporary_folder() -> Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("ferroce-programs-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Attempts a case up to `case.attempts` times.
fn run_with_retries(place: &Place, case: &Case, logs: &Path) -> Result<()> {
    let mut result = run::attempt(place, case, logs);
    for _ in 1..case.attempts {
        let Err(error) = &result else {
            break;
        };
        if let Some(excuse) = case.excuse
            && !fs::read_to_string(logs.join("client")).is_ok_and(|said| said.contains(excuse))
        {
            break;
        }
        println!(
            "again          {:<13} {}: {error:#}",
            case.program, case.name
        );
        result = run::attempt(place, case, logs);
    }
    result
}

const HEAD: &str = "\
# Programs that run on Ferroce

To run a program yourself: `ferroce run -- PROGRAM`. To repeat the tests below: `cargo xtask programs`.

Each line below is a command that `cargo xtask test` runs and checks. The programs are those of the distribution,
unmodified. Server and client run on one host, as an ordinary user. `rxe0` is a link on an Ethernet netdev (GID 0 is a
link-local IPv6 address, 1 an IPv4 and 2 an IPv6 address), `rxe1` a link on loopback. Lines with `FERROCE_TYPE=siw` run over
iWARP, on links of type siw on the same netdevs. `cargo xtask programs --write docs/COMPATIBILITY.md` writes this file. [PYVERBS.md](PYVERBS.md) lists the results of rdma-core's own Python tests, also on type siw: 28 of 171 pass there, 24 with the kernel's siw.
[RECIPES.md](RECIPES.md) has recipes for software from elsewhere (NCCL, NIXL, Mooncake, Ceph, NFS, Valkey, SPDK, MPI, LGProxy, test suites), which
`cargo xtask programs --wheels --mpi --storage --video --suites` runs as printed.

These bugs of programs appear with any driver:

- `rping -s -P` before rdma-core 61 loses one of two connection requests that arrive at the same time. Its clients
  therefore connect one after the other. Eight clients at the same time connect to a newer rping, if
  `FERROCE_RDMA_CORE` names the folder of its sources.
- perftest with `-R` tells its client to connect before it listens for the second connection. A client that is
  rejected uses freed memory and crashes. Both ends are then started again. On links of type rxe Ferroce lets the
  request wait half a second for the listener. With `-c UD` the second connection is a SIDR request in another port space. It waits, too;
  the kernel answers it at once, and the client prints `RDMA_CM_EVENT_UNREACHABLE; error: 1.`
- qperf 0.4.11 with `-cm 1` sends its port to the client before it listens. A client that is faster prints `Event rejected`. On links of
  type rxe Ferroce lets the request wait half a second for the listener.
- perftest's `ib_send_bw -e` on iWARP can stop for ever: its credits for receives are RDMA WRITEs, which make no event. `-r` as
  large as `-n` needs no credits.
- qperf without `-cm 1` addresses peers by LID, and RoCE ports have none, so it fails on rxe. Its commands run on a
  link with `lids on`.
- libfabric's `verbs;ofi_rxm` crashes if it gets the event of a disconnect before it has polled the peer's last messages: `rxm_close_conn`
  closes the endpoint, handles these messages and posts receives to the closed endpoint. Ferroce's `rdma_get_cm_event` returns EAGAIN
  once for such an event on a non-blocking channel, and libfabric polls before it asks again.
- libfabric overwrites the first instructions of `mmap` and `munmap` in memory when a program opens a domain (its memory monitor `memhooks`). A
  thread that runs through them at that moment crashes. Ferroce's calls that start a thread return only when that thread has its memory.

";
