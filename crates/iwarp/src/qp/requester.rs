//! Turns work requests into FPDUs.
//!
//! Messages are written one after the other, requests and Read Responses by turns: DDP does
//! not let messages of one kind mix, and nothing is gained if messages of two kinds do.

use ferroce_objects::send_queue::Phase as WrPhase;
use ferroce_objects::sge::spans;
use ferroce_objects::{
    Access, AccessError, MemRef, Memory, QpState, Reason, SendFlags, SendOp, WcStatus,
};

use super::segment::Payload;
use super::{Message, MessageSource, OutstandingRead, Phase, Qp};
use crate::bugs::Bug;
use crate::engine::Context;
use crate::header::{Header, Place, ReadRequest};
use crate::opcode::{Opcode, QN_READ_REQUEST, QN_SEND};
use crate::output::Output;

/// Whether a work request can be written now.
enum Start {
    Now,
    Later,
    Never(WcStatus, Reason),
}

impl Qp {
    /// Adds FPDUs until the output has `limit` bytes, or none is left.
    pub(crate) fn fill_output(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        limit: usize,
    ) -> Option<&Output> {
        while let Some(stream) = &self.stream
            && stream.output.len() < limit
            && self.write_next(cx, memory)
        {}
        self.finish_if_drained(cx);
        self.settle(cx);
        Some(&self.stream.as_ref()?.output)
    }

    /// Writes one FPDU. Returns false if there is none to write now.
    fn write_next(&mut self, cx: &mut Context, memory: &dyn Memory) -> bool {
        if self.stream().current.is_none() {
            let source = self.next_message(cx);
            self.stream().current = source.map(|source| Message { source, written: 0 });
        }
        match self.stream.as_ref().and_then(|stream| stream.current) {
            None => false,
            Some(message) => match message.source {
                MessageSource::Request => self.write_request(cx, memory, message.written),
                MessageSource::Response(read) => {
                    self.write_response(cx, memory, read, message.written)
                }
            },
        }
    }

    /// Chooses the next message. A work request that can never be sent ends the stream.
    fn next_message(&mut self, cx: &mut Context) -> Option<MessageSource> {
        let is_open = self.stream().phase == Phase::Open && self.state == QpState::Rts;
        if !(is_open || self.drains()) || self.is_held() {
            return None;
        }
        let has_read = !self.stream().inbound_reads.is_empty();
        let request_is_next = self.stream().request_is_next || !has_read;
        if request_is_next {
            match self.can_start(cx) {
                Start::Now => {
                    self.stream().request_is_next = false;
                    return Some(MessageSource::Request);
                }
                Start::Later => {}
                Start::Never(status, reason) => {
                    let index = self.stream().started;
                    self.fail_request_when_drained(cx, index, 0, status, reason);
                    return None;
                }
            }
        }
        let stream = self.stream();
        let read = stream.inbound_reads.pop_front()?;
        stream.request_is_next = true;
        Some(MessageSource::Response(read))
    }

    /// Checks whether the next work request can be written.
    fn can_start(&self, cx: &Context) -> Start {
        let Some(stream) = &self.stream else {
            return Start::Later;
        };
        let Some(wqe) = self.sq.get(stream.started) else {
            return Start::Later;
        };
        let outstanding = stream.outstanding.len();
        if wqe.flags.contains(SendFlags::FENCE) && outstanding > 0 && !cx.has_bug(Bug::IgnoreFence)
        {
            return Start::Later;
        }
        if let SendOp::Read { .. } = wqe.op {
            let ord = usize::from(stream.params.ord);
            if ord == 0 {
                let why = "READ on a connection that was set up for no READs (ORD 0)";
                return Start::Never(
                    WcStatus::LocalQpOperation,
                    Reason::InvalidRequest(why.into()),
                );
            }
            if outstanding >= ord && !cx.has_bug(Bug::IgnoreOrd) {
                return Start::Later;
            }
        }
        Start::Now
    }

    /// Writes the next FPDU of the present work request. Returns false if that failed.
    fn write_request(&mut self, cx: &mut Context, memory: &dyn Memory, written: u32) -> bool {
        let index = self.stream().started;
        let Some(wqe) = self.sq.get(index) else {
            return false;
        };
        let (opcode, remote) = match wqe.op {
            SendOp::Read { remote_addr, rkey } => {
                return self.write_read(cx, index, rkey, remote_addr);
            }
            SendOp::Write {
                remote_addr, rkey, ..
            } => (Opcode::Write, Some((rkey, remote_addr))),
            SendOp::SendInvalidate { .. } if wqe.flags.contains(SendFlags::SOLICITED) => {
                (Opcode::SendSolicitedInvalidate, None)
            }
            SendOp::SendInvalidate { .. } => (Opcode::SendInvalidate, None),
            SendOp::Send { .. } if wqe.flags.contains(SendFlags::SOLICITED) => {
                (Opcode::SendSolicited, None)
            }
            SendOp::Send { .. } => (Opcode::Send, None),
            // A post of these is refused.
            SendOp::CompareSwap { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::AtomicWrite { .. }
            | SendOp::Flush { .. }
            | SendOp::LocalInvalidate { .. }
            | SendOp::BindMw(_) => return false,
        };
        let invalidate = match wqe.op {
            SendOp::SendInvalidate { rkey } => rkey,
            _ => 0,
        };
        let (total, is_inline) = (wqe.length, wqe.is_inline());
        let most = self.stream().max_payload(opcode);
        let payload = (total - written).min(most);
        let last = written + payload == total;
        let place = match remote {
            Some((stag, offset)) => Place::Tagged {
                stag,
                offset: offset.wrapping_add(written.into()),
            },
            None => Place::Untagged {
                invalidate,
                queue: QN_SEND,
                msn: self.stream().next_send_msn,
                mo: match cx.has_bug(Bug::LoseMessageOffset) {
                    true => 0,
                    false => written,
                },
                read: None,
            },
        };
        let header = Header {
            opcode,
            last,
            place,
            payload,
        };
        let mut places = core::mem::take(&mut cx.places);
        places.clear();
        if !is_inline && let Err(error) = self.gather(cx, index, written, payload, &mut places) {
            self.fail_request_when_drained(
                cx,
                index,
                written,
                WcStatus::LocalProtection,
                error.into(),
            );
            return false;
        }
        let payload_of = match is_inline {
            true => Payload::Bytes(&self.sq.inline(index)[written as usize..][..payload as usize]),
            false => Payload::Request(&places),
        };
        let stream = self.stream.as_mut().expect("checked above");
        if let Err(fault) = stream.write_fpdu(cx, memory, &header, &payload_of) {
            self.fail_request_when_drained(
                cx,
                index,
                written,
                WcStatus::LocalProtection,
                fault.into(),
            );
            return false;
        }
        cx.places = places;
        match last {
            false => {
                stream.current = Some(Message {
                    source: MessageSource::Request,
                    written: written + payload,
                });
            }
            true => {
                if remote.is_none() {
                    stream.next_send_msn = next_msn(cx, stream.next_send_msn);
                }
                self.end_request(cx);
            }
        }
        true
    }

    /// Ends the stream because of a work request, once earlier messages have been sent. The
    /// socket's next acceptance leads here again.
    fn fail_request_when_drained(
        &mut self,
        cx: &mut Context,
        index: usize,
        written: u32,
        status: WcStatus,
        reason: Reason,
    ) {
        if written == 0 && !self.stream().output.is_empty() {
            self.stream().current = None;
            return;
        }
        self.fail_request(cx, index, status, reason);
    }

    /// Checks the keys of a part of the gather list, and adds its memory to `places`.
    fn gather(
        &self,
        cx: &Context,
        index: usize,
        from: u32,
        length: u32,
        places: &mut Vec<(MemRef, u32)>,
    ) -> Result<(), AccessError> {
        let Some(wqe) = self.sq.get(index) else {
            return Ok(());
        };
        let first = (wqe.num_sge > 0).then_some(&wqe.sge);
        let sges = first.into_iter().chain(self.sq.more_sges(index));
        for (sge, offset, bytes) in spans(sges, from.into(), length.into()) {
            let none = Access::empty();
            let at = cx.local(
                sge.lkey,
                &self.pd,
                none,
                sge.addr.wrapping_add(offset),
                bytes,
            )?;
            places.push((at, bytes));
        }
        Ok(())
    }

    /// Writes the Read Request of the present work request.
    fn write_read(&mut self, cx: &mut Context, index: usize, rkey: u32, addr: u64) -> bool {
        let Some(wqe) = self.sq.get(index) else {
            return false;
        };
        let length = wqe.length;
        let sink = match wqe.num_sge {
            0 => ferroce_objects::Sge::default(),
            _ => wqe.sge,
        };
        // siw checks the sink before it sends the request, and needs LOCAL_WRITE only.
        let check = match length {
            0 => Ok(MemRef::host(0)),
            _ => cx.local(sink.lkey, &self.pd, Access::LOCAL_WRITE, sink.addr, length),
        };
        if let Err(error) = check {
            let status = WcStatus::LocalProtection;
            self.fail_request_when_drained(cx, index, 0, status, error.into());
            return false;
        }
        self.write_read_request(cx, sink.lkey, sink.addr, length, rkey, addr);
        let request = Some(self.popped.wrapping_add(index as u64));
        self.stream().outstanding.push_back(OutstandingRead {
            request,
            sink_stag: sink.lkey,
            sink_offset: sink.addr,
            length,
            received: 0,
        });
        self.end_request(cx);
        true
    }

    /// Notes that all of the present work request is in the output.
    fn end_request(&mut self, cx: &mut Context) {
        let stream = self.stream.as_mut().expect("a request was written");
        let end = stream.output.end();
        if let Some(wqe) = self.sq.get_mut(stream.started) {
            wqe.phase = WrPhase::Started;
            wqe.progress.end = end;
        }
        stream.started += 1;
        stream.current = None;
        if cx.has_bug(Bug::CompleteUnsent) {
            self.complete_sent(cx, u64::MAX);
        }
    }

    /// Writes a Read Request.
    pub(super) fn write_read_request(
        &mut self,
        cx: &Context,
        sink_stag: u32,
        sink_offset: u64,
        size: u32,
        source_stag: u32,
        source_offset: u64,
    ) {
        let stream = self.stream();
        let header = Header {
            opcode: Opcode::ReadRequest,
            last: true,
            place: Place::Untagged {
                invalidate: 0,
                queue: QN_READ_REQUEST,
                msn: stream.next_read_msn,
                mo: 0,
                read: Some(ReadRequest {
                    sink_stag,
                    sink_offset,
                    size,
                    source_stag,
                    source_offset,
                }),
            },
            payload: 0,
        };
        stream.next_read_msn = next_msn(cx, stream.next_read_msn);
        stream.write_without_memory(cx, &header);
    }

    /// Writes a Write of no bytes.
    pub(super) fn write_empty_write(&mut self, cx: &Context, stag: u32) {
        let header = Header::tagged(Opcode::Write, true, stag, 0, 0);
        self.stream().write_without_memory(cx, &header);
    }
}

/// Returns the MSN after `msn`.
///
/// RFC 5041 4.3: MSNs count messages modulo 2^32.
fn next_msn(cx: &Context, msn: u32) -> u32 {
    match cx.has_bug(Bug::MsnDoesNotWrap) {
        true => msn.saturating_add(1),
        false => msn.wrapping_add(1),
    }
}
