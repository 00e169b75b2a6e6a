//! Ends received segments and delivers their messages.

use core::mem;

use ferroce_objects::send_queue::Phase as WrPhase;
use ferroce_objects::{AccessError, WcStatus};

use super::close::{Refusal, Refused};
use super::inbound::{InboundTagged, refused};
use super::{Phase, Qp};
use crate::bugs::Bug;
use crate::engine::Context;
use crate::header::{Header, Place, ReadRequest};
use crate::opcode::Opcode;
use crate::terminate::{Code, MAX_PAYLOAD, Terminate};

impl Qp {
    /// Ends a segment.
    pub(super) fn end(&mut self, cx: &mut Context) -> Result<(), Refused> {
        let placing = mem::take(&mut self.stream().placing);
        let Some(header) = placing.header() else {
            return Ok(());
        };
        let last = header.last || cx.has_bug(Bug::IgnoreLastBit);
        let ended = match (header.opcode, header.place) {
            (Opcode::Write, Place::Tagged { stag, offset }) => {
                self.note_tagged(&header, stag, offset, last);
                cx.received.writes = cx.received.writes.wrapping_add(last.into());
                Ok(())
            }
            (Opcode::ReadResponse, Place::Tagged { stag, offset }) => {
                self.note_tagged(&header, stag, offset, last);
                self.end_read_response(cx, &header, last);
                Ok(())
            }
            (Opcode::ReadRequest, Place::Untagged { read, .. }) => {
                self.end_read_request(cx, read.unwrap_or_default())
            }
            (Opcode::Terminate, _) => return Err(self.peer_terminated()),
            _ => self.end_send(cx, &header, last),
        };
        ended.map_err(|refusal| refusal.because_of(&header))?;
        if self.stream().phase == Phase::AwaitingRtr {
            self.stream().phase = Phase::Open;
            self.set_deadline(cx, None);
            self.establish(cx);
        }
        Ok(())
    }

    fn note_tagged(&mut self, header: &Header, stag: u32, offset: u64, last: bool) {
        self.stream().inbound_tagged = (!last).then_some(InboundTagged {
            opcode: header.opcode,
            stag,
            next: offset.wrapping_add(header.payload.into()),
        });
    }

    fn end_read_response(&mut self, cx: &mut Context, header: &Header, last: bool) {
        let Some(read) = self.stream().outstanding.front_mut() else {
            return;
        };
        read.received += header.payload;
        if !last && !cx.has_bug(Bug::CompleteReadEarly) {
            return;
        }
        if let Some(read) = self.stream().outstanding.pop_front()
            && let Some(number) = read.request
        {
            let index = number.wrapping_sub(self.popped) as usize;
            if let Some(wqe) = self.sq.get_mut(index) {
                wqe.phase = WrPhase::Done;
            }
            let accepted = self.stream().output.accepted();
            self.complete_sent(cx, accepted);
        }
        // A fence, or the ORD, may have held work requests back.
        self.wake(cx);
    }

    /// Queues a Read of the peer.
    ///
    /// RFC 6581 9.1: the peer has no more Reads outstanding than the IRD. siw rounds
    /// its queue up to a power of two, and does not count the Read that is being answered.
    fn end_read_request(&mut self, cx: &mut Context, read: ReadRequest) -> Result<(), Refused> {
        let stream = self.stream();
        let room = match stream.params.ird {
            0 => 0,
            ird => usize::from(ird.next_power_of_two()),
        };
        if stream.inbound_reads.len() >= room {
            let why = format!("more Reads than the IRD of {}", stream.params.ird);
            return Err(refused(Code::RDMAP_CATASTROPHIC_STREAM, why));
        }
        stream.expected_read_msn = stream.expected_read_msn.wrapping_add(1);
        stream.inbound_reads.push_back(read);
        self.wake(cx);
        Ok(())
    }

    fn end_send(&mut self, cx: &mut Context, header: &Header, last: bool) -> Result<(), Refused> {
        let Some(mut message) = self.stream().inbound_send else {
            return Ok(());
        };
        message.placed += header.payload;
        if !last {
            self.stream().inbound_send = Some(message);
            return Ok(());
        }
        let invalidated = message.opcode.invalidates().then_some(message.invalidate);
        if let Some(stag) = invalidated
            && !cx.has_bug(Bug::SkipInvalidate)
            && let Err(error) = cx.regions.invalidate(stag, &self.pd, self.qpn, true)
        {
            let code = match error {
                AccessError::OtherDomain { .. } => Code::RDMAP_PROTECTED_INVALIDATE,
                _ => Code::RDMAP_CANNOT_INVALIDATE,
            };
            let refusal = Refusal::new(code, error.into());
            return Err(refusal.failing_receive(WcStatus::RemoteInvalidRequest));
        }
        let stream = self.stream();
        stream.inbound_send = None;
        stream.expected_send_msn = stream.expected_send_msn.wrapping_add(1);
        let wr_id = stream.held.wr_id;
        let solicited = message.opcode.is_solicited();
        cx.received.receives = cx.received.receives.wrapping_add(1);
        self.complete_receive(cx, wr_id, message.placed, invalidated, solicited);
        Ok(())
    }

    /// Returns the refusal that ends the stream after a TERMINATE of the peer.
    fn peer_terminated(&mut self) -> Refused {
        let payload = mem::take(&mut self.stream().terminate);
        let text = match Terminate::decode(&payload) {
            Some(terminate) => terminate.code.to_string(),
            None => format!(
                "a TERMINATE of {} bytes without an error code",
                payload.len()
            ),
        };
        Refusal::terminated(text)
    }

    /// Keeps the part of a TERMINATE that matters.
    pub(super) fn keep_terminate(&mut self, payload: &[u8]) {
        let kept = &mut self.stream().terminate;
        let room = MAX_PAYLOAD.saturating_sub(kept.len());
        kept.extend_from_slice(&payload[..payload.len().min(room)]);
    }
}
