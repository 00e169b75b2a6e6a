//! `ferroce devinfo`: shows what `ibv_devinfo` shows, without loading a library.

use anyhow::Result;
use clap::Args;
use ferroce_control::LinkInfo;
use ferroce_control::link::MTUS;
use ferroce_control::{PhysicalState, PortState};

use crate::daemon;
use crate::link::show::chosen;
use crate::output::Format;
use crate::{gids, output};

/// Show links in the format of ibv_devinfo
#[derive(Debug, Args)]
#[command(
    long_about = "\
Shows links in the format of ibv_devinfo. It needs neither ibv_devinfo nor `ferroce run`.",
    after_long_help = "\
EXAMPLES
    ferroce devinfo
    ferroce devinfo -v rxe0"
)]
pub(crate) struct DevinfoArgs {
    /// Show the physical state, the netdev and the GID table, too
    #[arg(short, long)]
    verbose: bool,

    /// Show only this link
    link: Option<String>,
}

impl DevinfoArgs {
    pub(crate) fn run(self, format: Format) -> Result<()> {
        let all = match daemon::connect()? {
            Some(mut connection) => connection.links()?,
            None => Vec::new(),
        };
        let verbose = self.verbose || format.details;
        let links = chosen(all, self.link.as_deref())?;
        if links.is_empty() {
            return output::write("No IB devices found\n");
        }
        let texts = links.iter().map(|link| text(link, verbose));
        output::write(&texts.collect::<Vec<_>>().join("\n"))
    }
}

fn text(link: &LinkInfo, verbose: bool) -> String {
    let guid = link.guid();
    let guid = guid.chunks(2).map(|c| format!("{:02x}{:02x}", c[0], c[1]));
    let guid = guid.collect::<Vec<_>>().join(":");
    let state = match link.state() {
        PortState::Active => "PORT_ACTIVE (4)",
        PortState::Down => "PORT_DOWN (1)",
    };
    let physical = match link.physical_state() {
        PhysicalState::LinkUp => "LINK_UP (5)",
        PhysicalState::Polling => "POLLING (2)",
        PhysicalState::Disabled => "DISABLED (3)",
    };
    let version = env!("CARGO_PKG_VERSION");
    let (transport, vendor, part) = match link.is_iwarp() {
        true => ("iWARP (1)", "0x626d74", "1"),
        false => ("InfiniBand (0)", "0xffffff", "0"),
    };
    let mut text = format!("hca_id:\t{}\n", link.name);
    for (name, value) in [
        ("transport", transport.to_owned()),
        ("fw_ver", version.to_owned()),
        ("node_guid", guid.clone()),
        ("sys_image_guid", guid),
        ("vendor_id", vendor.into()),
        ("vendor_part_id", part.into()),
        ("hw_ver", "0x0".into()),
        ("phys_port_cnt", "1".into()),
    ] {
        text += &format!("\t{:<32}{value}\n", format!("{name}:"));
    }
    text += "\t\tport:\t1\n";
    let mut port = vec![
        ("state", state.to_owned()),
        ("max_mtu", mtu(4096)),
        ("active_mtu", mtu(link.active_mtu)),
        ("sm_lid", "0".into()),
        ("port_lid", link.lid().to_string()),
        ("port_lmc", "0x00".into()),
        ("link_layer", "Ethernet".into()),
    ];
    if verbose {
        port.push(("phys_state", physical.into()));
        port.push(("netdev", link.netdev.clone()));
    }
    for (name, value) in port {
        text += &format!("\t\t\t{:<24}{value}\n", format!("{name}:"));
    }
    if verbose && link.is_iwarp() {
        text += &format!("\t\t\tGID[  0]:\t\t{}\n", gids::groups(&link.mac_gid()));
    } else if verbose {
        for gid in &link.gids {
            text += &format!(
                "\t\t\tGID[{:3}]:\t\t{}, RoCE v2\n",
                gid.index,
                gids::written(gid)
            );
        }
    }
    text
}

fn mtu(bytes: u32) -> String {
    let code = MTUS
        .iter()
        .position(|mtu| *mtu == bytes)
        .map_or(0, |n| n + 1);
    format!("{bytes} ({code})")
}
