//! `ferroce link show`: prints links in the text and JSON formats of `rdma link show`.

use anyhow::{Result, bail};
use ferroce_control::{Gid, LinkInfo};
use serde::Serialize;

use crate::daemon;
use crate::output::{self, Format};

/// The only port of a link.
pub(crate) const PORT: u32 = 1;

/// Prints all links, or the link `only`.
pub(crate) fn run(only: Option<&str>, format: Format) -> Result<()> {
    let links = match daemon::connect()? {
        Some(mut connection) => connection.links()?,
        None => Vec::new(),
    };
    let links = chosen(links, only)?;
    if format.json || format.pretty {
        let shown: Vec<Shown<'_>> = links.iter().map(|link| shown(link, format)).collect();
        return format.write_json(&shown);
    }
    let lines = links.iter().map(|link| text(link, format));
    output::write(&lines.collect::<String>())
}

/// Returns all links, or the link `only`. Fails if no link has that name.
pub(crate) fn chosen(mut links: Vec<LinkInfo>, only: Option<&str>) -> Result<Vec<LinkInfo>> {
    if let Some(wanted) = only {
        let name = link_name(wanted)?;
        let names: Vec<String> = links.iter().map(|link| link.name.clone()).collect();
        links.retain(|link| link.name == name);
        if links.is_empty() {
            bail!(
                "Wrong device name: link {name} does not exist; {}",
                list_existing(&names)
            );
        }
    }
    Ok(links)
}

/// Returns the name in `NAME` or `NAME/PORT`.
pub(crate) fn link_name(wanted: &str) -> Result<&str> {
    match wanted.split_once('/') {
        None => Ok(wanted),
        Some((name, "" | "1")) => Ok(name),
        Some((name, port)) => bail!("link {name} has no port `{port}`; its only port is {PORT}"),
    }
}

/// Returns the end of an error message: the links that exist, or how to add one.
pub(crate) fn list_existing(names: &[String]) -> String {
    match names {
        [] => "there are no links; `ferroce link add NAME type rxe netdev IF` adds one".into(),
        names => format!("existing links: {}", names.join(", ")),
    }
}

/// Formats a link as one line with a space after each field, exactly as iproute2 does.
fn text(link: &LinkInfo, format: Format) -> String {
    let LinkInfo { name, netdev, .. } = link;
    let (state, physical) = (link.state(), link.physical_state());
    let mut text =
        format!("link {name}/{PORT} state {state} physical_state {physical} netdev {netdev} ");
    if format.details {
        let (index, mtu, netdev_mtu) = (link.ifindex, link.active_mtu, link.netdev_mtu);
        text += &format!("netdev_index {index} \n    mtu {mtu} netdev_mtu {netdev_mtu} ");
        if let Some(speed) = link.speed_mbps {
            text += &format!("speed {speed} ");
        }
        text += &format!("crc {} ", if link.crc { "on" } else { "off" });
        if link.lids {
            text += "lids on ";
        }
        if link.patience > 0 {
            text += &format!("patience {} ", link.patience);
        }
        if !link.local {
            text += "local off ";
        }
        for gid in &link.gids {
            let (index, address, netdev) = (gid.index, gid.address, &gid.netdev);
            text += &format!("\n    gid {index} {address} netdev {netdev} ");
        }
    }
    if !link.strict.is_empty() || !link.profile.is_empty() {
        text += "\n    ";
    }
    if !link.strict.is_empty() {
        text += &format!("strict {} ", link.strict);
    }
    if !link.profile.is_empty() {
        text += &format!("profile {} ", link.profile);
    }
    if !link.faults.is_empty() {
        text += &format!("\n    faults {} ", link.faults);
    }
    text + "\n"
}

/// A link as JSON. Keys and their order are those of iproute2. Keys that iproute2 does not
/// have come last.
#[derive(Serialize)]
struct Shown<'a> {
    ifindex: u32,
    ifname: &'a str,
    port: u32,
    state: String,
    physical_state: String,
    netdev: &'a str,
    netdev_index: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    faults: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    strict: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    profile: &'a str,
    #[serde(flatten)]
    details: Option<Details<'a>>,
}

#[derive(Serialize)]
struct Details<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    mtu: u32,
    netdev_mtu: u32,
    speed: Option<u32>,
    crc: bool,
    lids: bool,
    patience: u32,
    local: bool,
    gids: &'a [Gid],
}

fn shown(link: &LinkInfo, format: Format) -> Shown<'_> {
    Shown {
        ifindex: link.index,
        ifname: &link.name,
        port: PORT,
        state: link.state().to_string(),
        physical_state: link.physical_state().to_string(),
        netdev: &link.netdev,
        netdev_index: link.ifindex,
        faults: &link.faults,
        strict: &link.strict,
        profile: &link.profile,
        details: format.details.then_some(Details {
            kind: &link.kind,
            mtu: link.active_mtu,
            netdev_mtu: link.netdev_mtu,
            speed: link.speed_mbps,
            crc: link.crc,
            lids: link.lids,
            patience: link.patience,
            local: link.local,
            gids: &link.gids,
        }),
    }
}

/// Returns a link for tests: `rxe0`, up, on a netdev with this name and index.
#[cfg(test)]
pub(crate) fn sample(netdev: &str, ifindex: u32) -> LinkInfo {
    LinkInfo {
        up: true,
        carrier: true,
        netdev_mtu: 1500,
        active_mtu: 1024,
        ..LinkInfo::new("rxe0", netdev, ifindex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> LinkInfo {
        sample("enp1s0", 2)
    }

    #[test]
    fn text_is_that_of_iproute2() {
        let line = "link rxe0/1 state ACTIVE physical_state LINK_UP netdev enp1s0 \n";
        assert_eq!(text(&link(), Format::default()), line);
        let down = LinkInfo {
            up: false,
            carrier: false,
            ..link()
        };
        let line = "link rxe0/1 state DOWN physical_state DISABLED netdev enp1s0 \n";
        assert_eq!(text(&down, Format::default()), line);
    }

    #[test]
    fn json_is_that_of_iproute2() {
        let expected = concat!(
            r#"{"ifindex":0,"ifname":"rxe0","port":1,"state":"ACTIVE","#,
            r#""physical_state":"LINK_UP","netdev":"enp1s0","netdev_index":2}"#
        );
        let link = link();
        let shown = shown(&link, Format::default());
        assert_eq!(serde_json::to_string(&shown).unwrap(), expected);
    }

    #[test]
    fn name_may_have_port_1() {
        assert_eq!(link_name("rxe0").unwrap(), "rxe0");
        assert_eq!(link_name("rxe0/1").unwrap(), "rxe0");
        assert!(link_name("rxe0/2").is_err());
    }
}
