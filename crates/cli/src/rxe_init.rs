//! `rxe_init.sh` of HPE's guide: adds a link on each named netdev, by default on `hsn0`.
//!
//! The command may be repeated: a netdev that has a link keeps it.

use anyhow::{Result, bail};
use ferroce_control::LinkInfo;

use crate::arguments::arguments;
use crate::{daemon, output, rxe_cfg};

const USAGE: &str = "\
Usage: rxe_init.sh [NETDEV ...]
Adds links rxe0, rxe1, ... on the netdevs, by default on hsn0. For example:
    rxe_init.sh hsn0 hsn1
This rxe_init.sh is part of Ferroce: it loads no kernel module and needs no root.
The links last until the machine restarts. `rxe_cfg add NETDEV` adds one that is
added again at every start; see also `ferroce config --help`.
";

/// Parses the command line and adds the links.
pub(crate) fn run() -> Result<()> {
    let mut netdevs = arguments()?;
    if netdevs.iter().any(|word| word == "-h" || word == "--help") {
        return output::write(USAGE);
    }
    if netdevs.is_empty() {
        netdevs.push("hsn0".into());
    }
    let mut failed = Vec::new();
    let mut connection = daemon::connect_or_start()?;
    for netdev in netdevs {
        let has = |link: &LinkInfo| link.netdev == netdev;
        if connection.links()?.iter().any(has) {
            continue;
        }
        if let Err(error) = rxe_cfg::add_next(&mut connection, &netdev) {
            failed.push(format!("{netdev}: {error:#}"));
        }
    }
    match &failed[..] {
        [] => Ok(()),
        failed => bail!("{}", failed.join("\nerror: ")),
    }
}
