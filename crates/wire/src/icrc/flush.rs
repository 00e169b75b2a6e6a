//! The ICRC of a FLUSH as Linux rxe computes it.
//!
//! rxe's opcode table has no payload offset for FLUSH. So rxe hashes the masked headers
//! and then "payload" from offset zero: the headers once more, unmasked. Only rxe does
//! this. To exchange FLUSH with rxe, a node must accept both ICRCs and use the one that
//! its peer uses.

use super::recover::{Recovered, recover_with};
use super::{FlowIcrc, split};
use crate::{Bth, Feth, Flow, ICRC_LEN, Reth};

const FLUSH_HEADER_LEN: usize = Bth::LEN + Feth::LEN + Reth::LEN;

/// Returns the ICRC of an RC FLUSH as rxe computes it, like [`compute`](super::compute).
pub fn compute_flush_quirk(flow: &Flow, ip_id: u16, packet_without_icrc: &[u8]) -> [u8; ICRC_LEN] {
    checksum(&FlowIcrc::new(flow), ip_id, packet_without_icrc).to_le_bytes()
}

/// Returns true if an RC FLUSH has the ICRC that rxe computes, like
/// [`verify`](super::verify).
pub fn verify_flush_quirk(flow: &Flow, ip_id: u16, packet_with_icrc: &[u8]) -> bool {
    let flow = FlowIcrc::new(flow);
    split(packet_with_icrc).is_some_and(|(body, icrc)| checksum(&flow, ip_id, body) == icrc)
}

/// Checks an RC FLUSH against the ICRC that rxe computes, like
/// [`recover_id`](super::recover_id).
pub fn recover_id_flush_quirk(
    flow: &Flow,
    expected: u16,
    packet_with_icrc: &[u8],
) -> Option<Recovered> {
    let (body, received) = split(packet_with_icrc)?;
    let flow = FlowIcrc::new(flow);
    let hashed = header(body).len() + body.len();
    recover_with(&flow, expected, received, hashed, |id| {
        checksum(&flow, id, body)
    })
}

fn checksum(flow: &FlowIcrc, ip_id: u16, body: &[u8]) -> u32 {
    let mut icrc = flow.begin(ip_id, body.len() + ICRC_LEN, header(body));
    icrc.update(body);
    icrc.value()
}

fn header(body: &[u8]) -> &[u8] {
    &body[..body.len().min(FLUSH_HEADER_LEN)]
}
