//! `rdma monitor`: reports links that are added, removed or renamed.

use std::collections::BTreeMap;

use anyhow::Result;
use ferroce_control::{Connection, Error, LinkEventKind, LinkInfo, Request};
use serde_json::json;

use super::SharedOptions;
use super::words::Words;
use crate::daemon;
use crate::link::show::PORT;
use crate::output::{self, Format};

pub(super) const USAGE: &str = "Usage: rdma monitor [ -j ]\n";

/// Links by their index.
type Links = BTreeMap<u32, LinkInfo>;

/// A reported event.
#[derive(Debug, PartialEq, Eq)]
struct Event<'a> {
    what: &'static str,
    link: &'a LinkInfo,
    /// True if the event also names the netdev.
    netdev: bool,
}

/// Prints events until the process is killed.
pub(super) fn run(mut words: Words<'_>, options: SharedOptions) -> Result<()> {
    if words.one_of(&["help"]).is_some() {
        return output::write(USAGE);
    }
    words.end()?;
    let mut connection = daemon::connect_or_start()?;
    let mut known = subscribe(&mut connection)?;
    loop {
        let ended = loop {
            match connection.await_event() {
                Ok(event) => {
                    let mut now = known.clone();
                    match event.kind {
                        LinkEventKind::Removed => drop(now.remove(&event.link.index)),
                        _ => drop(now.insert(event.link.index, event.link)),
                    }
                    report(&known, &now, options.format)?;
                    known = now;
                }
                Err(error) => break error,
            }
        };
        let Error::Closed = ended else {
            return Err(ended.into());
        };
        // ferroced ended. Connect to its successor, or start one, and report the difference.
        connection = daemon::connect_or_start()?;
        let now = subscribe(&mut connection)?;
        report(&known, &now, options.format)?;
        known = now;
    }
}

/// Subscribes to events and returns the present links.
fn subscribe(connection: &mut Connection) -> Result<Links> {
    connection.perform(&Request::Subscribe)?;
    let links = connection.links()?.into_iter();
    Ok(links.map(|link| (link.index, link)).collect())
}

fn report(before: &Links, now: &Links, format: Format) -> Result<()> {
    for event in events(before, now) {
        output::write(&line(&event, format))?;
    }
    Ok(())
}

fn events<'a>(before: &'a Links, now: &'a Links) -> Vec<Event<'a>> {
    let mut all = Vec::new();
    let mut add = |what, link, netdev| all.push(Event { what, link, netdev });
    for (index, link) in before {
        if !now.contains_key(index) {
            add("UNREGISTER", link, false);
        }
    }
    for (index, link) in now {
        match before.get(index) {
            None => {
                add("REGISTER", link, false);
                add("NETDEV_ATTACH", link, true);
            }
            Some(old) => {
                if old.name != link.name {
                    add("RENAME", link, false);
                }
                if old.netdev != link.netdev {
                    add("NETDEV_RENAME", link, true);
                }
            }
        }
    }
    all
}

fn line(event: &Event<'_>, format: Format) -> String {
    let LinkInfo { index, name, .. } = event.link;
    let (netdev, number) = (&event.link.netdev, event.link.ifindex);
    let what = format!("[{}]", event.what);
    if format.json || format.pretty {
        let mut value = json!({"event_type": what, "rdma_index": index, "rdma_dev": name});
        if event.netdev {
            value["port"] = PORT.into();
            value["netdev_idx"] = number.into();
            value["netdev_name"] = netdev.clone().into();
        }
        return format!("{value}\n");
    }
    let mut text = format!("{what}\tdev {index} {name}");
    if event.netdev {
        text += &format!(" port {PORT} netdev {number} {netdev}");
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::show::sample;

    fn link(index: u32, name: &str, netdev: &str) -> LinkInfo {
        LinkInfo {
            name: name.into(),
            index,
            ..sample(netdev, 5)
        }
    }

    fn reported(before: &[&LinkInfo], now: &[&LinkInfo]) -> String {
        let known = |links: &[&LinkInfo]| -> Links {
            links.iter().map(|l| (l.index, (*l).clone())).collect()
        };
        let (before, now) = (known(before), known(now));
        let all = events(&before, &now);
        all.iter().map(|n| line(n, Format::default())).collect()
    }

    #[test]
    fn text_is_that_of_iproute2() {
        let (zero, one) = (link(0, "rxe0", "eth0"), link(1, "rxe1", "eth1"));
        assert_eq!(
            reported(&[], &[&zero]),
            "[REGISTER]\tdev 0 rxe0\n[NETDEV_ATTACH]\tdev 0 rxe0 port 1 netdev 5 eth0\n"
        );
        assert_eq!(
            reported(&[&zero, &one], &[&one]),
            "[UNREGISTER]\tdev 0 rxe0\n"
        );
        assert_eq!(
            reported(&[&zero], &[&link(0, "mine", "eth0")]),
            "[RENAME]\tdev 0 mine\n"
        );
        assert_eq!(
            reported(&[&zero], &[&link(0, "rxe0", "lan0")]),
            "[NETDEV_RENAME]\tdev 0 rxe0 port 1 netdev 5 lan0\n"
        );
        assert_eq!(reported(&[&zero], &[&zero]), "");
    }

    #[test]
    fn json_is_that_of_iproute2() {
        let event = Event {
            what: "NETDEV_ATTACH",
            link: &link(0, "rxe0", "eth0"),
            netdev: true,
        };
        let format = Format {
            json: true,
            ..Format::default()
        };
        let said: serde_json::Value = serde_json::from_str(&line(&event, format)).expect("JSON");
        let expected = json!({
            "event_type": "[NETDEV_ATTACH]", "rdma_index": 0, "rdma_dev": "rxe0", "port": 1,
            "netdev_idx": 5, "netdev_name": "eth0",
        });
        assert_eq!(said, expected);
    }
}
