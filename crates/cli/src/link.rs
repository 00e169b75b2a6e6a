//! `ferroce link`: adds, changes, deletes and shows links, like `rdma link` of iproute2.

pub(crate) mod show;
mod words;

use anyhow::Result;
use clap::{Args, Subcommand};
use ferroce_control::{Error, Request};

use crate::daemon;
use crate::output::Format;

/// Add, change, delete and show links.
#[derive(Debug, Args)]
#[command(
    infer_subcommands = true,
    args_conflicts_with_subcommands = true,
    long_about = "\
A link is an RDMA device on top of a netdev. `ibv_devices` lists links, and programs open them. \
Without a subcommand, shows all links.",
    after_long_help = "\
EXAMPLES
    ferroce link add rxe0 type rxe netdev eth0
    ferroce link add rxe1 type rxe netdev lo mtu 1024
    ferroce link
        link rxe0/1 state ACTIVE physical_state LINK_UP netdev eth0
        link rxe1/1 state ACTIVE physical_state LINK_UP netdev lo
    ferroce -j link show rxe0
    ferroce link delete rxe1"
)]
pub(crate) struct LinkArgs {
    #[command(subcommand)]
    command: Option<LinkCommand>,
}

#[derive(Debug, Subcommand)]
enum LinkCommand {
    /// Add a link: NAME type rxe|siw netdev IF [mtu N] [crc on|off] [lids on|off] [patience S] [speed N] [local on|off] [strict on|error|off] [profile NAME|off]
    #[command(
        override_usage = "ferroce link add NAME type rxe|siw netdev IF [mtu N] [crc on|off] [lids on|off] [patience S] [speed N] [local on|off] [strict on|error|off] [profile NAME|off]",
        long_about = "\
Adds a link: an RDMA device called NAME on the netdev IF. Any netdev with an IP address and \
without another link of the same type can be used, `lo` included. Starts ferroced if none runs.",
        after_long_help = "\
WORDS
    type rxe        the protocol: RoCEv2, like the kernel's rdma_rxe and RoCE NICs
    type siw        iWARP over TCP, like the kernel's siw and iWARP NICs. Of the words
                    below it takes netdev, crc (default: off), speed and local
    netdev IF       the netdev
    mtu N           largest payload of a packet: 256, 512, 1024, 2048 or 4096 bytes;
                    default: the largest that fits the netdev's MTU less 80 bytes
    crc on|off      compute and check the ICRC of packets; default: on. Off works only
                    if the peer has it off, too. With type siw: ask peers for CRCs
    lids on|off     give the port a LID, the lower half of its IPv4 address, and let
                    programs address peers by LID; default: off. For programs that
                    support InfiniBand addressing only, such as qperf
    patience S      keep connections to a silent peer for at least S seconds, for peers
                    in a debugger or a paused container; default: 0, which is as long
                    as timeout and retry_cnt of the program say (2 seconds for 14 and 7)
    speed N         speed that programs see, such as 100g, 2.5g or 100m; default: that of
                    the netdev, and if it reports none 25g for loopback, 10g for others.
                    UCX and NCCL choose by it; it does not limit the link
    local on|off    let programs of one user on this host exchange packets through shared
                    memory instead of UDP, or TCP with type siw; default: on.
                    FERROCE_WIRE=udp (or tcp) in the environment of a program chooses UDP
                    or TCP for that program
    strict on|error|off
                    warn programs of mistakes that hardware would punish, or make the
                    verbs fail; default: off. As `ferroce run --strict`, for all programs
                    on the link
    profile mlx5|efa|rxe|off
                    show and enforce the limits of a real adapter; default: off. As
                    `ferroce run --profile`, for all programs on the link

EXAMPLES
    ferroce link add rxe0 type rxe netdev eth0
    ferroce link add rxe_lo type rxe netdev lo mtu 1024
    ferroce link add siw0 type siw netdev eth0
    ferroce link add rxe1 type rxe netdev veth0 speed 100g
    ferroce link add rxe2 type rxe netdev lo strict on profile mlx5"
    )]
    Add {
        /// NAME type rxe|siw netdev IF [mtu N] [crc on|off] [lids on|off] [patience S] [speed N] [local on|off] [strict on|error|off] [profile NAME|off]
        #[arg(required = true, num_args = 1.., hide = true)]
        words: Vec<String>,
    },

    /// Change a link: NAME [name NEW] [mtu N] [crc on|off] [lids on|off] [patience S] [speed N] [local on|off] [strict on|error|off] [profile NAME|off] [faults 'FAULTS'|off]
    #[command(
        override_usage = "ferroce link set NAME [name NEW] [mtu N] [crc on|off] [lids on|off] [patience S] [speed N] [local on|off] [strict on|error|off] [profile NAME|off] [faults 'FAULTS'|off]",
        long_about = "\
Changes a link. `ferroce link add --help` describes the words. `mtu 0` selects the largest MTU \
that the netdev allows, `speed 0` the netdev's speed. Running programs keep working after a change of the name, and get an \
event for a new MTU. `faults` applies to running programs, too, until `faults off`; `ferroce run \
--help` describes the words. A change of `crc`, `patience`, `strict` or `profile` applies to programs that open the link \
afterwards, a change of `local` to queue pairs that are connected afterwards.",
        after_long_help = "\
EXAMPLES
    ferroce link set rxe0 mtu 1024
    ferroce link set rxe0 crc off
    ferroce link set rxe0 lids on
    ferroce link set rxe0 patience 600
    ferroce link set rxe0 faults 'loss 1% seed 7'
    ferroce link set rxe0 faults 'partition peer 10.0.0.2 for 5s; delay 2ms'
    ferroce link set rxe0 faults off
    ferroce link set rxe0 strict error
    ferroce link set rxe0 profile off
    ferroce link set rxe0 name storage"
    )]
    Set {
        /// NAME [name NEW] [mtu N] [crc on|off] [lids on|off] [patience S] [speed N] [local on|off] [strict on|error|off] [profile NAME|off] [faults 'FAULTS'|off]
        #[arg(required = true, num_args = 3.., hide = true)]
        words: Vec<String>,
    },

    /// Delete a link
    #[command(
        long_about = "\
Deletes a link. If programs use the link, the command fails and names their processes. With \
--force it deletes the link anyway: the programs then lose their device, as if a NIC were \
unplugged.",
        after_long_help = "\
EXAMPLES
    ferroce link delete rxe0
    ferroce link delete --force rxe0"
    )]
    Delete {
        /// Name of the link
        name: String,
        /// Delete the link even if programs use it
        #[arg(short, long)]
        force: bool,
    },

    /// Show links
    #[command(
        visible_alias = "list",
        after_long_help = "\
EXAMPLES
    ferroce link show
    ferroce -d link show rxe0"
    )]
    Show {
        /// Show only this link: NAME or NAME/PORT
        link: Option<String>,
    },
}

impl LinkArgs {
    pub(crate) fn run(self, format: Format) -> Result<()> {
        match self.command {
            Some(LinkCommand::Add { words }) => add(&words),
            Some(LinkCommand::Set { words }) => set(&words),
            Some(LinkCommand::Delete { name, force }) => delete(name, force),
            Some(LinkCommand::Show { link }) => show::run(link.as_deref(), format),
            None => show::run(None, format),
        }
    }
}

/// Adds a link. `words` are those after `link add`.
pub(crate) fn add(words: &[String]) -> Result<()> {
    let config = words::parse(words)?;
    let mut connection = daemon::connect_or_start()?;
    Ok(connection.perform(&Request::LinkAdd(config))?)
}

fn set(words: &[String]) -> Result<()> {
    let requests = words::parse_set(words)?;
    let mut connection = daemon::connect()?.ok_or(Error::NoDaemon)?;
    for request in &requests {
        connection.perform(request)?;
    }
    Ok(())
}

/// Renames a link.
pub(crate) fn rename(name: String, new: String) -> Result<()> {
    let mut connection = daemon::connect()?.ok_or(Error::NoDaemon)?;
    let request = Request::LinkSet {
        name,
        rename: Some(new),
        mtu: None,
        crc: None,
        lids: None,
        patience: None,
        speed: None,
        local: None,
        strict: None,
        profile: None,
    };
    Ok(connection.perform(&request)?)
}

/// Deletes a link, with `force` even while programs use it.
pub(crate) fn delete(name: String, force: bool) -> Result<()> {
    let mut connection = daemon::connect()?.ok_or(Error::NoDaemon)?;
    Ok(connection.perform(&Request::LinkDelete { name, force })?)
}
