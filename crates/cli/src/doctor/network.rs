//! Checks of UDP port 4791, netdevs, links and the firewall.

use std::process::{Command, Stdio};

use ferroce_control::link::largest_mtu;
use ferroce_control::{LinkInfo, find_daemon};
use ferroce_net::BindError;

use super::{Finding, State};

pub(super) fn findings() -> Vec<Finding> {
    let mut findings = Vec::new();
    let links = match find_daemon() {
        Ok(Some(mut connection)) => {
            let pid = connection.daemon_pid();
            let links = connection.links().unwrap_or_default();
            let count = links.len();
            let text = format!("process {pid} runs, has {count} link(s) and owns UDP port 4791");
            findings.push(Finding::ok("ferroced", text));
            links
        }
        Ok(None) => {
            findings.push(port());
            Vec::new()
        }
        Err(error) => {
            findings.push(Finding::new("ferroced", State::Fails, error.to_string()));
            Vec::new()
        }
    };
    findings.extend(netdevs(&links));
    findings.extend(links.iter().map(link));
    findings.push(firewall());
    findings
}

/// Checks that the port can be bound and that packets can be steered to slots.
fn port() -> Finding {
    match ferroce_net::create_slot(0) {
        Ok(_) => Finding::ok(
            "port",
            "UDP port 4791 is free, and the kernel can steer its packets (cBPF)",
        ),
        Err(error @ BindError::PortTaken { .. }) => {
            Finding::new("port", State::Fails, error.to_string())
        }
        Err(error) => Finding::new("port", State::Fails, error.to_string()),
    }
}

fn netdevs(links: &[LinkInfo]) -> Vec<Finding> {
    let netdevs = match ferroce_daemon::list_netdevs() {
        Ok(netdevs) => netdevs,
        Err(error) => {
            let text = format!("cannot list netdevs: {error}");
            return vec![Finding::new("netdev", State::Fails, text)];
        }
    };
    let mut findings = Vec::new();
    for netdev in netdevs {
        let name = &netdev.name;
        if netdev.addresses.is_empty() || links.iter().any(|link| link.netdev == *name) {
            continue;
        }
        let (mtu, ib) = (netdev.mtu, largest_mtu(netdev.mtu));
        let address = netdev.addresses[0];
        let text = format!("{name} ({address}): MTU {mtu}, so IB MTU {ib}; has no link");
        let remedy = format!("To add one: ferroce link add NAME type rxe netdev {name}");
        let state = match netdev.loopback {
            true => State::Ok,
            false => State::Note,
        };
        findings.push(Finding::new("netdev", state, text).remedy(remedy));
    }
    findings
}

fn link(link: &LinkInfo) -> Finding {
    let LinkInfo { name, netdev, .. } = link;
    let mut text = format!(
        "{name} on {netdev}: {}, MTU {}, so IB MTU {}{}",
        link.state(),
        link.netdev_mtu,
        link.active_mtu,
        if link.crc { "" } else { ", ICRCs off" },
    );
    for gid in &link.gids {
        text += &format!("\n-g {0} / -x {0}   {1}", gid.index, gid.address);
    }
    let active = link.up && link.carrier;
    match (active, link.gids.is_empty()) {
        (true, false) => Finding::ok("link", text),
        (false, _) => Finding::new("link", State::Note, text).remedy(format!(
            "The port is down. Set it up (ip link set {netdev} up), or check the cable."
        )),
        (true, true) => Finding::new("link", State::Note, text).remedy(format!(
            "The netdev has no address, so the link has no GID. To add one, as root:\n\
             ip address add ADDRESS/PREFIX dev {netdev}"
        )),
    }
}

/// Checks whether the firewall accepts packets to port 4791, if its rules can be read.
fn firewall() -> Finding {
    let rules = |program: &str, arguments: &[&str]| {
        let output = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let nft = rules("nft", &["list", "ruleset"]);
    let iptables = rules("iptables", &["-S", "INPUT"]);
    let remedy = "To accept RoCE packets from other machines, as root, one of:\n\
                  nft add rule inet filter input udp dport 4791 accept\n\
                  iptables -I INPUT -p udp --dport 4791 -j ACCEPT\n\
                  firewall-cmd --add-port=4791/udp";
    let seen: Vec<String> = nft.into_iter().chain(iptables).collect();
    if seen.is_empty() {
        let text = "rules cannot be read (this needs root, and nft or iptables)";
        return Finding::new("firewall", State::Note, text).remedy(remedy);
    }
    let closes = |rules: &String| {
        let drops = rules.contains("hook input") && rules.contains("policy drop");
        drops || rules.contains("-P INPUT DROP") || rules.contains("-j REJECT")
    };
    match seen.iter().any(closes) && !seen.iter().any(|rules| rules.contains("4791")) {
        true => {
            let text = "the rules drop incoming packets and do not mention UDP port 4791";
            Finding::new("firewall", State::Note, text).remedy(remedy)
        }
        false => Finding::ok("firewall", "no rule found that drops UDP port 4791"),
    }
}
