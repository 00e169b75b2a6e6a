//! The queue pair attributes of a connection.

/// Attributes for the transitions of a queue pair to RTR and RTS.
///
/// The starting PSN in a REQ or REP is the first PSN that its sender expects. So the peer's
/// starting PSN becomes `sq_psn`, and ours is `rq_psn`.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct QpParameters {
    /// Number of our queue pair, 0 until it is known.
    pub local_qpn: u32,
    /// Number of the peer's queue pair, 0 until it is known.
    pub remote_qpn: u32,
    /// First PSN that our queue pair expects.
    pub rq_psn: u32,
    /// First PSN that our queue pair sends.
    pub sq_psn: u32,
    /// Path MTU as an enumeration: 1 is 256 bytes, 5 is 4096.
    pub path_mtu: u8,
    /// Concurrent READs and atomics that our responder serves.
    pub responder_resources: u8,
    /// READs and atomics that our requester may have outstanding.
    pub initiator_depth: u8,
    /// Acknowledgement timeout; a time code.
    pub timeout: u8,
    /// Retry count.
    pub retry_count: u8,
    /// RNR retry count.
    pub rnr_retry_count: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
}
