//! `ferroce link show`: text and JSON as `rdma link show` prints them.

use anyhow::{Result, bail};
use ferroce_control::{Gid, LinkInfo};
use serde::Serialize;

use crate::daemon;
use crate::output::{self, Format};

/// The only port of a link.
pub(crate) const PORT: u32 = 1;

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

/// Those that are wanted; a name that is none is an error.
pub(crate) fn chosen(mut links: Vec<LinkInfo>, only: Option<&str>) -> Result<Vec<LinkInfo>> {
    if let Some(wanted) = only {
        let name = link_name(wanted)?;
        let names: Vec<String> = links.iter().map(|link| link.name.clone()).collect();
        links.retain(|link| link.name == name);
        if links.is_empty() {
            bail!("Wrong device name: no link `{name}`; {}", there_is(&names));
        }
    }
    Ok(links)
}

/// The name in `NAME` or `NAME/PORT`.
pub(crate) fn link_name(wanted: &str) -> Result<&str> {
    match wanted.split_once('/') {
        None => Ok(wanted),
        Some((name, "" | "1")) => Ok(name),
        Some((name, port)) => bail!("link {name} has no port `{port}`: its port is {PORT}"),
    }
}

/// What there is instead, for people.
pub(crate) fn there_is(names: &[String]) -> String {
    match names {
        [] => "there is none; `ferroce link add NAME type rxe netdev IF` adds one".into(),
        names => format!("there is {}", names.join(", ")),
    }
}

/// One line for each link, with a space behind each field: exactly as iproute2 does it.
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
        for gid in &link.gids {
            let (index, address, netdev) = (gid.index, gid.address, &gid.netdev);
            text += &format!("\n    gid {index} {address} netdev {netdev} ");
        }
    }
    text + "\n"
}

/// A link as JSON. Keys and their order are those of iproute2; what it does not have
/// comes last.
#[derive(Serialize)]
struct Shown<'a> {
    ifindex: u32,
    ifname: &'a str,
    port: u32,
    state: String,
    physical_state: String,
    netdev: &'a str,
    netdev_index: u32,
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
        details: format.details.then_some(Details {
            kind: &link.kind,
            mtu: link.active_mtu,
            netdev_mtu: link.netdev_mtu,
            speed: link.speed_mbps,
            crc: link.crc,
            lids: link.lids,
            patience: link.patience,
            gids: &link.gids,
        }),
    }
}

/// A link for tests: `rxe0`, up, on a netdev of this name and number.
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
    fn a_port_may_be_named() {
        assert_eq!(link_name("rxe0").unwrap(), "rxe0");
        assert_eq!(link_name("rxe0/1").unwrap(), "rxe0");
        assert!(link_name("rxe0/2").is_err());
    }
}
