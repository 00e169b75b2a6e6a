//! Writes received payload to its place.
//!
//! The key is looked up for each part of a payload: a region may end while the rest of an
//! FPDU is still under way.

use ferroce_objects::sge::spans;
use ferroce_objects::{Access, AccessError, MemRef, Memory, Reason, WcStatus};

use super::Qp;
use super::close::{Refusal, Refused};
use super::inbound::tagged_refusal;
use crate::bugs::Bug;
use crate::engine::Context;
use crate::header::Header;
use crate::terminate::Code;

/// The place of the payload of the present FPDU.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Placing {
    header: Option<Header>,
    target: Target,
    /// Bytes of the payload that have been placed.
    done: u32,
}

/// The memory of a payload.
#[derive(Copy, Clone, Debug, Default)]
pub(super) enum Target {
    /// The FPDU has no payload.
    #[default]
    None,
    /// Memory that the peer writes.
    Write { stag: u32, offset: u64 },
    /// The sink of a Read.
    Read { lkey: u32, addr: u64 },
    /// The receive of the SEND.
    Receive,
    /// The TERMINATE itself.
    Terminate,
}

impl Placing {
    pub(super) fn new(header: Header, target: Target) -> Placing {
        Placing {
            header: Some(header),
            target,
            done: 0,
        }
    }

    pub(super) fn header(&self) -> Option<Header> {
        self.header
    }
}

impl Qp {
    /// Writes the next bytes of a payload.
    pub(super) fn place(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        payload: &[u8],
    ) -> Result<(), Refused> {
        let placing = self.stream().placing;
        if let Target::Terminate = placing.target {
            self.keep_terminate(payload);
            return Ok(());
        }
        let length = payload.len() as u32;
        let mut rest = payload;
        let mut fault = None;
        let resolved = self.resolve(cx, placing, length, |at, bytes| {
            let (now, behind) = rest.split_at(bytes as usize);
            rest = behind;
            if fault.is_none() {
                fault = memory.write(at, now).err();
            }
        });
        let refusal = match (resolved, fault) {
            (Ok(()), None) => {
                if !cx.has_bug(Bug::RestartCutPayload) {
                    self.stream().placing.done += length;
                }
                return Ok(());
            }
            (Err(error), _) => self.place_refusal(placing, error, length),
            (Ok(()), Some(fault)) => {
                // RFC 5041 7.1: the buffer is valid, but this end cannot write to it.
                let refusal = Refusal::new(Code::DDP_CATASTROPHIC, Reason::Fault(fault));
                self.with_local_failure(placing, refusal)
            }
        };
        Err(match placing.header {
            Some(header) => refusal.because_of(&header),
            None => refusal,
        })
    }

    fn place_refusal(&self, placing: Placing, error: AccessError, length: u32) -> Refused {
        match placing.target {
            Target::Write { offset, .. } => tagged_refusal(error, offset, length),
            Target::Read { addr, .. } => {
                self.with_local_failure(placing, tagged_refusal(error, addr, length))
            }
            // The receive is this end's own, so the peer cannot do better.
            _ => {
                let refusal = Refusal::new(Code::DDP_CATASTROPHIC, error.into());
                self.with_local_failure(placing, refusal)
            }
        }
    }

    /// Adds the work request that fails because its own memory is not accessible.
    fn with_local_failure(&self, placing: Placing, refusal: Refused) -> Refused {
        let stream = self.stream.as_ref();
        let read = stream.and_then(|stream| stream.outstanding.front());
        match (placing.target, read) {
            (Target::Receive, _) => refusal.failing_receive(WcStatus::LocalProtection),
            (Target::Read { .. }, Some(read)) => refusal.failing_read(read),
            _ => refusal,
        }
    }

    /// Passes the memory of the next `length` bytes of a payload to `take`.
    fn resolve(
        &self,
        cx: &Context,
        placing: Placing,
        length: u32,
        mut take: impl FnMut(MemRef, u32),
    ) -> Result<(), AccessError> {
        let done = u64::from(placing.done);
        match placing.target {
            Target::None | Target::Terminate => {}
            Target::Write { stag, offset } => {
                let (need, offset) = (Access::REMOTE_WRITE, offset.wrapping_add(done));
                let at = match cx.has_bug(Bug::SkipBoundsCheck) {
                    true => MemRef::host(offset),
                    false => cx.remote(stag, &self.pd, self.qpn, need, offset, length.into())?,
                };
                take(at, length);
            }
            Target::Read { lkey, addr } => {
                let (need, addr) = (Access::LOCAL_WRITE, addr.wrapping_add(done));
                take(cx.local(lkey, &self.pd, need, addr, length)?, length);
            }
            Target::Receive => {
                let Some(stream) = &self.stream else {
                    return Ok(());
                };
                let placed = stream.inbound_send.map_or(0, |message| message.placed);
                let from = u64::from(placed) + done;
                for (sge, offset, bytes) in spans(stream.held.sges(), from, length.into()) {
                    let (need, addr) = (Access::LOCAL_WRITE, sge.addr.wrapping_add(offset));
                    take(cx.local(sge.lkey, &self.pd, need, addr, bytes)?, bytes);
                }
            }
        }
        Ok(())
    }

    /// Adds the places of the payload bytes that come next to `places`.
    pub(crate) fn direct_places(&self, cx: &Context, places: &mut Vec<(MemRef, u32)>) {
        // An ending stream ignores what it receives: its work requests have been flushed.
        let Some(stream) = self.stream.as_ref().filter(|stream| stream.receives()) else {
            return;
        };
        let left = stream.reader.expected_payload();
        let resolved = self.resolve(cx, stream.placing, left, |at, bytes| {
            places.push((at, bytes));
        });
        if resolved.is_err() {
            // `receive` finds the error again, and ends the stream.
            places.clear();
        }
    }

    /// Notes that the caller has placed the next bytes itself.
    pub(crate) fn placed(&mut self, bytes: u32) {
        if let Some(stream) = &mut self.stream
            && stream.receives()
        {
            stream.reader.skip(bytes);
            stream.placing.done += bytes;
        }
    }
}
