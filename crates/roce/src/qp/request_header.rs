//! Headers of request packets: BTH, XRCETH, RETH, immediate data and IETH.

use ferroce_wire::{Bth, HeaderBuf, Ieth, ImmDt, Opcode, Operation, Reth, XrcEth, padding};

use super::Qp;
use crate::attr::QpType;
use crate::operation::OpClass;
use crate::send_queue::Wqe;
use crate::transmit::Batch;
use crate::verbs::{SendFlags, SendOp};

impl Qp {
    /// Starts the next packet of the batch with a BTH and, for XRC, an XRCETH.
    #[inline(always)]
    pub(super) fn request_header<'b>(
        &self,
        batch: &'b mut Batch,
        wqe: &Wqe,
        operation: Operation,
        payload: u32,
        ack_req: bool,
    ) -> &'b mut HeaderBuf {
        let opcode = Opcode::new(self.transport(), operation)
            .expect("check_send refuses operations that the transport does not have");
        let mut bth = Bth::new(opcode, self.attr.dest_qpn, self.req.psn);
        bth.ack_req = ack_req;
        bth.pad = padding(payload as usize) as u8;
        bth.solicited = wqe.flags.contains(SendFlags::SOLICITED)
            && opcode.ends_message()
            && (opcode.is_send() || opcode.has_immediate());
        let header = batch.header(&bth);
        if self.kind == QpType::XrcInitiator {
            return header.xrceth(&XrcEth {
                srq_number: wqe.xrc_srq,
            });
        }
        header
    }
}

/// Writes the headers of packet number `packet` of a SEND or WRITE.
#[inline(always)]
pub(super) fn message_header(
    qp: &Qp,
    batch: &mut Batch,
    wqe: &Wqe,
    packet: u32,
    payload: u32,
    ack_req: bool,
) {
    use Operation::{
        SendFirst, SendLast, SendLastImm, SendLastInvalidate, SendMiddle, SendOnly, SendOnlyImm,
        SendOnlyInvalidate, WriteFirst, WriteLast, WriteLastImm, WriteMiddle, WriteOnly,
        WriteOnlyImm,
    };
    let (first, last) = (packet == 0, packet + 1 == wqe.packets);
    match wqe.op {
        SendOp::Write {
            remote_addr,
            rkey,
            imm,
        } => {
            let operation = match (first, last, imm) {
                (true, false, _) => WriteFirst,
                (false, false, _) => WriteMiddle,
                (false, true, None) => WriteLast,
                (false, true, Some(_)) => WriteLastImm,
                (true, true, None) => WriteOnly,
                (true, true, Some(_)) => WriteOnlyImm,
            };
            let header = qp.request_header(batch, wqe, operation, payload, ack_req);
            if first {
                header.reth(&Reth {
                    va: remote_addr,
                    rkey,
                    length: wqe.length,
                });
            }
            if let (true, Some(imm)) = (last, imm) {
                header.immediate(&ImmDt(imm));
            }
        }
        SendOp::SendInvalidate { rkey } => {
            let operation = match (first, last) {
                (true, false) => SendFirst,
                (false, false) => SendMiddle,
                (false, true) => SendLastInvalidate,
                (true, true) => SendOnlyInvalidate,
            };
            let header = qp.request_header(batch, wqe, operation, payload, ack_req);
            if last {
                header.ieth(&Ieth { rkey });
            }
        }
        SendOp::Send { .. }
        | SendOp::Read { .. }
        | SendOp::CompareSwap { .. }
        | SendOp::FetchAdd { .. }
        | SendOp::AtomicWrite { .. }
        | SendOp::Flush { .. }
        | SendOp::LocalInvalidate { .. }
        | SendOp::BindMw(_) => {
            debug_assert_eq!(wqe.op.info().class, OpClass::Message);
            let imm = wqe.op.imm();
            let operation = match (first, last, imm) {
                (true, false, _) => SendFirst,
                (false, false, _) => SendMiddle,
                (false, true, None) => SendLast,
                (false, true, Some(_)) => SendLastImm,
                (true, true, None) => SendOnly,
                (true, true, Some(_)) => SendOnlyImm,
            };
            let header = qp.request_header(batch, wqe, operation, payload, ack_req);
            if let (true, Some(imm)) = (last, imm) {
                header.immediate(&ImmDt(imm));
            }
        }
    }
}
