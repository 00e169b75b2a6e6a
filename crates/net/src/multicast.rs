//! Multicast groups of a slot's sockets.
//!
//! The kernel does not run the BPF program for multicast: every socket that has joined the
//! group receives a copy. A membership ends with its socket, but a slot's sockets outlive
//! the programs that use them. So [`leave_all`] ends the memberships of a dead program.
//!
//! There is one exception. If only one socket wants an IPv4 multicast packet, newer kernels
//! find that socket early ("early demux"), and then run the BPF program of its group after
//! all. The multicast QPN names no slot, so the packet would reach the wrong socket.
//! Therefore slot 0 also receives all IPv4 multicast, and a filter drops its copies.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use socket2::{InterfaceIndexOrAddress, SockRef, Socket};

use crate::slot::SlotSockets;
use crate::{socket, steering};

/// Makes the IPv4 socket of slot 0 receive all multicast, and drop it in a filter.
pub(crate) fn match_all_groups(socket: &Socket) -> io::Result<()> {
    socket::set_number(socket, libc::SOL_IP, libc::IP_MULTICAST_ALL, 1)?;
    steering::drop_multicast(socket)
}

/// Joins a group on an interface. A socket that is a member already stays one.
pub(crate) fn join(sockets: &SlotSockets, group: IpAddr, ifindex: u32) -> io::Result<()> {
    let result = match group {
        IpAddr::V4(group) => {
            let interface = InterfaceIndexOrAddress::Index(ifindex);
            SockRef::from(&sockets.v4).join_multicast_v4_n(&group, &interface)
        }
        IpAddr::V6(group) => SockRef::from(v6_of(sockets)?).join_multicast_v6(&group, ifindex),
    };
    match result {
        Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => Ok(()),
        Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => Err(io::Error::new(
            e.kind(),
            format!(
                "cannot join multicast group {group}: this slot is a member of as many groups as \
                 net.ipv4.igmp_max_memberships allows; `sysctl -w` raises the limit"
            ),
        )),
        Err(e) => Err(io::Error::new(
            e.kind(),
            format!("cannot join multicast group {group} on interface {ifindex}: {e}"),
        )),
        Ok(()) => Ok(()),
    }
}

/// Leaves a group. A socket that is no member stays none.
pub(crate) fn leave(sockets: &SlotSockets, group: IpAddr, ifindex: u32) -> io::Result<()> {
    let result = match group {
        IpAddr::V4(group) => {
            let interface = InterfaceIndexOrAddress::Index(ifindex);
            SockRef::from(&sockets.v4).leave_multicast_v4_n(&group, &interface)
        }
        IpAddr::V6(group) => SockRef::from(v6_of(sockets)?).leave_multicast_v6(&group, ifindex),
    };
    match result {
        // Not a member, or the interface is gone and its memberships with it.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::ENODEV)) => Ok(()),
        result => result,
    }
}

/// Leaves all groups of the sockets. The kernel does not list the groups of a socket, so
/// this tries all groups that any socket of the network namespace has joined.
pub(crate) fn leave_all(sockets: &SlotSockets) {
    let v4 = fs::read_to_string("/proc/thread-self/net/igmp").unwrap_or_default();
    for (ifindex, group) in parse_igmp(&v4) {
        let _ = leave(sockets, group.into(), ifindex);
    }
    if sockets.v6.is_none() {
        return;
    }
    let v6 = fs::read_to_string("/proc/thread-self/net/igmp6").unwrap_or_default();
    for (ifindex, group) in parse_igmp6(&v6) {
        let _ = leave(sockets, group.into(), ifindex);
    }
}

fn v6_of(sockets: &SlotSockets) -> io::Result<&OwnedFd> {
    let missing = || io::Error::new(io::ErrorKind::Unsupported, "this system has no IPv6");
    sockets.v6.as_ref().ok_or_else(missing)
}

/// Parses `/proc/net/igmp`: a line per interface, which starts with its index; below it an
/// indented line per group, which starts with the address in hexadecimal, in native order.
fn parse_igmp(table: &str) -> Vec<(u32, Ipv4Addr)> {
    let mut ifindex = 0;
    let mut found = Vec::new();
    for line in table.lines().skip(1) {
        let Some(first) = line.split_ascii_whitespace().next() else {
            continue;
        };
        if !line.starts_with(|c: char| c.is_ascii_whitespace()) {
            ifindex = first.parse().unwrap_or(0);
        } else if let Ok(group) = u32::from_str_radix(first, 16) {
            found.push((ifindex, Ipv4Addr::from(group.to_ne_bytes())));
        }
    }
    found
}

/// Parses `/proc/net/igmp6`: a line per group with interface index, interface name, address
/// in hexadecimal, and more.
fn parse_igmp6(table: &str) -> Vec<(u32, Ipv6Addr)> {
    let parse = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let ifindex = fields.next()?.parse().ok()?;
        let group = u128::from_str_radix(fields.nth(1)?, 16).ok()?;
        Some((ifindex, Ipv6Addr::from(group)))
    };
    table.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn memberships_are_read_from_the_kernels_tables() {
        let igmp = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
                    1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n\
                    4\teth0      :     2      V3\n\t\t\t\t070101EF     1 0:00000000\t\t0\n\
                    \t\t\t\t010000E0     1 0:00000000\t\t0\n";
        let found = parse_igmp(igmp);
        assert_eq!(
            found,
            [
                (1, Ipv4Addr::new(224, 0, 0, 1)),
                (4, Ipv4Addr::new(239, 1, 1, 7)),
                (4, Ipv4Addr::new(224, 0, 0, 1)),
            ]
        );
        let igmp6 = "1    lo              ff020000000000000000000000000001     1 0000000C 0\n\
                     4    eth0            ff0e00000000000000000000000000ab     1 00000004 0\n";
        let found = parse_igmp6(igmp6);
        assert_eq!(found[1], (4, "ff0e::ab".parse().unwrap()));
    }
}
