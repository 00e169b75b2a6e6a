//! Queue pairs: the work requests of a program, and the messages on the stream of its
//! connection.
//!
//! | file | role |
//! | --- | --- |
//! | [`create`] | creates queue pairs |
//! | [`post`] | checks and queues posted work requests |
//! | [`modify`] | changes states; gives a queue pair its stream |
//! | [`requester`] | turns work requests into FPDUs |
//! | [`responder`] | answers the peer's Reads |
//! | [`segment`] | writes one FPDU to the output |
//! | [`inbound`] | checks the headers of received segments |
//! | [`placement`] | writes received payload to its place |
//! | [`delivery`] | ends segments and delivers their messages |
//! | [`complete`] | completes work requests, and flushes them |
//! | [`start`] | sends the first messages so that siw reads them |
//! | [`provoke`] | fails on demand |
//! | [`close`] | ends the stream: in order, by TERMINATE, or by a reset |

mod close;
mod complete;
mod create;
mod delivery;
mod inbound;
mod modify;
mod placement;
mod post;
mod provoke;
mod requester;
mod responder;
mod segment;
mod start;

use std::collections::VecDeque;
use std::sync::Arc;

use ferroce_objects::recv_queue::{HeldRecv, RecvRing};
use ferroce_objects::send_queue::SendQueue;
use ferroce_objects::time::Deadline;
use ferroce_objects::{Cq, Pd, QpAttr, QpCap, QpState, Srq};

use crate::engine::Context;
use crate::event::CloseCause;
use crate::fpdu::FpduReader;
use crate::header::ReadRequest;
use crate::mpa::Params;
use crate::output::Output;
pub use close::CLOSE_TIMEOUT;
pub use create::{MAX_INLINE, MAX_SGE, MAX_WR};
use inbound::{InboundSend, InboundTagged};
use placement::Placing;
use start::Start;
pub use start::{HOLD, NUDGES, SILENCE};

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    qpn: u32,
    state: QpState,
    attr: QpAttr,
    cap: QpCap,
    sig_all: bool,
    /// True if the engine's ready list has this queue pair.
    in_ready_list: bool,
    /// True if a CQ had no room for a completion: the queue pair must fail.
    cq_overflow: bool,
    pd: Arc<Pd>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    sq: SendQueue<Progress>,
    /// Number of work requests that have left the send queue, modulo 2^64.
    popped: u64,
    rq: RecvRing,
    stream: Option<Box<Stream>>,
}

/// The progress of a started work request.
#[derive(Copy, Clone, Debug, Default)]
struct Progress {
    /// Position in the stream behind its last byte.
    end: u64,
}

/// The stream of a connected queue pair.
#[derive(Debug)]
struct Stream {
    params: Params,
    /// Bytes of the longest FPDU.
    max_fpdu: usize,
    phase: Phase,
    deadline: Deadline,
    start: Start,
    /// The reason why the stream ends, once this end has begun to end it.
    cause: CloseCause,
    reader: FpduReader,
    output: Output,

    /// Number of work requests in the send queue whose messages are in the output, or have
    /// been sent.
    started: usize,
    /// The message that is being written to the output.
    current: Option<Message>,
    /// True if a request goes before the next Read Response: both take turns.
    request_is_next: bool,
    next_send_msn: u32,
    next_read_msn: u32,
    /// This end's Reads without a complete response, oldest first.
    outstanding: VecDeque<OutstandingRead>,

    /// The peer's Reads that are not being answered yet, oldest first.
    inbound_reads: VecDeque<ReadRequest>,
    expected_send_msn: u32,
    expected_read_msn: u32,
    /// The SEND that is being received, into the receive `held`.
    inbound_send: Option<InboundSend>,
    held: HeldRecv,
    /// The Write or Read Response that is being received.
    inbound_tagged: Option<InboundTagged>,
    /// The place of the payload of the present FPDU.
    placing: Placing,
    /// The payload of a TERMINATE.
    terminate: Vec<u8>,
}

/// The phases of a stream.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Phase {
    /// Messages flow.
    Open,
    /// The responder waits for the initiator's first FPDU and sends nothing.
    AwaitingRtr,
    /// The last messages are being sent. Received bytes are ignored.
    Finishing,
    /// All has been sent. The end of the peer's stream is awaited.
    ShutDown,
}

/// A message that is being written to the output.
#[derive(Copy, Clone, Debug)]
struct Message {
    source: MessageSource,
    /// Bytes of the message that are in the output.
    written: u32,
}

#[derive(Copy, Clone, Debug)]
enum MessageSource {
    /// The work request at index `Stream::started`.
    Request,
    /// The response to a Read of the peer.
    Response(ReadRequest),
}

/// A Read without a complete response.
#[derive(Copy, Clone, Debug)]
struct OutstandingRead {
    /// Number of the work request, counted as `Qp::popped`. An RTR frame has none.
    request: Option<u64>,
    sink_stag: u32,
    sink_offset: u64,
    length: u32,
    received: u32,
}

/// Attributes and load of a queue pair, as a query reports them.
#[derive(Copy, Clone, Debug)]
pub struct QpQuery {
    /// Attributes: state, access flags, and the depths of Reads.
    pub attr: QpAttr,
    /// Granted sizes of the queues.
    pub cap: QpCap,
    /// True if every send generates a completion.
    pub sq_sig_all: bool,
    /// Number of sends in the queue.
    pub sends: usize,
    /// Number of receives in the queue.
    pub receives: usize,
    /// Properties of the stream, while the queue pair has one.
    pub params: Option<Params>,
    /// Protection domain.
    pub pd: u32,
    /// Completion queue of sends.
    pub send_cq: u32,
    /// Completion queue of receives.
    pub recv_cq: u32,
    /// Shared receive queue.
    pub srq: Option<u32>,
}

impl Stream {
    /// True if received bytes are processed.
    fn receives(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::AwaitingRtr)
    }

    /// True if no message of the peer is partly received.
    fn is_between_messages(&self) -> bool {
        self.reader.is_between_fpdus()
            && self.inbound_send.is_none()
            && self.inbound_tagged.is_none()
    }
}

impl Qp {
    pub(crate) fn cap(&self) -> QpCap {
        self.cap
    }

    pub(crate) fn query(&self) -> QpQuery {
        let mut attr = self.attr;
        attr.state = self.state;
        attr.cur_state = self.state;
        let params = self.stream.as_ref().map(|stream| stream.params);
        if let Some(params) = params {
            attr.max_rd_atomic = params.ord as u8;
            attr.max_dest_rd_atomic = params.ird as u8;
        }
        QpQuery {
            attr,
            cap: self.cap,
            sq_sig_all: self.sig_all,
            sends: self.sq.len(),
            receives: self.rq.len(),
            params,
            pd: self.pd.id(),
            send_cq: self.send_cq.id(),
            recv_cq: self.recv_cq.id(),
            srq: self.srq.as_ref().map(|srq| srq.number()),
        }
    }

    /// Puts the queue pair on the engine's ready list.
    fn wake(&mut self, cx: &mut Context) {
        if !self.in_ready_list {
            self.in_ready_list = true;
            cx.ready.push_back(self.qpn);
        }
    }

    /// Notes that the engine's ready list no longer has this queue pair.
    pub(crate) fn leave_ready_list(&mut self) {
        self.in_ready_list = false;
    }
}
