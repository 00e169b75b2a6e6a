//! `ferroce gids`: shows the GID tables of links.

use std::net::IpAddr;

use anyhow::Result;
use clap::Args;
use ferroce_control::Gid;
use serde::Serialize;

use crate::daemon;
use crate::link::show::{PORT, chosen};
use crate::output::{self, Format};

/// Show GID tables: the index to pass to -g or -x
#[derive(Debug, Args)]
#[command(
    long_about = "\
Shows the GID tables of links: each address of a link with its index. Programs expect this index \
as `-g INDEX` (ibv_rc_pingpong) or `-x INDEX` (perftest).",
    after_long_help = "\
EXAMPLES
    ferroce gids
        DEV   PORT  INDEX  GID                                      IPv4      VER  NETDEV
        rxe0  1     1      0000:0000:0000:0000:0000:ffff:0a00:0001  10.0.0.1  v2   eth0"
)]
pub(crate) struct GidsArgs {
    /// Show only this link
    link: Option<String>,
}

#[derive(Serialize)]
struct Entry {
    dev: String,
    port: u32,
    index: u32,
    gid: String,
    ipv4: Option<String>,
    /// Version of RoCE; empty for iWARP.
    #[serde(skip)]
    version: &'static str,
    netdev: String,
}

impl GidsArgs {
    pub(crate) fn run(self, format: Format) -> Result<()> {
        let all = match daemon::connect()? {
            Some(mut connection) => connection.links()?,
            None => Vec::new(),
        };
        let mut entries = Vec::new();
        for link in chosen(all, self.link.as_deref())? {
            if link.is_iwarp() {
                entries.push(Entry {
                    dev: link.name.clone(),
                    port: PORT,
                    index: 0,
                    gid: groups(&link.mac_gid()),
                    ipv4: None,
                    version: "",
                    netdev: link.netdev.clone(),
                });
                continue;
            }
            entries.extend(link.gids.iter().map(|gid| Entry {
                dev: link.name.clone(),
                port: PORT,
                index: gid.index,
                gid: written(gid),
                ipv4: match gid.address {
                    IpAddr::V4(v4) => Some(v4.to_string()),
                    IpAddr::V6(_) => None,
                },
                version: "v2",
                netdev: gid.netdev.clone(),
            }));
        }
        if format.json || format.pretty {
            return format.write_json(&entries);
        }
        output::write(&table(&entries))
    }
}

fn table(entries: &[Entry]) -> String {
    let mut rows = vec![["DEV", "PORT", "INDEX", "GID", "IPv4", "VER", "NETDEV"].map(String::from)];
    for entry in entries {
        rows.push([
            entry.dev.clone(),
            entry.port.to_string(),
            entry.index.to_string(),
            entry.gid.clone(),
            entry.ipv4.clone().unwrap_or_default(),
            entry.version.into(),
            entry.netdev.clone(),
        ]);
    }
    output::columns(&rows)
}

/// Formats a GID as eight groups of four digits, like sysfs and `ibv_devinfo`.
pub(crate) fn written(gid: &Gid) -> String {
    groups(&gid.raw())
}

/// Formats 16 bytes as eight groups of four digits.
pub(crate) fn groups(raw: &[u8; 16]) -> String {
    let groups = raw.chunks(2).map(|c| format!("{:02x}{:02x}", c[0], c[1]));
    groups.collect::<Vec<_>>().join(":")
}
