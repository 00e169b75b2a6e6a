//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::install::InstallArgs;

/// Everything one does to this repository, under one name.
///
/// CI runs `check`, `test` and `interop --short`; whatever passes here passes there.
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
  cargo xtask interop --short      against the Linux kernel's own driver
  cargo xtask demo                 RDMA on this machine, now
  cargo xtask install --prefix P   install it
  cargo xtask deb                  a Debian package
  cargo xtask package-test         the package in a fresh system
  cargo xtask sim --seeds 2000     two thousand simulated networks
  cargo xtask soak --minutes 5     ferroced killed, stopped and starved, and what is left
  cargo xtask bench engine         what a packet costs
  cargo xtask bench wire           bandwidth and latency over real sockets
  cargo xtask bench connections    how connections come and go

EXIT STATUS
  0 if every step succeeded, 1 if one failed, 2 if the command line was wrong.

FILES
  .ci/run       what continuous integration runs: check, test, interop --short
  clippy.toml   what the sans-IO crates must not call";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Build everything.
    ///
    /// First what users run, and the library that programs load instead of
    /// libibverbs; then each tool by itself: the simulator switches on
    /// deliberate bugs in the transport, and cargo gives packages that are built
    /// together one set of features.
    #[command(after_help = "\
EXAMPLES
  cargo xtask build
  cargo xtask build --release")]
    Build {
        /// Optimise; the results are then under target/release.
        #[arg(long)]
        release: bool,
    },

    /// Check formatting, lints, source rules and documentation.
    ///
    /// Changes nothing. Runs rustfmt and clippy with every warning an error,
    /// also for the transport without its deliberate bugs and for the wire
    /// formats without the standard library; checks the project's own source
    /// rules (no unsafe code in the protocol crates, no file of 800 lines, no
    /// path of somebody's machine, no deliberate bugs outside the simulator);
    /// builds the documentation and the fuzz targets.
    #[command(after_help = "\
EXAMPLES
  cargo xtask check
  cargo fmt --all && cargo xtask check      mend the formatting first")]
    Check,

    /// Run all tests.
    ///
    /// The whole workspace, then the transport once more by itself: together
    /// with the simulator it is tested with its deliberate bugs compiled in
    /// (and switched off), alone it is tested as users get it.
    ///
    /// Some tests compare with the distribution's headers or run its programs:
    /// what is missing is installed first, as root with apt-get, or named.
    #[command(after_help = "\
EXAMPLES
  cargo xtask test
  cargo test -p ferroce-wire icrc      some tests of one crate")]
    Test,

    /// Run real, unmodified RDMA programs and check what they say.
    ///
    /// Part of `test`. Programs of the distribution, server and client on one
    /// host, as an ordinary user, in a network of their own. What is missing is
    /// installed first, as root with apt-get. All arguments go to the runner.
    #[command(after_help = "\
EXAMPLES
  cargo xtask programs
  cargo xtask programs --only perftest
  cargo xtask programs --write docs/COMPATIBILITY.md
  FERROCE_RDMA_CORE=~/rdma-core cargo xtask programs --only pyverbs
                                          with the tests of newer sources
  cargo xtask programs -- --help          the runner's own help")]
    Programs {
        /// Arguments of the runner.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Run Ferroce against the Linux kernel's Soft-RoCE.
    ///
    /// A virtual machine with Debian's kernel and its `rdma_rxe` at one end,
    /// Ferroce at the other, unmodified programs at both. Needs root, and
    /// Debian's packages: those for this host are installed, those for the
    /// virtual machine are kept in a cache. All arguments go to the runner.
    #[command(after_help = "\
EXAMPLES
  cargo xtask interop                     the whole matrix: half an hour
  cargo xtask interop --short             what CI runs: some minutes
  cargo xtask interop --only perftest
  cargo xtask interop --write docs/INTEROP.md
  cargo xtask interop -- --help           the runner's own help")]
    Interop {
        /// Arguments of the runner.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Install what users run, below a prefix.
    ///
    /// PREFIX/bin/ferroce and ferroced; the libraries, and `rdma`, `rxe_cfg` and
    /// `rxe_init.sh`, in PREFIX/lib/ferroce, where only `ferroce run` and `ferroce
    /// shell` find them; man pages, completions and systemd units.
    #[command(after_help = "\
EXAMPLES
  cargo xtask install --prefix $HOME/.local
  cargo xtask install --prefix /usr/local --system-wide
  cargo xtask install --prefix /usr/local --uninstall")]
    Install(InstallArgs),

    /// Make a Debian package, in target/deb.
    Deb {
        /// Pack what is not optimised: quicker to build.
        #[arg(long)]
        debug: bool,
    },

    /// Install the package into a fresh Debian, use it there, upgrade and remove it.
    ///
    /// As root: makes the system with mmdebstrap, in target/deb/fresh, and enters a copy of it
    /// with a network of its own. Demo, ibv_rc_pingpong and rping run as a user. Then
    /// another copy is booted three times with systemd: the system's unit and a user's,
    /// links after a restart and after a boot, programs that run meanwhile.
    PackageTest {
        /// Pack what is not optimised: quicker to build.
        #[arg(long)]
        debug: bool,
    },

    /// Show that it works: build `ferroce` and its libraries, and run its demo.
    ///
    /// Two processes on a private loopback link, every operation, every byte
    /// checked, and how fast it was. All arguments go to `ferroce demo`.
    #[command(after_help = "\
EXAMPLES
  cargo xtask demo
  cargo xtask demo --quick")]
    Demo {
        /// Arguments of the demo.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Disturb ferroced and its programs for some minutes, and look for remains.
    ///
    /// Not part of CI. Needs root, or a user namespace. All arguments go to the runner.
    #[command(after_help = "\
EXAMPLES
  cargo xtask soak                     five minutes
  cargo xtask soak --minutes 60        an hour
  cargo xtask soak --seed 7            the same disturbances again
  cargo xtask soak -- --help           the runner's own help")]
    Soak {
        /// Arguments of the runner.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Run the simulator, optimised.
    ///
    /// All arguments go to the simulator. A failing run names its seed, and the
    /// seed alone replays it.
    #[command(after_help = "\
EXAMPLES
  cargo xtask sim --seeds 2000                two thousand networks
  cargo xtask sim --seeds 500 --start 9000    five hundred others
  cargo xtask sim --seed 4711 --trace         one of them, packet by packet
  cargo xtask sim --seed 4711 --steps 300     only its beginning
  cargo xtask sim --seeds 200 --bug NAME      must fail: the bug is deliberate
  cargo xtask sim -- --help                   the simulator's own help")]
    Sim {
        /// Arguments of the simulator.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Measure.
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// What a packet costs in the protocol engine.
    ///
    /// Two engines back to back in memory, without a network; each cost stands
    /// beside that of copying and checksumming the same bytes. All arguments go
    /// to the benchmark.
    #[command(after_help = "\
EXAMPLES
  cargo xtask bench engine
  cargo xtask bench engine --quick
  cargo xtask bench engine --csv > engine.csv
  cargo xtask bench engine --beside old   beside old/engine, a build of another version
  cargo xtask bench engine -- --help      the benchmark's own help")]
    Engine {
        /// Run DIR/engine by turns with this version, and compare; comes first.
        #[arg(long, value_name = "DIR")]
        beside: Option<PathBuf>,

        /// Arguments of the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// What the network path costs: bandwidth, latency, idleness.
    ///
    /// Two processes over loopback, and over a virtual cable between two network
    /// namespaces; each figure stands beside that of plain UDP sockets and of
    /// iperf3 (TCP). Installs iperf3 with apt where that is missing and the user
    /// is root. All arguments go to the benchmark.
    #[command(after_help = "\
EXAMPLES
  cargo xtask bench wire
  cargo xtask bench wire --quick
  cargo xtask bench wire --only latency
  cargo xtask bench wire --beside old     beside old/wire, a build of another version
  cargo xtask bench wire -- --help        the benchmark's own help")]
    Wire {
        /// Run DIR/wire by turns with this version, and compare; comes first.
        #[arg(long, value_name = "DIR")]
        beside: Option<PathBuf>,

        /// Arguments of the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// How connections come and go: rate, set-up time, what is left over.
    ///
    /// Two processes connect and disconnect with rdma_cm, 20,000 times by default, and
    /// have 1,000 connections open at once. Fails if one of them, or ferroced, is left with
    /// descriptors or memory it did not have before. All arguments go to the benchmark.
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
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
