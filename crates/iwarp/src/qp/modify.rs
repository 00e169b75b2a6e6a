//! Changes of state, and the stream of a connection.

use std::collections::VecDeque;

use ferroce_objects::recv_queue::HeldRecv;
use ferroce_objects::time::Deadline;
use ferroce_objects::{AttrMask, Protocol, QpAttr, QpState, VerbsError, transitions};

use super::placement::Placing;
use super::start::Start;
use super::{OutstandingRead, Phase, Qp, Stream};
use crate::bugs::Bug;
use crate::engine::Context;
use crate::event::{CloseCause, StreamEvent};
use crate::fpdu::{FpduReader, max_fpdu};
use crate::mpa::{Params, REQUEST_TIMEOUT, Role, Rtr};
use crate::output::Output;

impl Qp {
    /// Changes access flags and state.
    pub(crate) fn modify(
        &mut self,
        cx: &mut Context,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), VerbsError> {
        use ferroce_objects::QpType::Rc;
        let to = transitions::check(Protocol::Iwarp, Rc, self.state, attr, mask)?;
        if to == QpState::Rts && self.state != QpState::Rts {
            return Err(VerbsError::invalid(format!(
                "queue pair {:#x} gets ready by rdma_connect or rdma_accept, not by a verb",
                self.qpn
            )));
        }
        if mask.contains(AttrMask::ACCESS_FLAGS) {
            self.attr.access = attr.access;
        }
        match to {
            QpState::Reset => {
                self.close_stream(cx, true, CloseCause::Program);
                while self.pop_send().is_some() {}
                self.rq.clear();
                self.state = QpState::Reset;
                self.attr = QpAttr::default();
                self.cq_overflow = false;
            }
            QpState::Init if self.state != QpState::Err => self.state = QpState::Init,
            QpState::Sqd if self.state == QpState::Rts => self.disconnect(cx)?,
            QpState::Err => {
                self.enter_error(cx, None, None);
                self.end_stream(cx, None, CloseCause::Program);
                self.settle(cx);
            }
            // A queue pair moves to RTR and RTS with its connection, and leaves ERR by RESET only.
            QpState::Init | QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe => {}
        }
        Ok(())
    }

    /// Takes the stream of a connection that has been set up.
    pub(crate) fn connect(
        &mut self,
        cx: &mut Context,
        params: Params,
        mss: u32,
    ) -> Result<(), VerbsError> {
        if !matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr)
            || self.stream.is_some()
        {
            return Err(VerbsError::invalid(format!(
                "queue pair {:#x} is in {:?}; move it to RESET before the next connection",
                self.qpn, self.state
            )));
        }
        let awaits_rtr = params.role == Role::Responder && params.rtr.is_some();
        let crc_is_checked = params.crc && !cx.has_bug(Bug::SkipCrcCheck);
        let msn = cx.config.first_msn;
        self.stream = Some(Box::new(Stream {
            params,
            max_fpdu: max_fpdu(mss),
            phase: match awaits_rtr {
                true => Phase::AwaitingRtr,
                false => Phase::Open,
            },
            deadline: Deadline::NONE,
            start: Start::Done,
            cause: CloseCause::Program,
            reader: FpduReader::new(crc_is_checked),
            output: Output::default(),
            started: 0,
            current: None,
            request_is_next: false,
            next_send_msn: msn,
            next_read_msn: msn,
            outstanding: VecDeque::new(),
            inbound_reads: VecDeque::new(),
            expected_send_msn: msn,
            expected_read_msn: msn,
            inbound_send: None,
            held: HeldRecv::default(),
            inbound_tagged: None,
            placing: Placing::default(),
            terminate: Vec::new(),
        }));
        if awaits_rtr {
            self.state = QpState::Rtr;
            self.set_deadline(cx, Some(cx.now + REQUEST_TIMEOUT));
            return Ok(());
        }
        self.establish(cx);
        if params.role == Role::Initiator
            && let Some(rtr) = params.rtr
        {
            self.write_rtr_frame(cx, rtr);
        }
        self.begin_start(cx);
        Ok(())
    }

    /// Moves to RTS.
    pub(super) fn establish(&mut self, cx: &mut Context) {
        self.state = QpState::Rts;
        let qpn = self.qpn;
        cx.stream_events.push_back(StreamEvent::Established { qpn });
        self.wake(cx);
    }

    /// Writes the RTR frame: a Write or Read of no bytes, with STag 1 as siw has it.
    fn write_rtr_frame(&mut self, cx: &Context, rtr: Rtr) {
        const STAG: u32 = 1;
        match rtr {
            Rtr::Write => self.write_empty_write(cx, STAG),
            Rtr::Read => {
                self.write_read_request(cx, STAG, 0, 0, STAG, 0);
                self.stream().outstanding.push_back(OutstandingRead {
                    request: None,
                    sink_stag: STAG,
                    sink_offset: 0,
                    length: 0,
                    received: 0,
                });
            }
        }
    }

    /// Returns the stream of a queue pair that has one.
    pub(super) fn stream(&mut self) -> &mut Stream {
        self.stream
            .as_mut()
            .expect("the caller knows that there is a stream")
    }
}
