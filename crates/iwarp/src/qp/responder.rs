//! Answers the peer's Reads.

use ferroce_objects::{Access, AccessError, KeyRole, MemRef, Memory, Reason};

use super::close::Refusal;
use super::segment::Payload;
use super::{Message, MessageSource, Qp};
use crate::bugs::Bug;
use crate::engine::Context;
use crate::header::{Header, Place, ReadRequest};
use crate::opcode::{Opcode, QN_READ_REQUEST};
use crate::terminate::Code;

impl Qp {
    /// Writes the next FPDU of a Read Response. Returns false if that failed.
    ///
    /// RFC 5040 5.2: the source is checked when the response is made. The key is looked up
    /// for each segment, because the region may end in the middle of a response.
    pub(super) fn write_response(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        read: ReadRequest,
        written: u32,
    ) -> bool {
        let most = self.stream().max_payload(Opcode::ReadResponse);
        let length = (read.size - written).min(most);
        // The whole range is checked first, so that no part of a refused Read is answered.
        let checked = match written {
            0 => read.size,
            _ => length,
        };
        let at = match self.source(cx, &read, written, checked) {
            Ok(at) => at,
            // Earlier messages are sent first. The socket's next acceptance leads here again.
            Err(_) if written == 0 && !self.stream().output.is_empty() => return false,
            Err(error) => {
                let code = read_code(&error, read.source_offset, read.size);
                self.refuse_read(cx, &read, code, error.into());
                return false;
            }
        };
        let sink_written = match cx.has_bug(Bug::LoseSinkOffset) {
            true => 0,
            false => written,
        };
        let last = written + length == read.size;
        let header = Header::tagged(
            Opcode::ReadResponse,
            last,
            read.sink_stag,
            read.sink_offset.wrapping_add(sink_written.into()),
            length,
        );
        let stream = self.stream.as_mut().expect("a response is being written");
        let payload = Payload::Response(at, length);
        if let Err(fault) = stream.write_fpdu(cx, memory, &header, &payload) {
            self.refuse_read(cx, &read, Code::RDMAP_CATASTROPHIC_STREAM, fault.into());
            return false;
        }
        stream.current = (!last).then_some(Message {
            source: MessageSource::Response(read),
            written: written + length,
        });
        true
    }

    /// Checks the source of a Read. Returns the memory behind its part from `from` on.
    fn source(
        &self,
        cx: &Context,
        read: &ReadRequest,
        from: u32,
        length: u32,
    ) -> Result<MemRef, AccessError> {
        // RFC 5040 5.2: a Read of no bytes names no memory.
        if length == 0 {
            return Ok(MemRef::host(0));
        }
        let offset = read.source_offset.wrapping_add(from.into());
        if cx.has_bug(Bug::AnswerDeadStag) {
            return Ok(MemRef::host(offset));
        }
        self.check_peer_access(read.source_stag, Access::REMOTE_READ)?;
        let (need, length) = (Access::REMOTE_READ, length.into());
        cx.remote(read.source_stag, &self.pd, self.qpn, need, offset, length)
    }

    /// Checks that the queue pair permits an access of the peer.
    pub(super) fn check_peer_access(&self, key: u32, need: Access) -> Result<(), AccessError> {
        match self.attr.access.contains(need) {
            true => Ok(()),
            false => Err(AccessError::Denied {
                role: KeyRole::Rkey,
                key,
                missing: need,
            }),
        }
    }

    /// Ends the stream because of a Read.
    fn refuse_read(&mut self, cx: &mut Context, read: &ReadRequest, code: Code, reason: Reason) {
        let cause = Header {
            opcode: Opcode::ReadRequest,
            last: true,
            place: Place::Untagged {
                invalidate: 0,
                queue: QN_READ_REQUEST,
                msn: self.answered_msn(),
                mo: 0,
                read: Some(*read),
            },
            payload: 0,
        };
        self.refuse(cx, *Refusal::new(code, reason).because_of(&cause));
    }

    /// Returns the MSN of the Read that is being answered.
    fn answered_msn(&mut self) -> u32 {
        let stream = self.stream();
        let waiting = stream.inbound_reads.len() as u32;
        stream.expected_read_msn.wrapping_sub(waiting + 1)
    }
}

/// Returns the error code for a Read whose source is refused.
fn read_code(error: &AccessError, offset: u64, length: u32) -> Code {
    use AccessError as E;
    match error {
        E::OutOfRange { .. } if offset.checked_add(length.into()).is_none() => Code::RDMAP_WRAP,
        E::OutOfRange { .. } => Code::RDMAP_BOUNDS,
        E::Denied { .. } => Code::RDMAP_ACCESS,
        E::OtherDomain { .. } | E::OtherQueuePair { .. } => Code::RDMAP_NOT_ASSOCIATED,
        _ => Code::RDMAP_INVALID_STAG,
    }
}
