//! The IPv6 settings of a netdev, from procfs.
//!
//! rtnetlink reports them too, but as an array whose layout differs between kernels.

use std::fs;

/// Returns true if the netdev can get a link-local address when it starts to run. With `addr_gen_mode` 1 the kernel
/// adds none, but NetworkManager and the like, which set this mode, do.
pub(crate) fn allow_link_local(netdev: &str) -> bool {
    let setting = fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{netdev}/disable_ipv6"));
    // Without IPv6, and with an MTU below 1280, there is no such file.
    setting.is_ok_and(|value| value.trim() == "0")
}

#[cfg(test)]
mod tests {
    use ferroce_testnet::{isolated, netdev};

    use super::*;

    #[test]
    fn settings_of_a_netdev_decide() {
        isolated("ipv6_settings::tests::settings_of_a_netdev_decide", || {
            netdev::add_veth("near", "far");
            assert!(allow_link_local("near"));
            netdev::disable_link_local("near");
            assert!(allow_link_local("near"), "another program may add one");
            netdev::set_mtu("far", 1200);
            assert!(!allow_link_local("far"), "no IPv6");
            assert!(!allow_link_local("no-such-netdev"));
        });
    }
}
