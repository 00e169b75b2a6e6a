//! What a connection means for its queue pair.

/// Attributes with which a queue pair is moved to RTR and RTS.
///
/// A REQ or REP names the PSN that its sender expects first, so what the peer
/// says becomes `sq_psn` here and what we said is `rq_psn`.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct QpParameters {
    /// Our queue pair; 0 while it is not known.
    pub local_qpn: u32,
    /// The peer's; 0 while it is not known.
    pub remote_qpn: u32,
    /// First PSN that we expect.
    pub rq_psn: u32,
    /// First PSN that the peer expects.
    pub sq_psn: u32,
    /// Path MTU as an enumeration.
    pub path_mtu: u8,
    /// READs and atomics that we serve at once.
    pub responder_resources: u8,
    /// READs and atomics that we have outstanding.
    pub initiator_depth: u8,
    /// Acknowledgement timeout; a time code.
    pub timeout: u8,
    /// Retries.
    pub retry_count: u8,
    /// RNR retries.
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
