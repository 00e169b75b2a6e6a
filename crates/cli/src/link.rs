//! `ferroce link`: like `rdma link` of iproute2.

pub(crate) mod show;
mod words;

use anyhow::Result;
use clap::{Args, Subcommand};
use ferroce_control::{Error, Request};

use crate::daemon;
use crate::output::Format;

/// Add, delete and show links.
#[derive(Debug, Args)]
#[command(
    infer_subcommands = true,
    args_conflicts_with_subcommands = true,
    long_about = "\
A link is an RDMA device on top of a netdev: what `ibv_devices` lists and programs open. Without \
a subcommand, shows all links.",
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
    /// Add a link: NAME type rxe netdev IF [mtu N] [crc on|off] [lids on|off] [patience S]
    #[command(
        override_usage = "ferroce link add NAME type rxe netdev IF [mtu N] [crc on|off] [lids on|off] [patience S]",
        long_about = "\
Adds a link: an RDMA device called NAME on the netdev IF, which must have an IP address and \
cannot have another link. Any netdev will do, `lo` included. Starts ferroced if none runs.",
        after_long_help = "\
WORDS
    type rxe        RoCEv2, the protocol of the kernel's rdma_rxe and of RoCE NICs
    type siw        iWARP: not yet
    netdev IF       the netdev to use
    mtu N           carry at most N bytes in a packet: 256, 512, 1024, 2048 or 4096;
                    by default as much as the netdev's MTU, less 80 bytes, allows
    crc on|off      compute and check the ICRC of packets (on); off helps only
                    against a peer that has it off, too
    lids on|off     give the port a LID, the lower half of its IPv4 address, and let
                    programs address peers by LID (off); for programs that know
                    InfiniBand only, such as qperf. On RoCE ports elsewhere they fail
    patience S      keep connections for S seconds at least when the peer is silent
                    (0: as long as the program's timeout and retry_cnt say, which is 2
                    seconds for 14 and 7); for peers in a debugger or a paused container

EXAMPLES
    ferroce link add rxe0 type rxe netdev eth0
    ferroce link add rxe_lo type rxe netdev lo mtu 1024"
    )]
    Add {
        /// NAME type rxe netdev IF [mtu N] [crc on|off] [lids on|off] [patience S]
        #[arg(required = true, num_args = 1.., hide = true)]
        words: Vec<String>,
    },

    /// Change a link: NAME [name NEW] [mtu N] [crc on|off] [lids on|off] [patience S]
    #[command(
        override_usage = "ferroce link set NAME [name NEW] [mtu N] [crc on|off] [lids on|off] [patience S]",
        long_about = "\
Changes the name of a link, its largest packet payload (0: what the netdev allows), whether ICRCs \
are checked, whether LIDs stand for IPv4 addresses, or how long silent peers are waited for. \
Programs that run go on under a new name, and hear of a new MTU. A change of `crc` or `patience` is for programs that open the link from now on: those that run go on as they began.",
        after_long_help = "\
EXAMPLES
    ferroce link set rxe0 mtu 1024
    ferroce link set rxe0 crc off
    ferroce link set rxe0 lids on
    ferroce link set rxe0 patience 600
    ferroce link set rxe0 name storage"
    )]
    Set {
        /// NAME [name NEW] [mtu N] [crc on|off] [lids on|off] [patience S]
        #[arg(required = true, num_args = 3.., hide = true)]
        words: Vec<String>,
    },

    /// Delete a link
    #[command(long_about = "\
Deletes a link. A link that programs use is not deleted, and their process numbers are shown, \
unless --force is given: then their device goes away, as that of a NIC that is unplugged does.")]
    Delete {
        /// The link
        name: String,
        /// Even while programs use it
        #[arg(short, long)]
        force: bool,
    },

    /// Show links
    #[command(visible_alias = "list")]
    Show {
        /// Only this link: NAME or NAME/PORT
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

pub(crate) fn add(words: &[String]) -> Result<()> {
    let config = words::parse(words)?;
    let mut connection = daemon::connect_or_start()?;
    Ok(connection.perform(&Request::LinkAdd(config))?)
}

fn set(words: &[String]) -> Result<()> {
    let request = words::parse_set(words)?;
    let mut connection = daemon::connect()?.ok_or(Error::NoDaemon)?;
    Ok(connection.perform(&request)?)
}

pub(crate) fn rename(name: String, new: String) -> Result<()> {
    let mut connection = daemon::connect()?.ok_or(Error::NoDaemon)?;
    let request = Request::LinkSet {
        name,
        rename: Some(new),
        mtu: None,
        crc: None,
        lids: None,
        patience: None,
    };
    Ok(connection.perform(&request)?)
}

pub(crate) fn delete(name: String, force: bool) -> Result<()> {
    let mut connection = daemon::connect()?.ok_or(Error::NoDaemon)?;
    Ok(connection.perform(&Request::LinkDelete { name, force })?)
}
