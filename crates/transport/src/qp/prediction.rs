//! Packets in the middle of a long message, when they are just as foreseen.
//!
//! Of a long SEND, WRITE or answer to a READ all packets but the first and the last look
//! prefix, and each says what the next must be. Those that are so in every respect, and have come
//! together, are taken in with a few comparisons each. Whatever differs in anything goes
//! the long way, which alone decides what is wrong with it: nothing has changed when a
//! packet is turned down here, but for bytes of the message in progress. (TCP knows this
//! as header prediction.)

mod requests;
mod responses;

use ferroce_wire::icrc::{UNIFORM_PREFIX_LEN, UniformIcrc};
use ferroce_wire::{Bth, ICRC_LEN, Opcode, Operation, Psn, Transport};

use super::Qp;
use crate::attr::QpType;
use crate::engine::Context;
use crate::memory::{MemRef, Memory};
use crate::receive::{Datagram, IpId, expected_id, is_congested, is_from_peer, is_our_partition};

const SEND: u8 = Opcode::new(Transport::Rc, Operation::SendMiddle)
    .unwrap()
    .byte();
const WRITE: u8 = Opcode::new(Transport::Rc, Operation::WriteMiddle)
    .unwrap()
    .byte();
const READ: u8 = Opcode::new(Transport::Rc, Operation::ReadResponseMiddle)
    .unwrap()
    .byte();

/// The queue pair that packets may be foreseen by, if they are of that kind.
#[inline]
pub(crate) fn candidate_qpn(payload: &[u8]) -> Option<u32> {
    match payload.first_chunk::<{ Bth::LEN }>()? {
        [SEND | WRITE | READ, _, _, _, _, a, b, c, ..] => Some(u32::from_be_bytes([0, *a, *b, *c])),
        _ => None,
    }
}

/// The packets of a run, as long as each is what must come next.
struct PredictedPackets<'a> {
    packets: core::slice::ChunksExact<'a, u8>,
    prefix: [u8; UNIFORM_PREFIX_LEN],
    psn: Psn,
    icrc: Option<UniformIcrc>,
    /// The identification of the last, and which of those that came merged is next.
    ip_id: u16,
    nth: u16,
}

impl<'a> Iterator for PredictedPackets<'a> {
    type Item = &'a [u8];

    /// The payload of the next.
    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let packet = self.packets.next()?;
        let (prefix, rest) = packet.split_first_chunk()?;
        let (psn, rest) = rest.split_first_chunk()?;
        // The same word says that no acknowledgement is asked for.
        if *prefix != self.prefix || u32::from_be_bytes(*psn) != self.psn.value() {
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
    /// Takes in the first packets of `run`, which has packets of `segment` bytes one
    /// behind the other, as far as they are foreseen. Returns how many those are.
    pub(crate) fn take_predicted(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        run: &Datagram<'_>,
        segment: usize,
    ) -> usize {
        match run.payload.first() {
            Some(&READ) => self.take_predicted_responses(cx, memory, run, segment),
            Some(&opcode) => self.take_predicted_requests(cx, memory, run, segment, opcode),
            None => 0,
        }
    }

    /// The packets of a run, from `psn` on, if this queue pair may take them.
    fn predict<'a>(
        &mut self,
        cx: &Context,
        run: &Datagram<'a>,
        segment: usize,
        psn: Psn,
    ) -> Option<PredictedPackets<'a>> {
        let prefix: [u8; UNIFORM_PREFIX_LEN] = *run.payload.first_chunk()?;
        let IpId::Unseen(nth) = run.ip_id else {
            return None;
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
            icrc: cx.config.check_icrc.then(|| {
                let flow = self.rx_icrc(run.source_port);
                UniformIcrc::new(flow, segment, &prefix)
            }),
            ip_id: self.peer_ip_id,
            nth,
        })
    }
}

impl PredictedPackets<'_> {
    /// How many packets there are at most.
    fn len(&self) -> usize {
        self.packets.len()
    }

    /// Writes the payload of up to `most` packets to memory from `address` on; returns how
    /// many they were.
    #[inline]
    fn write_to(&mut self, memory: &dyn Memory, address: MemRef, mtu: u32, most: u32) -> u32 {
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
