//! Header prediction for READ responses.

use crate::attr::QpState;
use crate::engine::Context;
use crate::memory::Memory;
use crate::operation::OpClass;
use crate::qp::Qp;
use crate::receive::Datagram;
use crate::send_queue::Phase;
use crate::verbs::Access;

impl Qp {
    /// Receives predicted READ response packets; returns how many.
    pub(super) fn take_predicted_responses(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        run: &Datagram<'_>,
        segment: usize,
    ) -> usize {
        let Some(mut packets) = self.predict(cx, run, segment, self.req.una) else {
            return 0;
        };
        let (Some(wqe), Some(pd)) = (self.sq.front(), &self.pd) else {
            return 0;
        };
        let expected = wqe.op.info().class == OpClass::Read
            && wqe.phase == Phase::Started
            && wqe.num_sge == 1
            && !self.sq.fails(0)
            && matches!(self.state, QpState::Rts | QpState::Sqd);
        if !expected {
            return 0;
        }
        // The first and the last packet of a chunk are FIRST and LAST, not MIDDLE.
        let (at, chunk) = (self.req.acked, u32::from(wqe.chunk).max(1));
        let last = (at - at % chunk + chunk).min(wqe.packets).saturating_sub(1);
        let asked = self.req.sent_up_to.distance(self.req.una).max(0) as u32;
        let most = (packets.len() as u32)
            .min(last.saturating_sub(at))
            .min(asked);
        if at.is_multiple_of(chunk) || most == 0 {
            return 0;
        }
        let addr = wqe.sge.addr.wrapping_add(wqe.bytes_before(at, self.mtu));
        let length = most * self.mtu;
        let Ok(address) = cx.local(wqe.sge.lkey, pd, Access::LOCAL_WRITE, addr, length) else {
            return 0;
        };
        let taken = packets.write_to(memory, address, self.mtu, most);
        if taken > 0 {
            self.peer_ip_id = packets.ip_id;
            self.note_read_progress(cx, taken);
        }
        taken as usize
    }
}
