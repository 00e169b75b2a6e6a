//! Packets in the middle of a long message, when they are just as foreseen.
//!
//! Of a long WRITE or SEND all packets but the first and the last look alike, and each
//! says what the next must be. Those that are so in every respect, and have come
//! together, are taken in with a few comparisons each. Whatever differs in anything goes
//! the long way, which alone decides what is wrong with it: nothing has changed when a
//! packet is turned down here, but for bytes of the message in progress. (TCP knows this
//! as header prediction.)

use ferroce_wire::icrc::{ALIKE, AlikeIcrc};
use ferroce_wire::{Bth, ICRC_LEN, Opcode, Operation, Psn, Transport};

use super::Qp;
use super::responder::Message;
use crate::attr::QpType;
use crate::engine::Context;
use crate::memory::Memory;
use crate::receive::{Datagram, is_congested, is_from_peer, is_our_partition};
use crate::verbs::Access;

const SEND: u8 = Opcode::new(Transport::Rc, Operation::SendMiddle)
    .unwrap()
    .byte();
const WRITE: u8 = Opcode::new(Transport::Rc, Operation::WriteMiddle)
    .unwrap()
    .byte();

/// The queue pair that packets may be foreseen by, if they are of that kind.
#[inline]
pub(crate) fn candidate(payload: &[u8]) -> Option<u32> {
    match payload.first_chunk::<{ Bth::LEN }>()? {
        [SEND | WRITE, _, _, _, _, a, b, c, ..] => Some(u32::from_be_bytes([0, *a, *b, *c])),
        _ => None,
    }
}

/// The packets of a run, as long as each is what must come next.
struct Foreseen<'a> {
    packets: core::slice::ChunksExact<'a, u8>,
    alike: [u8; ALIKE],
    psn: Psn,
    icrc: Option<AlikeIcrc>,
    ip_id: u16,
}

impl<'a> Iterator for Foreseen<'a> {
    type Item = &'a [u8];

    /// The payload of the next.
    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let packet = self.packets.next()?;
        let (alike, rest) = packet.split_first_chunk()?;
        let (psn, rest) = rest.split_first_chunk()?;
        // The same word says that no acknowledgement is asked for.
        if *alike != self.alike || u32::from_be_bytes(*psn) != self.psn.value() {
            return None;
        }
        if let Some(icrc) = &self.icrc {
            self.ip_id = icrc.recover_id(self.ip_id, packet)?.id;
        }
        self.psn = self.psn.next();
        rest.split_last_chunk::<ICRC_LEN>().map(|(data, _)| data)
    }
}

impl Qp {
    /// Takes in the first packets of `run`, which has packets of `segment` bytes one
    /// behind the other, as far as they are foreseen. Returns how many those are.
    pub(crate) fn take_foreseen(
        &mut self,
        cx: &Context,
        memory: &dyn Memory,
        run: &Datagram<'_>,
        segment: usize,
    ) -> usize {
        let Some(mut message) = self.resp.message else {
            return 0;
        };
        let Some(mut packets) = self.foresee(cx, &message, run, segment) else {
            return 0;
        };
        let mtu = u64::from(self.mtu);
        let most = packets.packets.len() as u64;
        let mut taken = 0;
        if let Some(target) = &mut message.write {
            // One that completes the message is not among them.
            let most = most.min(target.left.saturating_sub(1) / mtu);
            let (va, length) = (target.va, most * mtu);
            let Ok(address) = self.resolve(cx, target.rkey, Access::REMOTE_WRITE, va, length)
            else {
                return 0;
            };
            while taken < most
                && let Some(data) = packets.next()
                && memory.write(address + taken * mtu, data).is_ok()
            {
                taken += 1;
            }
            target.va = va.wrapping_add(taken * mtu);
            target.left -= taken * mtu;
        } else {
            while let Some(data) = packets.next()
                && let offset = message.placed + taken * mtu
                && self.place_received(cx, memory, offset, data).is_ok()
            {
                taken += 1;
            }
        }
        if taken > 0 {
            message.placed += taken * mtu;
            let resp = &mut self.resp;
            resp.message = Some(message);
            resp.psn = resp.psn.add(taken as u32);
            resp.ack_psn = resp.psn;
            resp.nak_sent = false;
            self.peer_ip_id = packets.ip_id;
        }
        taken as usize
    }

    /// What must come next if it is the middle of this message, and the run may be it.
    fn foresee<'a>(
        &mut self,
        cx: &Context,
        message: &Message,
        run: &Datagram<'a>,
        segment: usize,
    ) -> Option<Foreseen<'a>> {
        let alike: [u8; ALIKE] = *run.payload.first_chunk()?;
        let [opcode, flags, pkey @ .., _, _, _, _] = alike;
        let pad_and_version = flags & 0x3f;
        let continues = match message.write {
            Some(_) => opcode == WRITE && self.attr.access.contains(Access::REMOTE_WRITE),
            None => opcode == SEND,
        };
        let may_be = continues
            && segment == Bth::LEN + self.mtu as usize + ICRC_LEN
            && pad_and_version == 0
            && is_our_partition(u16::from_be_bytes(pkey))
            && self.kind == QpType::Rc
            && self.state.receives()
            && is_from_peer(self, run)
            && !is_congested(run)
            && run.ip_id.is_none();
        may_be.then(|| Foreseen {
            packets: run.payload.chunks_exact(segment),
            alike,
            psn: self.resp.psn,
            icrc: cx.config.check_icrc.then(|| {
                let flow = self.rx_icrc(run.source_port);
                AlikeIcrc::new(flow, segment, &alike)
            }),
            ip_id: self.peer_ip_id,
        })
    }
}
