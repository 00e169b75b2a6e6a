//! Checks of addresses and attributes: `ibv_modify_qp`, `ibv_create_ah`, `ibv_create_qp`,
//! `rdma_connect`, `rdma_accept`.

use core::net::IpAddr;

use crate::{Check, Finding};

/// The address of a peer, as a program passes it.
#[derive(Copy, Clone, Debug)]
pub struct PeerAddress {
    /// True if the address has a GRH.
    pub is_global: bool,
    /// The LID, for an address without a GRH.
    pub dlid: u16,
    /// The GID index.
    pub sgid_index: u8,
    /// The address at the GID index; none if the entry is empty.
    pub source: Option<IpAddr>,
    /// The peer's GID as an address.
    pub destination: IpAddr,
}

/// Checks the address of a peer.
pub fn check_address(peer: &PeerAddress) -> Option<Finding> {
    if !peer.is_global {
        let what = format!("is_global is 0: the address is LID {}", peer.dlid);
        return Some(Finding::warning(Check::Lid, what));
    }
    // Without a source the call is refused, as hardware does.
    let source = peer.source?;
    let (index, to) = (peer.sgid_index, peer.destination);
    let is_multicast = to.is_multicast();
    let differ = source.is_ipv4() != to.is_ipv4()
        || !is_multicast && is_link_local(source) != is_link_local(to);
    if differ {
        let (ours, theirs) = (kind(source), kind(to));
        let what = format!(
            "GID index {index} is {source} ({ours}), and the peer's GID is {to} ({theirs})"
        );
        return Some(Finding::warning(Check::GidType, what));
    }
    if index == 0 && source.is_ipv6() && is_link_local(source) {
        let what = format!("GID index 0 is {source}: on a ConnectX index 0 is of type RoCE v1");
        return Some(Finding::note(Check::GidType, what));
    }
    None
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn kind(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) if is_link_local(address) => "IPv6 link-local",
        IpAddr::V6(_) => "IPv6",
    }
}

/// The attributes of `ibv_modify_qp` that its mask names.
#[derive(Copy, Clone, Default, Debug)]
pub struct Attributes {
    /// Local ACK timeout, 0 to 31.
    pub timeout: Option<u8>,
    /// Number of retries, 0 to 7.
    pub retry_cnt: Option<u8>,
    /// Number of retries for a receiver that is not ready, 0 to 7.
    pub rnr_retry: Option<u8>,
    /// Path MTU in bytes.
    pub path_mtu: Option<u32>,
}

/// The longest timeout that is not an extreme: 4.096 us * 2^22 are 17 s.
const LONGEST_TIMEOUT: u8 = 22;

/// Checks the attributes of a queue pair on a port with this MTU.
pub fn check_attributes(attributes: &Attributes, active_mtu: u32) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(mtu) = attributes.path_mtu.filter(|mtu| *mtu > active_mtu) {
        let what = format!("path_mtu is {mtu}, and the port's active_mtu is {active_mtu}");
        findings.push(Finding::warning(Check::PathMtu, what));
    }
    let timeout = match attributes.timeout {
        Some(0) => Some("timeout is 0: a lost packet is never sent again".to_owned()),
        Some(value @ LONGEST_TIMEOUT..=31) => {
            let seconds = 4.096e-6 * f64::from(1_u32 << value);
            Some(format!(
                "timeout is {value}: a lost packet is sent again after {seconds:.0} s"
            ))
        }
        _ => None,
    };
    findings.extend(timeout.map(|what| Finding::warning(Check::Timeout, what)));
    if attributes.retry_cnt == Some(0) {
        let what = "retry_cnt is 0: one lost packet breaks the connection";
        findings.push(Finding::warning(Check::Timeout, what));
    }
    match attributes.rnr_retry {
        Some(7) => {
            let what = "rnr_retry is 7: without receives at the peer the send waits for ever";
            findings.push(Finding::note(Check::Timeout, what));
        }
        Some(0) => {
            let what = "rnr_retry is 0: a late receive at the peer breaks the connection";
            findings.push(Finding::note(Check::Timeout, what));
        }
        _ => {}
    }
    findings
}

/// The parameters of `rdma_connect` and `rdma_accept`.
#[derive(Copy, Clone, Default, Debug)]
pub struct Connection {
    /// READs and atomics that the peer may have outstanding; none for the most.
    pub responder_resources: Option<u8>,
    /// READs and atomics that this end may have outstanding; none for the most.
    pub initiator_depth: Option<u8>,
    /// Number of retries, 0 to 7.
    pub retry_count: u8,
    /// Number of retries for a receiver that is not ready, 0 to 7.
    pub rnr_retry_count: u8,
}

/// The most READs and atomics of a ConnectX.
const COMMON_DEPTH: u8 = 16;

/// Checks the parameters of a connection.
pub fn check_connection(connection: &Connection) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, value) in [
        ("responder_resources", connection.responder_resources),
        ("initiator_depth", connection.initiator_depth),
    ] {
        if let Some(value) = value.filter(|value| *value > COMMON_DEPTH) {
            let what = format!("{name} is {value}, above {COMMON_DEPTH}");
            findings.push(Finding::warning(Check::Depth, what));
        }
    }
    for (name, value) in [
        ("retry_count", connection.retry_count),
        ("rnr_retry_count", connection.rnr_retry_count),
    ] {
        if value > 7 {
            let what = format!("{name} is {value}: rdma_cm sends 7, the largest number");
            findings.push(Finding::warning(Check::Timeout, what));
        }
    }
    let attributes = Attributes {
        retry_cnt: Some(connection.retry_count),
        rnr_retry: Some(connection.rnr_retry_count),
        ..Attributes::default()
    };
    findings.extend(check_attributes(&attributes, u32::MAX));
    findings
}

/// The most inline data of any adapter and driver in the table of `docs/DEBUGGING.md` that a
/// program may rely on: that of rxe. A ConnectX has 828 bytes.
pub const COMMON_INLINE: u32 = 512;

/// Checks the inline data that a program asks for.
pub fn check_inline(max_inline_data: u32) -> Option<Finding> {
    (max_inline_data > COMMON_INLINE).then(|| {
        let what = format!("max_inline_data is {max_inline_data}");
        Finding::warning(Check::Inline, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;

    fn peer(source: &str, destination: &str, sgid_index: u8) -> PeerAddress {
        PeerAddress {
            is_global: true,
            dlid: 0,
            sgid_index,
            source: Some(source.parse().unwrap()),
            destination: destination.parse().unwrap(),
        }
    }

    #[test]
    fn address_without_grh_is_a_lid() {
        let address = PeerAddress {
            is_global: false,
            ..peer("10.0.0.1", "10.0.0.2", 1)
        };
        assert_eq!(check_address(&address).unwrap().check, Check::Lid);
    }

    #[test]
    fn gid_index_has_the_kind_of_the_peers_gid() {
        for (from, to) in [
            ("fe80::1", "10.0.0.2"),
            ("10.0.0.1", "fe80::2"),
            ("fe80::1", "2001:db8::2"),
            ("10.0.0.1", "2001:db8::2"),
        ] {
            let finding = check_address(&peer(from, to, 1)).unwrap();
            let found = (finding.check, finding.severity);
            assert_eq!(found, (Check::GidType, Severity::Warning), "{from} {to}");
        }
        for (from, to) in [
            ("10.0.0.1", "10.0.0.2"),
            ("fe80::1", "fe80::2"),
            ("::1", "::1"),
            ("10.0.0.1", "239.1.2.3"),
            ("fe80::1", "ff0e::1"),
        ] {
            assert_eq!(check_address(&peer(from, to, 1)), None, "{from} {to}");
        }
        let finding = check_address(&peer("fe80::1", "fe80::2", 0)).unwrap();
        assert_eq!(finding.severity, Severity::Note);
    }

    #[test]
    fn extremes_of_timeouts_are_found() {
        let check = |timeout, retry_cnt, rnr_retry| {
            let attributes = Attributes {
                timeout: Some(timeout),
                retry_cnt: Some(retry_cnt),
                rnr_retry: Some(rnr_retry),
                path_mtu: None,
            };
            let findings = check_attributes(&attributes, 1024);
            findings
                .iter()
                .map(|found| found.severity)
                .collect::<Vec<_>>()
        };
        assert_eq!(check(14, 7, 6), []);
        assert_eq!(check(14, 7, 7), [Severity::Note]);
        assert_eq!(check(0, 7, 6), [Severity::Warning]);
        assert_eq!(check(31, 7, 6), [Severity::Warning]);
        assert_eq!(check(14, 0, 6), [Severity::Warning]);
    }

    #[test]
    fn path_mtu_is_at_most_that_of_the_port() {
        let check = |mtu| {
            let attributes = Attributes {
                path_mtu: Some(mtu),
                ..Attributes::default()
            };
            check_attributes(&attributes, 1024).len()
        };
        assert_eq!((check(1024), check(2048)), (0, 1));
    }

    #[test]
    fn parameters_of_a_connection_are_those_that_adapters_take() {
        let usual = Connection {
            responder_resources: Some(16),
            initiator_depth: None,
            retry_count: 7,
            rnr_retry_count: 6,
        };
        assert_eq!(check_connection(&usual), []);
        let found = |connection: Connection| {
            let findings = check_connection(&connection);
            let only = <[Finding; 1]>::try_from(findings).expect("one finding");
            only.map(|found| (found.check, found.severity))[0]
        };
        let deep = Connection {
            initiator_depth: Some(17),
            ..usual
        };
        assert_eq!(found(deep), (Check::Depth, Severity::Warning));
        for retry_count in [0, 8] {
            let extreme = Connection {
                retry_count,
                ..usual
            };
            assert_eq!(found(extreme), (Check::Timeout, Severity::Warning));
        }
        let patient = Connection {
            rnr_retry_count: 7,
            ..usual
        };
        assert_eq!(found(patient), (Check::Timeout, Severity::Note));
    }

    #[test]
    fn inline_data_is_what_adapters_offer() {
        assert_eq!(check_inline(236), None);
        assert_eq!(check_inline(1024).unwrap().check, Check::Inline);
    }
}
