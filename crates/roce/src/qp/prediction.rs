//! Header prediction: a fast path for the middle packets of long messages.
//!
//! All middle packets of a long SEND, WRITE or READ response have the same BTH except for
//! the PSN, which counts up. The kernel often delivers many of them in one GRO buffer. This
//! module compares each packet with the predicted header and copies its payload. One key
//! lookup serves the whole run. TCP implementations call the same idea header prediction.
//!
//! A packet that differs from the prediction in any bit takes the slow path
//! ([`Engine::receive`](crate::Engine::receive)), which alone decides what is wrong with it.
//! A rejected packet changes nothing but bytes of the message in progress.

mod requests;
mod responses;

use ferroce_wire::icrc::{UNIFORM_PREFIX_LEN, UniformIcrc};
use ferroce_wire::{Bth, ICRC_LEN, Opcode, Operation, Psn, Transport};

use super::Qp;
use crate::attr::QpType;
use crate::bugs::{Bug, Injected};
use crate::engine::Context;
use crate::memory::{MemRef, Memory};
use crate::receive::{Datagram, IpId, expected_id, is_congested, is_from_peer, is_our_partition};

/// Opcode of a SEND middle packet.
const SEND: u8 = Opcode::new(Transport::Rc, Operation::SendMiddle)
    .unwrap()
    .byte();
/// Opcode of a WRITE middle packet.
const WRITE: u8 = Opcode::new(Transport::Rc, Operation::WriteMiddle)
    .unwrap()
    .byte();
/// Opcode of a READ response middle packet.
const READ: u8 = Opcode::new(Transport::Rc, Operation::ReadResponseMiddle)
    .unwrap()
    .byte();

/// Returns the destination QPN if the first packet is a middle packet of RC.
#[inline]
pub(crate) fn candidate_qpn(payload: &[u8]) -> Option<u32> {
    match payload.first_chunk::<{ Bth::LEN }>()? {
        [SEND | WRITE | READ, _, _, _, _, a, b, c, ..] => Some(u32::from_be_bytes([0, *a, *b, *c])),
        _ => None,
    }
}

/// Iterator over the payloads of a run, up to the first packet that is not as predicted.
struct PredictedPackets<'a> {
    packets: core::slice::ChunksExact<'a, u8>,
    /// First eight bytes of every packet: the BTH up to the PSN.
    prefix: [u8; UNIFORM_PREFIX_LEN],
    psn: Psn,
    icrc: Option<UniformIcrc>,
    /// IPv4 identification of the last packet.
    ip_id: u16,
    /// Position of the next packet in the GRO buffer.
    nth: u16,
    injected: Injected,
}

impl<'a> Iterator for PredictedPackets<'a> {
    type Item = &'a [u8];

    /// Returns the payload of the next packet if it is as predicted.
    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let packet = self.packets.next()?;
        let (prefix, rest) = packet.split_first_chunk()?;
        let (psn, rest) = rest.split_first_chunk()?;
        // The AckReq bit shares the word with the PSN: a packet with AckReq differs too.
        if !self.is_prefix(prefix) || !self.is_next_psn(u32::from_be_bytes(*psn)) {
            return None;
        }
        if let Some(icrc) = &self.icrc {
            let expected = expected_id(self.ip_id, self.nth);
            self.ip_id = icrc.recover_id(expected, packet)?.id;
            self.nth = self.nth.wrapping_add(1);
        }
        self.psn = self.psn.next();
        rest.split_last_chunk::<ICRC_LEN>().map(|(data, _)| data)
    }
}

impl Qp {
    /// Receives the first packets of `run`, up to the first that is not as predicted. The
    /// run consists of packets of `segment` bytes each. Returns the number received.
    pub(crate) fn take_predicted(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        run: &Datagram<'_>,
        segment: usize,
    ) -> usize {
        let opcode = run.payload.first().copied().and_then(Opcode::from_byte);
        match opcode {
            Some(opcode) if opcode.is_response() => {
                self.take_predicted_responses(cx, memory, run, segment)
            }
            Some(opcode) => self.take_predicted_requests(cx, memory, run, segment, opcode),
            None => 0,
        }
    }

    /// Returns an iterator over the packets of a run from `psn` on, if all conditions that
    /// hold for the whole run are met.
    fn predict<'a>(
        &mut self,
        cx: &Context,
        run: &Datagram<'a>,
        segment: usize,
        psn: Psn,
    ) -> Option<PredictedPackets<'a>> {
        let prefix: [u8; UNIFORM_PREFIX_LEN] = *run.payload.first_chunk()?;
        let (nth, has_icrc) = match run.ip_id {
            IpId::Unseen(nth) => (nth, true),
            IpId::InMemory => (0, false),
            IpId::Seen(_) => return None,
        };
        let [_, flags, pkey @ .., _, _, _, _] = prefix;
        let pad_and_version = flags & 0x3f;
        let may_be = segment == Bth::LEN + self.mtu as usize + ICRC_LEN
            && pad_and_version == 0
            && is_our_partition(u16::from_be_bytes(pkey))
            && self.kind == QpType::Rc
            && is_from_peer(self, run)
            && !is_congested(run);
        may_be.then(|| PredictedPackets {
            packets: run.payload.chunks_exact(segment),
            prefix,
            psn,
            icrc: (has_icrc && cx.checks_icrc()).then(|| {
                let flow = self.rx_icrc(run.source_port);
                UniformIcrc::new(flow, segment, &prefix)
            }),
            ip_id: self.peer_ip_id,
            nth,
            injected: cx.injected,
        })
    }
}

impl PredictedPackets<'_> {
    /// Returns true if a packet begins as all packets of the run must.
    #[inline(always)]
    fn is_prefix(&self, prefix: &[u8; UNIFORM_PREFIX_LEN]) -> bool {
        let [opcode, flags, .., a, b, c] = *prefix;
        let is_same_kind = (opcode, flags) == (self.prefix[0], self.prefix[1]);
        *prefix == self.prefix
            || is_same_kind
                && (self.injected.has(Bug::PredictOtherPartition) && [a, b, c] == self.prefix[5..]
                    || self.injected.has(Bug::PredictOtherQp) && prefix[2..4] == self.prefix[2..4])
    }

    /// Returns true if the last word of a BTH has the next PSN and no AckReq.
    #[inline(always)]
    fn is_next_psn(&self, word: u32) -> bool {
        word == self.psn.value() || self.injected.has(Bug::PredictAnyPsn)
    }

    /// Returns the number of packets in the run.
    fn len(&self) -> usize {
        self.packets.len()
    }

    /// Writes the payload of up to `most` packets to memory from `address` on; returns the
    /// number of packets written.
    #[inline]
    fn write_to(&mut self, memory: &dyn Memory, address: MemRef, mtu: u32, most: u32) -> u32 {
        if !address.is_host() {
            return memory.write_run(address, &mut self.take(most as usize));
        }
        let mut taken = 0;
        while taken < most
            && let Some(data) = self.next()
            && let offset = u64::from(taken) * u64::from(mtu)
            && memory.write(address.offset(offset), data).is_ok()
        {
            taken += 1;
        }
        taken
    }
}
