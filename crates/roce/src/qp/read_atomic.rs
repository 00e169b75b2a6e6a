//! Request packets of READs, atomics, atomic writes and flushes.
//!
//! The peer sends a response of its own to each of them, so at most `max_rd_atomic` may be
//! outstanding.

use core::ops::Range;

use ferroce_wire::{AtomicEth, Feth, Operation, Reth};

use super::Qp;
use super::requester::{Blocked, gather};
use crate::bugs::Bug;
use crate::congestion::PACKET_OVERHEAD;
use crate::engine::Context;
use crate::transmit::{Batch, NewPacket, Origin};
use crate::verbs::{SendOp, WcStatus};

/// Maximum length of one READ request (a chunk), in bytes.
const MAX_READ_CHUNK: u32 = 256 << 10;

/// Returns the number of response packets to the longest READ request that fits the window.
pub(super) fn most_packets_in_chunk(window: u32, mtu: u32) -> u16 {
    let packets = window.min(MAX_READ_CHUNK) / (mtu + PACKET_OVERHEAD);
    packets.clamp(1, u16::MAX.into()) as u16
}

impl Qp {
    /// Sends the READ request for the next chunk.
    pub(super) fn send_read(&mut self, cx: &mut Context, batch: &mut Batch) -> Result<(), Blocked> {
        let Some(wqe) = self.sq.get(self.req.index()) else {
            return Err(Blocked::UntilEvent);
        };
        let from = self.req.sent;
        let chunk = u32::from(wqe.chunk);
        if self.req.rd_atomic_outstanding >= self.attr.max_rd_atomic {
            let full = self.mtu + PACKET_OVERHEAD;
            let split = from > 0
                && chunk < MAX_READ_CHUNK / full
                && !cx.has_bug(Bug::ForgetWindowBehindReadDepth);
            self.req.note_read_waits(split, chunk * full);
            return Err(Blocked::UntilEvent);
        }
        let packets = wqe.packets;
        let chunk = match from + chunk < packets {
            true => self.lengthen_chunk(chunk),
            false => chunk,
        };
        let Some(wqe) = self.sq.get(self.req.index()) else {
            return Err(Blocked::UntilEvent);
        };
        let to = ((from / chunk + 1) * chunk).min(packets);
        let offset = wqe.bytes_before(from, self.mtu);
        let length = (wqe.bytes_before(to, self.mtu) - offset) as u32;
        let cost = length + (to - from) * PACKET_OVERHEAD;
        if !self.req.admits(cost) {
            return Err(Blocked::UntilEvent);
        }
        self.push_read(cx, batch, from..to);
        self.responses_expected(cx, to - from, cost);
        Ok(())
    }

    /// Doubles the chunk of the READ under the cursor as often as the window allows; returns
    /// its length. A READ that began with a small window would stay slow to its end.
    ///
    /// All chunks before the cursor must be acknowledged, and none behind it requested. The
    /// cursor must lie on a boundary of the longer chunk. Then each request that can be
    /// retransmitted still lies within one chunk.
    fn lengthen_chunk(&mut self, chunk: u32) -> u32 {
        let from = self.req.sent;
        let untouched =
            self.req.index() == 0 && from == self.req.acked && self.req.psn == self.req.sent_up_to;
        let most = u32::from(most_packets_in_chunk(self.req.window(), self.mtu));
        let mut longer = chunk;
        while untouched && 2 * longer <= most && from.is_multiple_of(2 * longer) {
            longer *= 2;
        }
        if longer > chunk
            && let Some(wqe) = self.sq.get_mut(0)
        {
            wqe.chunk = longer as u16; // at most `most`
        }
        longer
    }

    /// Adds a READ request for a range of packets of the READ under the cursor to the batch.
    pub(super) fn push_read(&self, cx: &Context, batch: &mut Batch, packets: Range<u32>) {
        let Some(wqe) = self.sq.get(self.req.index()) else {
            return;
        };
        let SendOp::Read { remote_addr, rkey } = wqe.op else {
            return;
        };
        let offset = wqe.bytes_before(packets.start, self.mtu);
        let length = (wqe.bytes_before(packets.end, self.mtu) - offset) as u32;
        let va_offset = if cx.has_bug(Bug::LoseReadOffsetOnRetry) && self.req.retrying {
            0
        } else {
            offset
        };
        self.request_header(batch, wqe, Operation::ReadRequest, 0, true)
            .reth(&Reth {
                va: remote_addr.wrapping_add(va_offset),
                rkey,
                length,
            });
        let mark = batch.mark();
        self.push_request(batch, mark, 0, false);
    }

    /// Sends an atomic, an atomic write or a flush: one request packet, one response packet.
    pub(super) fn send_single(
        &mut self,
        cx: &mut Context,
        batch: &mut Batch,
    ) -> Result<(), Blocked> {
        let cost = 8 + PACKET_OVERHEAD;
        if self.req.rd_atomic_outstanding >= self.attr.max_rd_atomic || !self.req.admits(cost) {
            return Err(Blocked::UntilEvent);
        }
        self.push_single(cx, batch)?;
        self.responses_expected(cx, 1, cost);
        Ok(())
    }

    /// Adds the one packet of the work request under the cursor to the batch.
    pub(super) fn push_single(
        &mut self,
        cx: &mut Context,
        batch: &mut Batch,
    ) -> Result<(), Blocked> {
        let index = self.req.index();
        let Some(wqe) = self.sq.get(index) else {
            return Err(Blocked::UntilEvent);
        };
        let mark = batch.mark();
        let payload = match wqe.op {
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
                self.request_header(batch, wqe, Operation::CompareSwap, 0, true)
                    .atomic_eth(&eth);
                0
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
                self.request_header(batch, wqe, Operation::FetchAdd, 0, true)
                    .atomic_eth(&eth);
                0
            }
            SendOp::AtomicWrite { remote_addr, rkey } => {
                if wqe.is_inline() {
                    batch.push_inline(self.sq.inline(index));
                } else if let Err(reason) = gather(cx, self, index, wqe, 0, 8, batch) {
                    batch.rollback(mark);
                    self.fail_later(cx, index, WcStatus::LocalProtection, reason);
                    return Err(Blocked::UntilEvent);
                }
                let reth = Reth {
                    va: remote_addr,
                    rkey,
                    length: 8,
                };
                self.request_header(batch, wqe, Operation::AtomicWrite, 8, true)
                    .reth(&reth);
                8
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
                self.request_header(batch, wqe, Operation::Flush, 0, true)
                    .feth(&feth)
                    .reth(&reth);
                0
            }
            SendOp::Send { .. }
            | SendOp::SendInvalidate { .. }
            | SendOp::Write { .. }
            | SendOp::Read { .. }
            | SendOp::LocalInvalidate { .. }
            | SendOp::BindMw(_) => return Err(Blocked::UntilEvent),
        };
        let quirk = self.req.flush_quirk && matches!(wqe.op, SendOp::Flush { .. });
        self.push_request(batch, mark, payload, quirk);
        Ok(())
    }

    /// Adds the packet whose header has been written to the batch.
    fn push_request(&self, batch: &mut Batch, mark: usize, payload_len: u32, flush_quirk: bool) {
        let new = NewPacket {
            qpn: self.qpn,
            origin: Origin::Request(self.req.psn),
            payload_len,
            flush_quirk,
        };
        batch.push(&self.path, mark, new);
    }

    /// Notes a request that `packets` response packets will answer, and moves the cursor.
    fn responses_expected(&mut self, cx: &Context, packets: u32, cost: u32) {
        let psn = self.req.psn;
        self.req.rd_atomic_outstanding += 1;
        self.req.window.sent(cost);
        self.req
            .note_ack_req(psn, packets, self.req.sent_up_to, cx.now);
        self.req.sent += packets;
        self.req.psn = psn.add(packets);
        self.req.note_sent(cx, &self.attr);
    }
}
