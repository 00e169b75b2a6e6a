//! GIDs of multicast groups.
//!
//! On RoCE nobody has to be asked: the group's IP address decides its MGID, and
//! a sender or receiver needs no more.

use core::net::{IpAddr, Ipv4Addr};

use crate::Gid;

/// The queue pair number that datagrams to a group carry.
pub const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// What carries packets.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RoceVersion {
    /// Ethernet frames.
    V1,
    /// UDP.
    V2,
}

/// A group cannot be joined.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JoinError {
    /// The kernel has no IPv6 groups on RoCEv2: errno ENOTSUPP, 524, which only
    /// the kernel has a name for.
    #[error("IPv6 groups are not supported on RoCEv2")]
    Ipv6,
}

/// The MGID of a group of rdma_cm.
///
/// # Errors
/// If the kernel would refuse to join it.
pub fn mgid(group: IpAddr, version: RoceVersion) -> Result<Gid, JoinError> {
    match (group, version) {
        (ip, _) if ip.is_unspecified() => Ok(Gid::default()),
        (IpAddr::V6(_), RoceVersion::V2) => Err(JoinError::Ipv6),
        (IpAddr::V6(_), RoceVersion::V1) | (IpAddr::V4(_), RoceVersion::V2) => Ok(Gid::from(group)),
        (IpAddr::V4(v4), RoceVersion::V1) => Ok(global_scope(v4)),
    }
}

/// ff0e::ffff:a.b.c.d.
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
    fn an_ipv6_group_is_refused_on_rocev2_and_itself_on_rocev1() {
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
