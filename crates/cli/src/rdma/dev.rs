//! `rdma dev`: shows and renames devices.

use anyhow::{Context, Result, bail};
use ferroce_control::LinkInfo;

use super::row::{self, Row};
use super::words::Words;
use super::{SharedOptions, links};
use crate::{link, output};

pub(super) const USAGE: &str = "\
Usage: rdma dev show [DEV]
       rdma dev set [DEV] name DEVNAME
";

/// The device capabilities, by iproute2's names. They are those of the kernel's rxe.
const CAPABILITIES: [&str; 12] = [
    "BAD_PKEY_CNTR",
    "BAD_QKEY_CNTR",
    "AUTO_PATH_MIG",
    "CHANGE_PHY_PORT",
    "UD_AV_PORT_ENFORCE_PORT_ENFORCE",
    "PORT_ACTIVE_EVENT",
    "SYS_IMAGE_GUID",
    "RC_RNR_NAK_GEN",
    "SRQ_RESIZE",
    "MEM_WINDOW",
    "MEM_MGT_EXTENSIONS",
    "MEM_WINDOW_TYPE_2B",
];

pub(super) fn run(mut words: Words<'_>, options: SharedOptions) -> Result<()> {
    let commands = ["show", "list", "set", "help"];
    match words.command("dev command", &commands, Some("show"))? {
        Some("help") => output::write(USAGE),
        Some("set") => set(words),
        _ => {
            let only = words.next();
            words.end()?;
            let rows: Vec<Row> = links(only)?.iter().map(|l| device(l, options)).collect();
            row::show(&rows, options.format)
        }
    }
}

fn set(mut words: Words<'_>) -> Result<()> {
    let name = words.next().context("the name of a device is missing")?;
    let name = name.to_owned();
    let parameter = words.command("parameter", &["name", "netns", "adaptive-moderation"], None)?;
    let value = words.next().map(str::to_owned);
    words.end()?;
    match (parameter, value) {
        (Some("name"), Some(new)) => link::rename(name, new),
        (Some("netns"), Some(_)) => bail!(
            "Operation not supported: device {name} cannot leave its network namespace; \
             add another device in the other namespace"
        ),
        (Some("adaptive-moderation"), Some(_)) => {
            bail!("Operation not supported: device {name} has no interrupts to moderate")
        }
        (Some(parameter), None) => bail!("the value of '{parameter}' is missing\n{USAGE}"),
        _ => bail!("the parameter to set is missing\n{USAGE}"),
    }
}

fn device(link: &LinkInfo, options: SharedOptions) -> Row {
    let guid = guid(link);
    let LinkInfo { index, name, .. } = link;
    let head = format!("{index}: {name}: ");
    let names = [
        ("ifindex", (*index).into()),
        ("ifname", name.clone().into()),
    ];
    let row = Row::new(head, names)
        .with("node_type", "ca")
        .with("node_guid", guid.clone())
        .with("sys_image_guid", guid);
    if !options.format.details {
        return row;
    }
    let caps = CAPABILITIES.to_vec();
    let text = format!("\n    caps: <{}>", caps.join(", "));
    row.with_tail("caps", caps, &text)
}

/// Formats the node GUID as four groups of four hexadecimal digits.
fn guid(link: &LinkInfo) -> String {
    let guid = link.guid();
    let groups = guid.chunks(2).map(|c| format!("{:02x}{:02x}", c[0], c[1]));
    groups.collect::<Vec<_>>().join(":")
}
