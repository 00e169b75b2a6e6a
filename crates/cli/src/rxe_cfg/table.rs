//! The table of `rxe_cfg status`: netdevs and their links.

use ferroce_control::LinkInfo;
use ferroce_control::link::MTUS;
use ferroce_daemon::NetdevInfo;

use crate::output;

const COLUMNS: [&str; 8] = [
    "Name",
    "Link",
    "Driver",
    "Speed",
    "NMTU",
    "IPv4_addr",
    "RDEV",
    "RMTU",
];

/// Returns the table: of all netdevs, of the link `only`, or of netdevs with a carrier.
pub(super) fn text(
    netdevs: &[NetdevInfo],
    links: &[LinkInfo],
    only: Option<&str>,
    with_carrier: bool,
) -> String {
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    for netdev in netdevs {
        let link = links.iter().find(|link| link.netdev == netdev.name);
        let shown = match only {
            Some(only) => link.is_some_and(|link| link.name == only),
            // The loopback interface is shown only if it has a link.
            None => !netdev.loopback || link.is_some(),
        };
        if shown && (netdev.carrier || !with_carrier) {
            rows.push(row(netdev, link));
        }
    }
    output::columns(&rows)
}

fn row(netdev: &NetdevInfo, link: Option<&LinkInfo>) -> [String; 8] {
    let connected = netdev.up && netdev.carrier;
    let speed = match netdev.speed_mbps {
        Some(10_000) => "10GigE".into(),
        Some(mbps) if mbps % 1000 == 0 => format!("{}GigE", mbps / 1000),
        _ => String::new(),
    };
    [
        netdev.name.clone(),
        if connected { "yes" } else { "no" }.into(),
        netdev.driver.clone().unwrap_or_default(),
        speed,
        netdev.mtu.to_string(),
        netdev.ipv4().map_or(String::new(), |ip| ip.to_string()),
        link.map_or(String::new(), |link| link.name.clone()),
        link.map_or(String::new(), |link| mtu(link.active_mtu)),
    ]
}

/// Formats an MTU with its IBTA code, as `ibv_devinfo` does: `1024  (3)`.
fn mtu(bytes: u32) -> String {
    let code = MTUS.iter().position(|mtu| *mtu == bytes);
    let code = code.map_or(0, |place| place + 1);
    format!("{bytes}  ({code})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::show::sample;

    fn netdev(name: &str, driver: &str) -> NetdevInfo {
        NetdevInfo {
            name: name.into(),
            up: true,
            carrier: true,
            loopback: name == "lo",
            mtu: 1500,
            driver: (!driver.is_empty()).then(|| driver.into()),
            speed_mbps: None,
            addresses: Vec::new(),
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut down = netdev("eth0", "mlx4_en");
        down.carrier = false;
        let mut fast = netdev("enp17s0", "mlx5_core");
        fast.speed_mbps = Some(10_000);
        fast.addresses = vec!["10.0.0.1".parse().expect("an address")];
        let link = sample("enp17s0", 3);
        let netdevs = [netdev("lo", ""), fast, down];
        let expected = "\
Name     Link  Driver     Speed   NMTU  IPv4_addr  RDEV  RMTU
enp17s0  yes   mlx5_core  10GigE  1500  10.0.0.1   rxe0  1024  (3)
eth0     no    mlx4_en            1500
";
        let links = [link];
        assert_eq!(text(&netdevs, &links, None, false), expected);
        let lines = |text: String| text.lines().count();
        assert_eq!(lines(text(&netdevs, &links, None, true)), 2);
        assert_eq!(lines(text(&netdevs, &links, Some("rxe0"), false)), 2);
    }
}
