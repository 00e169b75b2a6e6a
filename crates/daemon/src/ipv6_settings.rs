//! The IPv6 settings of a netdev, from procfs.
//!
//! rtnetlink reports them too, but as an array whose layout differs between kernels.

use std::fs;

/// `addr_gen_mode` of a netdev to which the kernel gives no link-local address. NetworkManager
/// and the like add one themselves.
const NO_ADDRESS: &str = "1";

/// Returns true if the kernel gives the netdev a link-local address when it starts to run.
pub(crate) fn gives_link_local(netdev: &str) -> bool {
    let option = |name: &str| {
        let path = format!("/proc/sys/net/ipv6/conf/{netdev}/{name}");
        fs::read_to_string(path).map(|value| value.trim().to_owned())
    };
    // Without IPv6, and with an MTU below 1280, there are no such files.
    matches!(option("disable_ipv6").as_deref(), Ok("0"))
        && !matches!(option("addr_gen_mode").as_deref(), Ok(NO_ADDRESS))
}

#[cfg(test)]
mod tests {
    use ferroce_testnet::{isolated, netdev};

    use super::*;

    #[test]
    fn settings_of_a_netdev_decide() {
        isolated("ipv6_settings::tests::settings_of_a_netdev_decide", || {
            netdev::add_veth("near", "far");
            assert!(gives_link_local("near"));
            netdev::disable_link_local("near");
            assert!(!gives_link_local("near"));
            netdev::set_mtu("far", 1200);
            assert!(!gives_link_local("far"), "no IPv6");
            assert!(!gives_link_local("no-such-netdev"));
        });
    }
}
