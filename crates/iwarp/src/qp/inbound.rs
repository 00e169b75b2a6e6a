//! Checks the headers of received segments.

use core::mem;

use ferroce_objects::srq::Taken;
use ferroce_objects::{Access, AccessError, Event, Memory, Reason, WcStatus};

use super::Qp;
use super::close::{Refusal, Refused};
use super::placement::{Placing, Target};
use super::start::Start;
use crate::bugs::Bug;
use crate::engine::Context;
use crate::fpdu::{FpduError, Sink};
use crate::header::{Header, Place};
use crate::opcode::{Opcode, QN_READ_REQUEST, QN_SEND};
use crate::terminate::Code;

/// A SEND of which not all segments have been received. Its receive is `Stream::held`.
#[derive(Copy, Clone, Debug)]
pub(super) struct InboundSend {
    pub(super) opcode: Opcode,
    pub(super) placed: u32,
    pub(super) invalidate: u32,
}

/// A Write or Read Response of which not all segments have been received.
#[derive(Copy, Clone, Debug)]
pub(super) struct InboundTagged {
    pub(super) opcode: Opcode,
    pub(super) stag: u32,
    /// Offset of the next segment.
    pub(super) next: u64,
}

type Checked = Result<(), Refused>;

/// A queue pair as the sink of its stream's reader.
struct Inbound<'a> {
    qp: &'a mut Qp,
    cx: &'a mut Context,
    memory: &'a dyn Memory,
}

impl Sink for Inbound<'_> {
    type Error = Refused;

    fn begin(&mut self, header: &Header) -> Checked {
        let begun = self.qp.begin(self.cx, header);
        begun.map_err(|refusal| refusal.because_of(header))
    }

    fn place(&mut self, payload: &[u8]) -> Checked {
        self.qp.place(self.cx, self.memory, payload)
    }

    fn end(&mut self) -> Checked {
        self.qp.end(self.cx)
    }
}

impl From<FpduError> for Refused {
    fn from(error: FpduError) -> Refused {
        let reason = Reason::InvalidRequest(error.to_string());
        Refusal::new(error.code(), reason)
    }
}

pub(super) fn refused(code: Code, why: String) -> Refused {
    Refusal::new(code, Reason::InvalidRequest(why))
}

impl Qp {
    /// Processes received bytes.
    pub(crate) fn receive(&mut self, cx: &mut Context, memory: &dyn Memory, bytes: &[u8]) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        let receives = stream.receives();
        if stream.start != Start::Done {
            self.hear(cx);
        }
        if !receives {
            return;
        }
        let mut reader = mem::take(&mut self.stream().reader);
        let mut inbound = Inbound {
            qp: self,
            cx,
            memory,
        };
        match reader.read(bytes, &mut inbound) {
            Ok(()) => self.stream().reader = reader,
            Err(refusal) => self.refuse(cx, *refusal),
        }
        self.settle(cx);
    }

    fn begin(&mut self, cx: &mut Context, header: &Header) -> Result<(), Refused> {
        let target = match header.place {
            Place::Tagged { stag, offset } => {
                self.continue_tagged(header, stag, offset)?;
                match header.opcode {
                    Opcode::Write => self.begin_write(cx, header, stag, offset)?,
                    _ => self.begin_read_response(cx, header, stag, offset)?,
                }
            }
            Place::Untagged {
                queue,
                msn,
                mo,
                read,
                invalidate,
            } => match (header.opcode, read) {
                (Opcode::Terminate, _) => Target::Terminate,
                (Opcode::ReadRequest, Some(_)) => {
                    self.begin_read_request(header, queue, msn, mo)?
                }
                _ => self.begin_send(cx, header, queue, msn, mo, invalidate)?,
            },
        };
        self.stream().placing = Placing::new(*header, target);
        Ok(())
    }

    /// Checks that a tagged segment belongs to the message that is being received.
    ///
    /// RFC 5041 5.2 and siw: segments of a message have one STag and follow each other.
    fn continue_tagged(&mut self, header: &Header, stag: u32, offset: u64) -> Result<(), Refused> {
        let opcode = header.opcode;
        let Some(message) = self.stream().inbound_tagged else {
            return Ok(());
        };
        if message.opcode != opcode {
            let why = format!("{opcode:?} in the middle of a {:?}", message.opcode);
            return Err(refused(Code::RDMAP_UNEXPECTED_OPCODE, why));
        }
        if message.stag != stag {
            let why = format!("STag {stag:#x} in a message to {:#x}", message.stag);
            return Err(refused(Code::DDP_INVALID_STAG, why));
        }
        if message.next != offset {
            let why = format!("offset {offset:#x}, expected {:#x}", message.next);
            return Err(refused(Code::DDP_BOUNDS, why));
        }
        Ok(())
    }

    /// Checks a segment of a Write.
    fn begin_write(
        &mut self,
        cx: &Context,
        header: &Header,
        stag: u32,
        offset: u64,
    ) -> Result<Target, Refused> {
        // RFC 5041 5.2: a segment without payload accesses no memory, so its STag does not
        // matter. RTR frames depend on that.
        if header.payload > 0 && !cx.has_bug(Bug::SkipBoundsCheck) {
            let need = Access::REMOTE_WRITE;
            let checked = self.check_peer_access(stag, need).and_then(|()| {
                let length = header.payload.into();
                cx.remote(stag, &self.pd, self.qpn, need, offset, length)
            });
            checked.map_err(|error| tagged_refusal(error, offset, header.payload))?;
        }
        Ok(Target::Write { stag, offset })
    }

    /// Checks a segment of a Read Response against the oldest outstanding Read.
    fn begin_read_response(
        &mut self,
        cx: &Context,
        header: &Header,
        stag: u32,
        offset: u64,
    ) -> Result<Target, Refused> {
        let Some(read) = self.stream().outstanding.front().copied() else {
            let why = "a Read Response without an outstanding Read".into();
            return Err(refused(Code::RDMAP_UNEXPECTED_OPCODE, why));
        };
        let expected = read.sink_offset.wrapping_add(read.received.into());
        if stag != read.sink_stag {
            let why = format!(
                "a Read Response to STag {stag:#x}, not {:#x}",
                read.sink_stag
            );
            return Err(refused(Code::DDP_INVALID_STAG, why).failing_read(&read));
        }
        let left = read.length - read.received;
        let fits = match header.last {
            true => header.payload == left || cx.has_bug(Bug::CompleteReadEarly),
            false => header.payload < left || cx.has_bug(Bug::IgnoreLastBit),
        };
        if offset != expected || !fits {
            let why = format!(
                "a Read Response of {} bytes to {offset:#x}; {left} bytes to {expected:#x} are missing",
                header.payload
            );
            return Err(refused(Code::DDP_BOUNDS, why).failing_read(&read));
        }
        if header.payload > 0 {
            let need = Access::LOCAL_WRITE;
            let checked = cx.local(stag, &self.pd, need, offset, header.payload);
            checked.map_err(|error| {
                tagged_refusal(error, offset, header.payload).failing_read(&read)
            })?;
        }
        Ok(Target::Read {
            lkey: stag,
            addr: offset,
        })
    }

    /// Checks a Read Request.
    fn begin_read_request(
        &mut self,
        header: &Header,
        queue: u32,
        msn: u32,
        mo: u32,
    ) -> Result<Target, Refused> {
        self.check_no_send(header)?;
        let expected = self.stream().expected_read_msn;
        check_queue(queue, QN_READ_REQUEST)?;
        check_msn(msn, expected)?;
        check_mo(mo, 0)?;
        // RFC 5041 7.2: the buffer of a Read Request has room for its header only.
        if header.payload > 0 || !header.last {
            let why = format!("a Read Request with {} bytes of payload", header.payload);
            return Err(refused(Code::DDP_TOO_LONG, why));
        }
        Ok(Target::None)
    }

    /// Checks a segment of a SEND. The first one takes a receive.
    fn begin_send(
        &mut self,
        cx: &mut Context,
        header: &Header,
        queue: u32,
        msn: u32,
        mo: u32,
        invalidate: u32,
    ) -> Result<Target, Refused> {
        let message = self.stream().inbound_send;
        if message.is_some_and(|message| message.opcode != header.opcode) {
            self.check_no_send(header)?;
        }
        let expected = self.stream().expected_send_msn;
        check_queue(queue, QN_SEND)?;
        check_msn(msn, expected)?;
        check_mo(mo, message.map_or(0, |message| message.placed))?;
        let message = match message {
            Some(message) => message,
            None => {
                self.take_receive(cx)?;
                let new = InboundSend {
                    opcode: header.opcode,
                    placed: 0,
                    invalidate,
                };
                *self.stream().inbound_send.insert(new)
            }
        };
        let (placed, buffer) = (u64::from(message.placed), self.stream().held.capacity);
        let length = placed + u64::from(header.payload);
        if length > buffer {
            // siw uses the code for a missing buffer here, not that for a long message.
            let reason = Reason::ReceiveTooShort {
                message: length,
                buffer,
            };
            let refusal = Refusal::new(Code::DDP_NO_BUFFER, reason);
            return Err(refusal.failing_receive(WcStatus::LocalLength));
        }
        Ok(Target::Receive)
    }

    /// Refuses an untagged segment in the middle of a SEND.
    fn check_no_send(&mut self, header: &Header) -> Result<(), Refused> {
        match self.stream().inbound_send {
            None => Ok(()),
            Some(message) => {
                let why = format!(
                    "{:?} in the middle of a {:?}",
                    header.opcode, message.opcode
                );
                Err(refused(Code::RDMAP_UNEXPECTED_OPCODE, why))
            }
        }
    }

    /// Takes a receive for a SEND.
    ///
    /// iWARP has no RNR: without a receive the connection ends.
    fn take_receive(&mut self, cx: &mut Context) -> Result<(), Refused> {
        let stream = self.stream.as_mut().expect("bytes were received");
        let taken = match &self.srq {
            None => self.rq.take(&mut stream.held),
            Some(srq) => {
                let taken = srq.take(&mut stream.held);
                if taken == Taken::OneBelowLimit {
                    let srq = srq.number();
                    cx.events.push_back(Event::SrqLimitReached { srq });
                }
                taken != Taken::Nothing
            }
        };
        match taken {
            true => Ok(()),
            false => {
                let why = "a SEND arrived and no receive was posted".into();
                Err(refused(Code::DDP_NO_BUFFER, why))
            }
        }
    }
}

// RFC 5040 4.1: each opcode has one queue.
fn check_queue(queue: u32, expected: u32) -> Result<(), Refused> {
    match queue == expected {
        true => Ok(()),
        false => {
            let why = format!("queue number {queue}, expected {expected}");
            Err(refused(Code::DDP_INVALID_QUEUE, why))
        }
    }
}

// RFC 5041 4.3: a stream in order carries the MSNs of a queue in order.
fn check_msn(msn: u32, expected: u32) -> Result<(), Refused> {
    match msn == expected {
        true => Ok(()),
        false => {
            let why = format!("MSN {msn}, expected {expected}");
            Err(refused(Code::DDP_MSN_RANGE, why))
        }
    }
}

// RFC 5041 5.2: the MO is the number of bytes in the earlier segments.
fn check_mo(mo: u32, expected: u32) -> Result<(), Refused> {
    match mo == expected {
        true => Ok(()),
        false => {
            let why = format!("message offset {mo}, expected {expected}");
            Err(refused(Code::DDP_INVALID_MO, why))
        }
    }
}

/// Returns the refusal of a tagged segment whose key does not allow it.
pub(super) fn tagged_refusal(error: AccessError, offset: u64, length: u32) -> Refused {
    use AccessError as E;
    let code = match error {
        E::OutOfRange { .. } if offset.checked_add(length.into()).is_none() => Code::DDP_WRAP,
        E::OutOfRange { .. } => Code::DDP_BOUNDS,
        E::OtherDomain { .. } | E::OtherQueuePair { .. } => Code::DDP_NOT_ASSOCIATED,
        // RFC 5041 has no code for missing permissions. siw uses this one.
        _ => Code::DDP_INVALID_STAG,
    };
    Refusal::new(code, error.into())
}
