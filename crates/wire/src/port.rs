//! UDP ports.
//!
//! All packets go to [`ROCE_PORT`]. The source port only spreads flows over paths and
//! receive queues, so any value works. This module follows the Linux kernel, which gives
//! both directions of a connection the same source port.

/// The UDP destination port of all RoCEv2 packets, requests and responses.
pub const ROCE_PORT: u16 = 4791;

/// Start of the dynamic port range.
const DYNAMIC: u16 = 0xc000;

/// Returns the source port of an RC, UC or XRC queue pair: a hash of the flow label, or
/// of the two queue pair numbers if the flow label is zero.
pub const fn rc_source_port(flow_label: u32, local_qpn: u32, remote_qpn: u32) -> u16 {
    let label = match flow_label & 0xf_ffff {
        0 => qpn_flow_label(local_qpn, remote_qpn),
        label => label,
    };
    ((label & 0x3fff) ^ ((label & 0xf_c000) >> 14)) as u16 | DYNAMIC
}

/// Returns the source port of a UD queue pair or of QP1. It depends on the queue pair
/// number only.
pub const fn ud_source_port(qpn: u32) -> u16 {
    DYNAMIC + (qpn.wrapping_mul(0x61c8_8647) >> 18) as u16
}

/// Derives a flow label from the two queue pair numbers. Both ends get the same label,
/// because multiplication is commutative.
const fn qpn_flow_label(local_qpn: u32, remote_qpn: u32) -> u32 {
    let mut v = local_qpn as u64 * remote_qpn as u64;
    v ^= v >> 20;
    v ^= v >> 40;
    (v & 0xf_ffff) as u32
}
