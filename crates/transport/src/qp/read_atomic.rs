//! Requests that the peer answers with data or a response of their own.

use ferroce_wire::{AtomicEth, Feth, HeaderBuf, Operation, Reth};

use super::Qp;
use super::requester::{Blocked, gather};
use crate::bugs::Bug;
use crate::congestion::PACKET_OVERHEAD;
use crate::engine::Context;
use crate::transmit::{Batch, NewPacket, Origin};
use crate::verbs::{SendOp, WcStatus};

impl Qp {
    /// Asks for the next part of a READ.
    pub(super) fn send_read(&mut self, cx: &mut Context, batch: &mut Batch) -> Result<(), Blocked> {
        let Some(wqe) = self.sq.get(self.req.next) else {
            return Err(Blocked::Waits);
        };
        let SendOp::Read { remote_addr, rkey } = wqe.op else {
            return Err(Blocked::Waits);
        };
        if self.req.responses_due >= u32::from(self.attr.max_rd_atomic) {
            return Err(Blocked::Waits);
        }
        let from = self.req.sent;
        let to = ((from / wqe.chunk + 1) * wqe.chunk).min(wqe.packets);
        let offset = wqe.bytes_before(from, self.mtu);
        let length = (wqe.bytes_before(to, self.mtu) - offset) as u32;
        let cost = length + (to - from) * PACKET_OVERHEAD;
        if !self.req.admits(cost) {
            return Err(Blocked::Waits);
        }
        let va_offset = if cx.has_bug(Bug::LoseReadOffsetOnRetry) && self.req.retrying {
            0
        } else {
            offset
        };
        let header = self
            .request_header(wqe, Operation::ReadRequest, 0, true)
            .reth(&Reth {
                va: remote_addr.wrapping_add(va_offset),
                rkey,
                length,
            })
            .finish();
        self.push_single(batch, &header, 0, false);
        self.responses_expected(cx, to - from, cost);
        Ok(())
    }

    /// Sends an atomic, an atomic write or a flush: one packet, one answer.
    pub(super) fn send_single(
        &mut self,
        cx: &mut Context,
        batch: &mut Batch,
    ) -> Result<(), Blocked> {
        let index = self.req.next;
        let Some(wqe) = self.sq.get(index) else {
            return Err(Blocked::Waits);
        };
        let cost = 8 + PACKET_OVERHEAD;
        if self.req.responses_due >= u32::from(self.attr.max_rd_atomic) || !self.req.admits(cost) {
            return Err(Blocked::Waits);
        }
        let mark = batch.mark();
        let header = |operation, payload| self.request_header(wqe, operation, payload, true);
        let (header, payload) = match wqe.op {
            SendOp::CompareSwap {
                remote_addr,
                rkey,
                compare,
                swap,
            } => {
                let eth = AtomicEth {
                    va: remote_addr,
                    rkey,
                    swap_or_add: swap,
                    compare,
                };
                (header(Operation::CompareSwap, 0).atomic_eth(&eth), 0)
            }
            SendOp::FetchAdd {
                remote_addr,
                rkey,
                add,
            } => {
                let eth = AtomicEth {
                    va: remote_addr,
                    rkey,
                    swap_or_add: add,
                    compare: 0,
                };
                (header(Operation::FetchAdd, 0).atomic_eth(&eth), 0)
            }
            SendOp::AtomicWrite { remote_addr, rkey } => {
                if wqe.inline {
                    batch.push_inline(self.sq.inline(index));
                } else if let Err(reason) = gather(cx, self, index, 0, 8, batch) {
                    batch.rollback(mark);
                    self.fail_later(cx, index, WcStatus::LocalProtection, reason);
                    return Err(Blocked::Waits);
                }
                let reth = Reth {
                    va: remote_addr,
                    rkey,
                    length: 8,
                };
                (header(Operation::AtomicWrite, 8).reth(&reth), 8)
            }
            SendOp::Flush {
                remote_addr,
                rkey,
                length,
                placement,
                selectivity,
            } => {
                let feth = Feth {
                    placement,
                    selectivity,
                };
                let reth = Reth {
                    va: remote_addr,
                    rkey,
                    length,
                };
                (header(Operation::Flush, 0).feth(&feth).reth(&reth), 0)
            }
            _ => return Err(Blocked::Waits),
        };
        let quirk = self.req.flush_quirk && matches!(wqe.op, SendOp::Flush { .. });
        let header = header.finish();
        let psn = self.req.psn;
        batch.push(
            &self.path,
            mark,
            NewPacket {
                qpn: self.qpn,
                origin: Origin::Request(psn),
                header: &header,
                payload_len: payload,
                flush_quirk: quirk,
            },
        );
        self.responses_expected(cx, 1, cost);
        Ok(())
    }

    fn push_single(&self, batch: &mut Batch, header: &HeaderBuf, payload_len: usize, quirk: bool) {
        let mark = batch.mark();
        batch.push(
            &self.path,
            mark,
            NewPacket {
                qpn: self.qpn,
                origin: Origin::Request(self.req.psn),
                header,
                payload_len,
                flush_quirk: quirk,
            },
        );
    }

    /// A request has left that `packets` response packets will answer.
    fn responses_expected(&mut self, cx: &Context, packets: u32, cost: u32) {
        let psn = self.req.psn;
        self.req.responses_due += 1;
        self.req.in_flight += cost;
        self.req.asked(psn, packets, cx.now);
        self.req.sent += packets;
        self.req.psn = psn.add(packets);
        self.req.note_sent(cx.now, self.attr.timeout);
    }
}
