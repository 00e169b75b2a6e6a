//! How Linux rxe computes the ICRC of a FLUSH.
//!
//! Its opcode table has no payload offset for FLUSH, so after the masked headers
//! it hashes "payload" from offset zero: the headers once more, unmasked. Two
//! rxe agree on this and nobody else does. Whoever talks FLUSH to rxe accepts
//! both forms and answers in the one the peer uses.

use super::recover::{Recovered, recover_with};
use super::{FlowIcrc, split};
use crate::{Bth, Feth, Flow, ICRC_LEN, Reth};

const FLUSH_HEADER_LEN: usize = Bth::LEN + Feth::LEN + Reth::LEN;

/// [`compute`](super::compute), for an RC FLUSH, as rxe does it.
pub fn compute_flush_quirk(flow: &Flow, ip_id: u16, packet_without_icrc: &[u8]) -> [u8; ICRC_LEN] {
    checksum(&FlowIcrc::new(flow), ip_id, packet_without_icrc).to_le_bytes()
}

/// [`verify`](super::verify), for an RC FLUSH, as rxe does it.
pub fn verify_flush_quirk(flow: &Flow, ip_id: u16, packet_with_icrc: &[u8]) -> bool {
    let flow = FlowIcrc::new(flow);
    split(packet_with_icrc).is_some_and(|(body, icrc)| checksum(&flow, ip_id, body) == icrc)
}

/// [`recover_id`](super::recover_id), for an RC FLUSH, as rxe does it.
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
