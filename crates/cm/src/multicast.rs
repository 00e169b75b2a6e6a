//! GIDs of multicast groups.
//!
//! RoCE has no subnet administrator to ask: the MGID follows from the IP address of the
//! group.

use core::net::{IpAddr, Ipv4Addr};

use crate::Gid;

/// The destination queue pair number of multicast datagrams.
pub const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// The RoCE version.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RoceVersion {
    /// RoCEv1: packets in Ethernet frames.
    V1,
    /// RoCEv2: packets in UDP datagrams.
    V2,
}

/// The reason why a group cannot be joined.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JoinError {
    /// IPv6 groups are not supported on RoCEv2. The kernel returns ENOTSUPP (524), an errno
    /// that libc does not define.
    #[error("IPv6 groups are not supported on RoCEv2")]
    Ipv6,
}

/// Returns the MGID of an rdma_cm multicast group.
///
/// # Errors
/// If the kernel does not support the group.
pub fn mgid(group: IpAddr, version: RoceVersion) -> Result<Gid, JoinError> {
    match (group, version) {
        (ip, _) if ip.is_unspecified() => Ok(Gid::default()),
        (IpAddr::V6(_), RoceVersion::V2) => Err(JoinError::Ipv6),
        (IpAddr::V6(_), RoceVersion::V1) | (IpAddr::V4(_), RoceVersion::V2) => Ok(Gid::from(group)),
        (IpAddr::V4(v4), RoceVersion::V1) => Ok(global_scope(v4)),
    }
}

/// Returns ff0e::ffff:a.b.c.d.
fn global_scope(v4: Ipv4Addr) -> Gid {
    let mut gid = Gid::from(IpAddr::V4(v4));
    gid.0[0] = 0xff;
    gid.0[1] = 0x0e;
    gid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_group_is_mapped_on_rocev2() {
        let gid = mgid([239, 1, 2, 3].into(), RoceVersion::V2).unwrap();
        assert_eq!(gid.to_string(), "::ffff:239.1.2.3");
    }

    #[test]
    fn an_ipv4_group_has_global_scope_on_rocev1() {
        let gid = mgid([239, 1, 2, 3].into(), RoceVersion::V1).unwrap();
        assert_eq!(gid.to_string(), "ff0e::ffff:ef01:203");
    }

    #[test]
    fn an_ipv6_group_is_refused_on_rocev2_and_unchanged_on_rocev1() {
        let group: IpAddr = "ff0e::1234".parse().unwrap();
        assert_eq!(mgid(group, RoceVersion::V2), Err(JoinError::Ipv6));
        assert_eq!(mgid(group, RoceVersion::V1), Ok(Gid::from(group)));
    }

    #[test]
    fn the_unspecified_address_has_the_zero_gid() {
        let zero: IpAddr = [0, 0, 0, 0].into();
        assert_eq!(mgid(zero, RoceVersion::V2), Ok(Gid::default()));
    }
}
