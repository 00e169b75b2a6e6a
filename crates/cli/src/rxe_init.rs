//! `rxe_init.sh`, as HPE's guide has it: a link for each netdev, `hsn0` if none is named.
//!
//! It may be run again at any time: a netdev that has a link keeps it.

use anyhow::{Result, bail};
use ferroce_control::LinkInfo;

use crate::{daemon, output, rxe_cfg};

const USAGE: &str = "\
Usage: rxe_init.sh [NETDEV ...]
Makes links rxe0, rxe1, ... on the netdevs, hsn0 by default. This one is Ferroce's:
no kernel module is loaded, root is not needed, and there are no settings to make.
To have them after every start: `rxe_cfg add NETDEV`, or `ferroce config --help`.
";

/// Does what the command line says.
pub(crate) fn run() -> Result<()> {
    let mut netdevs: Vec<String> = std::env::args().skip(1).collect();
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
