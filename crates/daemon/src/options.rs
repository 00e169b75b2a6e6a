//! The command line of ferroced.

use clap::Parser;

/// Keeps links, GID tables, slots and counters for programs that use RDMA.
#[derive(Debug, Clone, Default, Parser)]
#[command(
    name = "ferroced",
    version,
    long_about = "\
ferroced keeps what the programs of one network namespace share: the RDMA links that \
`ferroce link add` makes, their GID tables, the slots on UDP port 4791, and the counters. It \
carries no data: programs talk to the network themselves.

There is one ferroced for each network namespace and user. Root's is system-wide and also \
serves the members of a group. `ferroce link add` starts one in the background when none runs, \
so you need this command only to run it under a service manager.

ferroced can be stopped, killed and started again at any time. Programs that run go on, and \
keep their slots; links and counters are there again when it is.

A ferroced in the background ends when its network namespace is abandoned: when no other process \
lives there, and no mount (`ip netns`) and no open descriptor leads there. It looks every ten \
seconds while it serves no program, and stays if it may not look at all processes (as an ordinary \
user it may not).",
    after_long_help = "\
FILES
    /run/ferroce/NETNS/                      root's runtime directory
    $XDG_RUNTIME_DIR/ferroce/NETNS/          a user's
    /run/user/UID/ferroce/NETNS/             a user's, without the variable
    /tmp/ferroce.RANDOM/NETNS/               a user's, where neither exists; found again as a
                                             directory of this user with mode 0700
        control.sock    where programs connect
        ferroced.pid    the process number; locked while ferroced runs
        state.json      what the next ferroced has to know
        ferroced.log    messages of a ferroced in the background; ferroced.old: those before,
                        at 512 KiB each
        sysfs/          what `ferroce run` shows programs as /sys/class/infiniband
    /etc/ferroce/links.toml                  links to make with --configured, for root
    $XDG_CONFIG_HOME/ferroce/links.toml      the same for a user (~/.config/ferroce)
    NETNS is the inode number of the network namespace (`stat -Lc %i /proc/self/ns/net`).

ENVIRONMENT
    FERROCE_RUNTIME_DIR   replaces the directory above NETNS
    FERROCE_CONFIG_DIR    replaces the directory of links.toml
    FERROCE_LOG           what to log: error, warn (default), info, debug

EXAMPLES
    ferroced
        start in the background, and return when programs can connect
    ferroced --foreground
        stay, and log to standard error: for service managers
    ferroced --foreground --configured --replace
        the same, with the links of the configuration, and in the place of one that
        `ferroce link add` has started: what the systemd units do
    ferroced --foreground --group rdma
        serve members of the group rdma as well
    ip netns exec blue ferroced
        serve the network namespace blue"
)]
pub struct Options {
    /// Stay in the foreground and log to standard error
    #[arg(short, long)]
    pub foreground: bool,

    /// Serve members of this group, too (name or number) [default: root's serves `ferroce`]
    #[arg(short, long)]
    pub group: Option<String>,

    /// Make the links that the configuration names (see FILES)
    #[arg(short, long)]
    pub configured: bool,

    /// Take the place of a ferroced that runs: programs, links and connections stay
    #[arg(short, long)]
    pub replace: bool,

    /// End when there is no link and no program left
    #[arg(long)]
    pub exit_when_unused: bool,

    /// How often a ferroced in the background looks whether its network namespace is used
    #[arg(long, hide = true, value_name = "MS", default_value_t = 10_000)]
    pub namespace_check_ms: u64,

    /// We are the process that stays, and standard output leads to the one that waits.
    #[arg(long, hide = true)]
    pub detached: bool,
}
