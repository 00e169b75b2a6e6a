//! Speed and driver of a netdev, by the ethtool ioctl. rtnetlink does not report them, and
//! sysfs may show another network namespace.

use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GSET: u32 = 1;
const ETHTOOL_GDRVINFO: u32 = 3;

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

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// Returns the driver of a netdev, if it reports one.
pub(crate) fn driver(netdev: &str) -> Option<String> {
    let mut info = DriverInfo {
        cmd: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        rest: [0; 160],
    };
    // SAFETY: a struct ethtool_drvinfo is what ETHTOOL_GDRVINFO reads and writes.
    unsafe { ethtool(netdev, (&raw mut info).cast()) }?;
    let name = info.driver.split(|byte| *byte == 0).next()?;
    let name = String::from_utf8_lossy(name).into_owned();
    (!name.is_empty()).then_some(name)
}

/// Returns the speed in Mb/s, if the netdev reports one.
pub(crate) fn speed(netdev: &str) -> Option<u32> {
    let mut command = EthtoolCmd {
        cmd: ETHTOOL_GSET,
        ..EthtoolCmd::default()
    };
    // SAFETY: a struct ethtool_cmd is what ETHTOOL_GSET reads and writes.
    unsafe { ethtool(netdev, (&raw mut command).cast()) }?;
    let speed = u32::from(command.speed) | u32::from(command.speed_hi) << 16;
    // -1, in either width, is "unknown".
    (speed != 0 && speed != 0xFFFF && speed != u32::MAX).then_some(speed)
}

/// Runs an ethtool command. Returns `None` if it fails.
///
/// # Safety
/// The data must be what the command in its first word reads and writes.
unsafe fn ethtool(netdev: &str, data: *mut libc::c_char) -> Option<()> {
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
    let mut request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: data },
    };
    // SAFETY: the request is a valid ifreq, whose data is as the caller promises; both
    // outlive the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) };
    (result == 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_speed_is_none() {
        assert_eq!(speed("lo"), None);
        assert_eq!(speed("no-such-netdev-at-all"), None);
    }
}
