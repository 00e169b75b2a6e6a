//! The speed of a netdev. Netlink proper does not tell, and sysfs may show another
//! network namespace: so the ioctl.

use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GSET: u32 = 1;

/// `struct ethtool_cmd`.
#[repr(C)]
#[derive(Default)]
struct EthtoolCmd {
    cmd: u32,
    supported: u32,
    advertising: u32,
    speed: u16,
    duplex: u8,
    port: u8,
    phy_address: u8,
    transceiver: u8,
    autoneg: u8,
    mdio_support: u8,
    maxtxpkt: u32,
    maxrxpkt: u32,
    speed_hi: u16,
    eth_tp_mdix: u8,
    eth_tp_mdix_ctrl: u8,
    lp_advertising: u32,
    reserved: [u32; 2],
}

/// The speed in Mb/s, if the netdev has one and knows it.
pub(crate) fn speed(netdev: &str) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None).ok()?;
    let mut name = [0; libc::IFNAMSIZ];
    if netdev.len() >= name.len() {
        return None;
    }
    for (to, from) in name.iter_mut().zip(netdev.bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    let mut command = EthtoolCmd {
        cmd: ETHTOOL_GSET,
        ..EthtoolCmd::default()
    };
    let mut request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_data: (&raw mut command).cast(),
        },
    };
    // SAFETY: the request is a valid ifreq whose data points to a struct ethtool_cmd,
    // which is what ETHTOOL_GSET reads and writes; both outlive the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) };
    let speed = u32::from(command.speed) | u32::from(command.speed_hi) << 16;
    // -1, in either width, is "unknown".
    (result == 0 && speed != 0 && speed != 0xFFFF && speed != u32::MAX).then_some(speed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_is_none() {
        assert_eq!(speed("lo"), None);
        assert_eq!(speed("no-such-netdev-at-all"), None);
    }
}
