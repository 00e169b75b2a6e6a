//! A datagram for unit tests.

use ferroce_roce::{Datagram, IpId};

/// Returns a datagram with this payload, from another address of this host.
pub(crate) fn datagram(payload: &[u8]) -> Datagram<'_> {
    Datagram {
        source: [127, 0, 0, 1].into(),
        destination: [127, 0, 0, 2].into(),
        source_port: 0xc001,
        traffic_class: 2,
        hop_limit: 64,
        ip_id: IpId::Unseen(1),
        payload,
    }
}
