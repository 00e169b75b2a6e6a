//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::install::InstallArgs;

/// Build, check, test, measure and package Ferroce.
///
/// CI runs `check`, `test`, `interop --short` and `package-test`, by the same commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
EXAMPLES
  cargo xtask build --release      build everything, optimised
  cargo xtask check                formatting, lints, source rules, documentation
  cargo xtask test                 all tests
  cargo xtask programs             real programs only
  cargo xtask interop --short      tests against the Linux kernel's driver
  cargo xtask demo                 build, then transfer and measure on this machine
  cargo xtask install --prefix P   install below P
  cargo xtask deb                  build a Debian package
  cargo xtask dist                 build the files of a release
  cargo xtask package-test         test the package in a fresh Debian
  cargo xtask sim --seeds 2000     simulate two thousand networks
  cargo xtask soak --minutes 5     kill, stop and starve ferroced, then look for leaks
  cargo xtask bench engine         time per packet in the protocol engine
  cargo xtask bench wire           bandwidth and latency over real sockets
  cargo xtask bench connections    rate and set-up time of connections
  cargo xtask bench programs       perftest, UCX, libfabric and qperf beside TCP and UDP
  cargo xtask bench instructions   instructions per packet in the protocol engine

EXIT STATUS
  0 if every step succeeded, 1 if one failed, 2 if the command line is invalid.

FILES
  .ci/run       the steps of continuous integration
  clippy.toml   functions that the sans-IO crates must not call";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Build everything.
    ///
    /// Builds the programs for users first, and the library that replaces
    /// libibverbs and librdmacm. Then it builds each tool by itself, because the
    /// simulator enables the feature `bugs`, and cargo gives packages
    /// that are built together one set of features.
    #[command(after_help = "\
EXAMPLES
  cargo xtask build
  cargo xtask build --release")]
    Build {
        /// Optimise. The results are in target/release.
        #[arg(long)]
        release: bool,
    },

    /// Check formatting, lints, source rules and documentation.
    ///
    /// Changes no file. Runs rustfmt and clippy with every warning an error,
    /// also without injected bugs and for the wire formats
    /// without the standard library. Checks the project's source rules: no unsafe
    /// code in the protocol crates, no file of 800 lines, no absolute path of a
    /// developer's machine, no injected bugs outside the simulator. Checks licences,
    /// duplicates and sources of dependencies with cargo-deny, which it builds in
    /// target/tools if that is missing. Builds the documentation and checks the fuzz
    /// targets. Counts the engine's instructions for each packet if valgrind is installed:
    /// more than 5 % more than recorded is an error.
    #[command(after_help = "\
EXAMPLES
  cargo xtask check
  cargo fmt --all && cargo xtask check      correct the formatting first")]
    Check,

    /// Run all tests.
    ///
    /// Tests the whole workspace, then the RoCE engine, the shard and the wires again
    /// by themselves: in the workspace their injected bugs are compiled in (and
    /// switched off), and by themselves they are tested as users get them.
    ///
    /// Some tests need headers and programs of the distribution. As root, this
    /// command installs missing packages with apt-get; otherwise it names them.
    #[command(after_help = "\
EXAMPLES
  cargo xtask test
  cargo test -p ferroce-wire icrc      some tests of one crate")]
    Test,

    /// List the Debian packages that `test` needs, for an administrator to install.
    #[command(after_help = "\
EXAMPLES
  sudo apt-get install $(cargo xtask packages)")]
    Packages,

    /// Run unmodified RDMA programs and check their output.
    ///
    /// Part of `test`. The programs are those of the distribution. Server and
    /// client run on one host, as an ordinary user, in a network namespace. As
    /// root, this command installs missing packages with apt-get. All arguments
    /// go to the runner.
    #[command(after_help = "\
EXAMPLES
  cargo xtask programs
  cargo xtask programs --only perftest
  cargo xtask programs --wire both        over UDP and over shared memory; without, over UDP
  cargo xtask programs --write docs/COMPATIBILITY.md
  cargo xtask programs --wheels           the recipes of docs/RECIPES.md for Python packages;
                                          also --mpi, --storage, --video, --suites
  FERROCE_RDMA_CORE=~/rdma-core cargo xtask programs --only pyverbs
                                          with the tests of newer rdma-core sources
  cargo xtask programs -- --help          the runner's own help")]
    Programs {
        /// Arguments of the runner.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Run Ferroce against the Linux kernel's Soft-RoCE.
    ///
    /// One end is a virtual machine with Debian's kernel and its `rdma_rxe`, the
    /// other is Ferroce. Unmodified programs run at both ends. Needs root and
    /// Debian: packages for this host are installed, packages for the virtual
    /// machine are kept in a cache. All arguments go to the runner.
    #[command(after_help = "\
EXAMPLES
  cargo xtask interop                     all commands: half an hour
  cargo xtask interop --short             the commands of CI: some minutes
  cargo xtask interop --only perftest
  cargo xtask interop --write docs/INTEROP.md
  cargo xtask interop -- --help           the runner's own help")]
    Interop {
        /// Arguments of the runner.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Install Ferroce below a prefix.
    ///
    /// PREFIX/bin receives ferroce and ferroced. PREFIX/lib/ferroce receives the
    /// libraries, `rdma`, `rxe_cfg` and `rxe_init.sh`, which only `ferroce run` and
    /// `ferroce shell` use. Man pages, completions and systemd units are installed,
    /// too.
    #[command(after_help = "\
EXAMPLES
  cargo xtask install --prefix $HOME/.local
  cargo xtask install --prefix /usr/local --system-wide
  cargo xtask install --prefix /usr/local --uninstall")]
    Install(InstallArgs),

    /// Build a Debian package in target/deb.
    #[command(after_help = "\
EXAMPLES
  cargo xtask deb
  cargo xtask deb --debug")]
    Deb {
        /// Package a build without optimisation, which is quicker to build.
        #[arg(long)]
        debug: bool,
    },

    /// Make the files of a release, in target/dist: tarball, Debian package, checksums.
    ///
    /// Everything is linked with the C library of Debian 11, so it runs on glibc 2.31 and
    /// newer; a file that needs a newer one is an error. Needs mmdebstrap, and root or user
    /// namespaces. With --try, which needs root, the tarball is unpacked in Debian 11, 12 and
    /// 13, each with its own perftest, and runs there as a user.
    #[command(after_help = "\
EXAMPLES
  cargo xtask dist
  cargo xtask dist --try")]
    Dist {
        /// Run the result in Debian 11, 12 and 13.
        #[arg(long = "try")]
        attempt: bool,
    },

    /// Test the package in a fresh Debian: install, use, upgrade, remove.
    ///
    /// Needs root. Creates the system with mmdebstrap in target/roots and enters a
    /// copy of it with a network namespace of its own. Runs the demo, ibv_rc_pingpong and
    /// rping as a user. Then boots another copy three times with systemd and checks the
    /// units of root and of a user, configured links, and programs across restarts.
    #[command(after_help = "\
EXAMPLES
  cargo xtask package-test
  cargo xtask package-test --debug")]
    PackageTest {
        /// Package a build without optimisation, which is quicker to build.
        #[arg(long)]
        debug: bool,
    },

    /// Build `ferroce` and its libraries, and run `ferroce demo`.
    ///
    /// The demo transfers data between two processes on a private loopback link,
    /// checks every byte and measures. All arguments go to `ferroce demo`.
    #[command(after_help = "\
EXAMPLES
  cargo xtask demo
  cargo xtask demo --quick")]
    Demo {
        /// Arguments of the demo.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Disturb ferroced and its programs for some minutes, then look for leaks.
    ///
    /// Not part of CI. Needs root, or a user namespace. All arguments go to the runner.
    #[command(after_help = "\
EXAMPLES
  cargo xtask soak                     five minutes
  cargo xtask soak --minutes 60        an hour
  cargo xtask soak --seed 7            repeat the disturbances of a run
  cargo xtask soak -- --help           the runner's own help")]
    Soak {
        /// Arguments of the runner.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Run the simulator, optimised.
    ///
    /// A run that fails prints its seed, and that seed replays it. All arguments go
    /// to the simulator.
    #[command(after_help = "\
EXAMPLES
  cargo xtask sim --seeds 2000                two thousand networks
  cargo xtask sim --seeds 500 --start 9000    five hundred others
  cargo xtask sim --seed 4711 --trace         one network, packet by packet
  cargo xtask sim --seed 4711 --steps 300     only its first 300 steps
  cargo xtask sim --seeds 200 --bug NAME      with an injected bug: must fail
  cargo xtask sim -- --help                   the simulator's own help")]
    Sim {
        /// Arguments of the simulator.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Measure performance.
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Measure the time per packet in the protocol engine.
    ///
    /// Two engines exchange packets in memory, without a network. Each figure is
    /// shown beside the time to copy and checksum the same bytes. All arguments go
    /// to the benchmark.
    #[command(after_help = "\
EXAMPLES
  cargo xtask bench engine
  cargo xtask bench engine --quick
  cargo xtask bench engine --csv > engine.csv
  cargo xtask bench engine --beside old   beside old/engine, a build of another version
  cargo xtask bench engine -- --help      the benchmark's own help")]
    Engine {
        /// Alternate with DIR/engine, a build of another version, and compare. Must be the
        /// first argument.
        #[arg(long, value_name = "DIR")]
        beside: Option<PathBuf>,

        /// Arguments of the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Measure bandwidth, latency and idle cost over real sockets.
    ///
    /// Two processes exchange messages over loopback, and over a veth pair between
    /// two network namespaces. Each figure is shown beside that of plain UDP
    /// sockets and of iperf3 (TCP). As root, installs iperf3 with apt-get if it is
    /// missing. All arguments go to the benchmark.
    #[command(after_help = "\
EXAMPLES
  cargo xtask bench wire
  cargo xtask bench wire --quick
  cargo xtask bench wire --only latency
  cargo xtask bench wire --beside old     beside old/wire, a build of another version
  cargo xtask bench wire -- --help        the benchmark's own help")]
    Wire {
        /// Alternate with DIR/wire, a build of another version, and compare. Must be the
        /// first argument.
        #[arg(long, value_name = "DIR")]
        beside: Option<PathBuf>,

        /// Arguments of the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Measure unmodified programs beside other transports.
    ///
    /// perftest, UCX, libfabric and qperf run over Ferroce, each beside its reference:
    /// iperf3, plain UDP sockets, or the same program over TCP. As root, installs missing
    /// packages with apt-get. All arguments go to the benchmark.
    #[command(after_help = "\
EXAMPLES
  cargo xtask bench programs
  cargo xtask bench programs --quick
  cargo xtask bench programs --only latency --cores 2
  cargo xtask bench programs --type siw    iWARP beside iperf3 and a TCP ping-pong
  cargo xtask bench programs --bundle DIR  everything for a machine without cargo
  cargo xtask bench programs --vm          beside the kernel's rdma_rxe, in a virtual machine
  cargo xtask bench programs --vm --type siw    beside the kernel's siw
  cargo xtask bench programs --vm --guests 2    the same between two virtual machines
  cargo xtask bench programs -- --help     the benchmark's own help")]
    Programs {
        /// Copy the benchmark, Ferroce and the programs with their libraries to DIR, and do not
        /// measure. Must be the first argument.
        #[arg(long, value_name = "DIR", conflicts_with = "vm")]
        bundle: Option<PathBuf>,

        /// Measure in a virtual machine, beside its kernel's rdma_rxe, or siw with `--type siw`:
        /// both ends in the guest, or each in its own with `--guests 2`, the drivers by turns.
        /// Needs root. Must be the first argument.
        #[arg(long)]
        vm: bool,

        /// Arguments of the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Count the engine's instructions for each packet.
    ///
    /// Runs fixed workloads under `valgrind --tool=callgrind` and compares with
    /// crates/bench/instructions.json. Part of `check`: more than 5 % more is an error. With
    /// another compiler than the recorded one, differences are only printed. All arguments
    /// go to the benchmark.
    #[command(after_help = "\
EXAMPLES
  cargo xtask bench instructions
  cargo xtask bench instructions --accept    record new counts")]
    Instructions {
        /// Arguments of the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Measure the rate and set-up time of connections, and look for leaks.
    ///
    /// Two processes connect and disconnect with rdma_cm, 20,000 times by default, and
    /// have 1,000 connections open at once. Fails if a process or ferroced has more
    /// descriptors or memory than before. All arguments go to the benchmark.
    #[command(after_help = "\
EXAMPLES
  cargo xtask bench connections
  cargo xtask bench connections --cycles 1000
  cargo xtask bench connections -- --help  the benchmark's own help")]
    Connections {
        /// Arguments of the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Command {
        Cli::try_parse_from(line.split(' '))
            .expect("a valid command line")
            .command
    }

    #[test]
    fn bundle_is_an_option_of_xtask_and_the_rest_of_the_runner() {
        let line = "xtask bench programs --bundle b";
        let Command::Bench(Bench::Programs { bundle, args, .. }) = parse(line) else {
            panic!("another command");
        };
        assert_eq!((bundle, args.len()), (Some(PathBuf::from("b")), 0));
        let line = "xtask bench programs --quick --only UCX --cores 2";
        let Command::Bench(Bench::Programs { bundle, vm, args }) = parse(line) else {
            panic!("another command");
        };
        assert_eq!((bundle, vm), (None, false));
        assert_eq!(args, ["--quick", "--only", "UCX", "--cores", "2"]);
    }

    #[test]
    fn arguments_of_tools_pass_through_untouched() {
        let Command::Sim { args } = parse("xtask sim --seed 7 --trace --bug NAME") else {
            panic!("not sim");
        };
        assert_eq!(args, ["--seed", "7", "--trace", "--bug", "NAME"]);
        let Command::Bench(Bench::Engine { args, .. }) = parse("xtask bench engine -- --help")
        else {
            panic!("not bench engine");
        };
        assert_eq!(args, ["--help"]);
        let line = "xtask bench engine --beside old --quick";
        let Command::Bench(Bench::Engine { beside, args }) = parse(line) else {
            panic!("not bench engine");
        };
        assert_eq!((beside, args), (Some("old".into()), vec!["--quick".into()]));
    }

    #[test]
    fn clap_accepts_the_definition() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
