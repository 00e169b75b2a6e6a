//! Header prediction for SENDs and WRITEs of the peer.

use ferroce_wire::Opcode;

use crate::engine::Context;
use crate::memory::Memory;
use crate::qp::Qp;
use crate::receive::Datagram;
use crate::verbs::Access;

impl Qp {
    /// Receives predicted SEND or WRITE packets; returns how many.
    pub(super) fn take_predicted_requests(
        &mut self,
        cx: &Context,
        memory: &dyn Memory,
        run: &Datagram<'_>,
        segment: usize,
        opcode: Opcode,
    ) -> usize {
        let Some(mut message) = self.resp.message.filter(|_| self.state.receives()) else {
            return 0;
        };
        if !message.continues_with(opcode) || !self.permits(opcode) {
            return 0;
        }
        let Some(mut packets) = self.predict(cx, run, segment, self.resp.psn) else {
            return 0;
        };
        let mtu = u64::from(self.mtu);
        let mut taken = 0;
        if let Some(target) = &mut message.write {
            // A packet that ends the message is LAST, so at least one byte stays left.
            let most = (packets.len() as u64).min(target.left.saturating_sub(1) / mtu);
            let (va, length) = (target.va, most * mtu);
            let Ok(address) = self.resolve(cx, target.rkey, Access::REMOTE_WRITE, va, length)
            else {
                return 0;
            };
            taken = packets.write_to(memory, address, self.mtu, most as u32);
            target.va = va.wrapping_add(u64::from(taken) * mtu);
            target.left -= u64::from(taken) * mtu;
        } else if let Some((address, most)) =
            self.receive_run(cx, message.placed, mtu, packets.len() as u64)
        {
            taken = packets.write_to(memory, address, self.mtu, most);
        } else {
            while let Some(data) = packets.next()
                && let offset = message.placed + u64::from(taken) * mtu
                && self.place_received(cx, memory, offset, data).is_ok()
            {
                taken += 1;
            }
        }
        if taken > 0 {
            message.placed += u64::from(taken) * mtu;
            let resp = &mut self.resp;
            resp.message = Some(message);
            resp.psn = resp.psn.add(taken);
            resp.ack_psn = resp.psn;
            resp.nak_sent = false;
            self.peer_ip_id = packets.ip_id;
        }
        taken as usize
    }
}
