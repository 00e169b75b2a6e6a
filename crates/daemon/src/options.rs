//! The command line of ferroced.

use std::net::SocketAddr;

use clap::Parser;

/// Keeps links, GID tables, slots and counters for programs that use RDMA.
#[derive(Debug, Clone, Default, Parser)]
#[command(
    name = "ferroced",
    version,
    long_about = "\
ferroced keeps what the programs of one network namespace share: the RDMA links that \
`ferroce link add` creates, their GID tables, the slots on UDP port 4791, and the counters. It \
carries no data: programs send and receive packets themselves.

One ferroced serves a network namespace: the first to start owns UDP port 4791 there. A user's \
ferroced serves that user. Root's ferroced also serves the members of a group. `ferroce link add` \
starts ferroced in the background when none runs, so you need this command only to run it under a \
service manager.

ferroced can be stopped, killed and started again at any time. Running programs continue and \
keep their slots; ferroced restores links and counters when it starts.

A ferroced in the background ends when its network namespace is abandoned: when no other process \
is in it, and no mount (`ip netns`) and no open descriptor refers to it. ferroced checks every \
ten seconds while it serves no program. It stays if it may not inspect all processes, which an \
ordinary user may not.",
    after_long_help = "\
FILES
    /run/ferroce/NETNS/                      root's runtime directory
    $XDG_RUNTIME_DIR/ferroce/NETNS/          a user's
    /run/user/UID/ferroce/NETNS/             a user's, without the variable
    /tmp/ferroce.RANDOM/NETNS/               a user's, if neither exists; found by its owner
                                             and its mode 0700
        control.sock    control socket for programs
        ferroced.pid    PID of ferroced; locked while it runs
        state.json      state for the next ferroced
        ferroced.log    messages of a ferroced in the background; ferroced.old: the messages
                        before, each at most 512 KiB
        sysfs/          files that `ferroce run` shows as /sys/class/infiniband
    /etc/ferroce/links.toml                  links to create with --configured, for root
    $XDG_CONFIG_HOME/ferroce/links.toml      the same for a user (~/.config/ferroce)
    NETNS is the inode number of the network namespace (`stat -Lc %i /proc/self/ns/net`).

ENVIRONMENT
    FERROCE_RUNTIME_DIR   replaces the directory above NETNS
    FERROCE_CONFIG_DIR    replaces the directory of links.toml
    FERROCE_LOG           messages to log: a level (off, error, warn (default), info, debug,
                          trace), MODULE=LEVEL such as ferroce_net=debug, or several with
                          commas

EXAMPLES
    ferroced
        start in the background and return when programs can connect
    ferroced --foreground
        stay in the foreground and log to standard error, for service managers
    ferroced --foreground --configured --replace
        the same, with the links of the configuration, in place of a running ferroced:
        the command of the systemd units
    ferroced --foreground --group rdma
        serve members of the group rdma as well
    ferroced --replace --metrics 127.0.0.1:9947
        serve http://127.0.0.1:9947/metrics (links) and /metrics/programs, in place of a running
        ferroced; every program that can connect can read them
    ip netns exec blue ferroced
        serve the network namespace blue"
)]
pub struct Options {
    /// Stay in the foreground and log to standard error
    #[arg(short, long)]
    pub foreground: bool,

    /// Serve members of this group, too (name or number) [default for root: `ferroce`]
    #[arg(short, long)]
    pub group: Option<String>,

    /// Create the links of the configuration file (see FILES)
    #[arg(short, long)]
    pub configured: bool,

    /// Replace a running ferroced; programs, links and connections stay
    #[arg(short, long)]
    pub replace: bool,

    /// Serve the counters to Prometheus on this address and TCP port, in the format OpenMetrics
    #[arg(short, long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,

    /// End when there is no link and no program left
    #[arg(long)]
    pub exit_when_unused: bool,

    /// Interval of the check whether the network namespace is in use
    #[arg(long, hide = true, value_name = "MS", default_value_t = 10_000)]
    pub namespace_check_ms: u64,

    /// This is the background process; standard output is a pipe to the waiting process
    #[arg(long, hide = true)]
    pub detached: bool,
}
