//! Queue pairs: the requester, completer and responder of one connection, or of UD.
//!
//! Each role has its own file:
//!
//! | file | role |
//! | --- | --- |
//! | [`create`] | creates queue pairs |
//! | [`post`] | checks and queues posted work requests |
//! | [`requester`], [`read_atomic`], [`request_header`], [`middle_packets`], [`cursor`] | turn work requests into request packets |
//! | [`completer`], [`read_response`] | turn responses into completions, and retransmit |
//! | [`probe`] | sends loss probes before the ACK timeout expires |
//! | [`responder`], [`admission`], [`messages`], [`remote_ops`] | check and execute the peer's requests |
//! | [`prediction`] | receives the middle packets of long messages quickly |
//! | [`responses`] | sends ACKs, NAKs and responses |
//! | [`datagram`] | sends and receives UD messages |
//! | [`ecn`] | sends and handles congestion notifications |
//! | [`modify`], [`flush`] | change states, and complete work requests |

mod admission;
mod completer;
mod create;
mod cursor;
mod datagram;
mod ecn;
mod flush;
mod messages;
mod middle_packets;
mod modify;
mod peer_port;
mod post;
pub(crate) mod prediction;
mod probe;
mod provoke;
mod read_atomic;
mod read_response;
mod remote_ops;
mod request_header;
mod request_kind;
mod requester;
mod responder;
mod responses;
mod run_arrival;

use core::num::NonZeroU16;
use std::sync::Arc;

use bitflags::bitflags;
use ferroce_wire::{Flow, FlowIcrc, Psn, Transport};

use crate::attr::{QpAttr, QpCap, QpState, QpType};
use crate::cq::{Cq, Pushed};
use crate::decision::Decision;
use crate::engine::Context;
use crate::error::{Failure, Reason};
use crate::event::{Event, QpEvent};
use crate::recv_queue::RecvRing;
use crate::region::Pd;
use crate::send_queue::SendQueue;
use crate::srq::{Srq, Xrcd};
use crate::time::Time;
use crate::timers::TimerSlot;
use crate::transmit::{Batch, Path};
use crate::verbs::{Wc, WcStatus};

use cursor::Requester;
use ecn::Notifications;
use peer_port::PeerPort;
pub(crate) use peer_port::Sender;
use responder::Responder;
use run_arrival::{AckPlace, RunArrival};

/// Packets that a queue pair may add to a batch while other queue pairs are waiting.
const QUANTUM: usize = 64;

bitflags! {
    /// The kinds of packets that a queue pair has to send.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    struct Due: u8 {
        /// Request packets, new or retransmitted.
        const REQUESTS = 1 << 0;
        /// Congestion notifications, and all responses but the pending ACK.
        const RESPONSES = 1 << 1;
        /// The pending ACK (`Responder::pending_ack`).
        const ACK = 1 << 2;
        /// A loss probe.
        const PROBE = 1 << 3;
    }
}

/// A queue pair.
///
/// Ten thousand queue pairs take 9.6 MB, more than an L2 cache holds. So fields that are
/// used together share cache lines:
///
/// | cache lines | used by |
/// | --- | --- |
/// | 0 | verbs that change attributes |
/// | 1 and 2 | every packet |
/// | 3 to 6 | sending |
/// | 7 and 8 | sending, rarely |
/// | 9 to 12 | receiving |
/// | from 13 on | everything else |
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Qp {
    attr: QpAttr,
    qpn: u32,
    mtu: u32,
    kind: QpType,
    state: QpState,
    sig_all: bool,
    /// Kinds of packets to send; if not empty, the engine's ready list has this queue pair.
    due: Due,
    /// True if the CQ had no room for a completion: the queue pair must fail.
    cq_overflow: bool,
    /// Slot of the peer if it is on this host: packets may come from it through shared memory, and
    /// runs to it arrive whole. 0 if there is none.
    local_peer: u8,
    /// IPv4 identification of the peer's last packet; the next one is probably close to it.
    pub(crate) peer_ip_id: u16,
    pd: Option<Arc<Pd>>,
    send_cq: Option<Arc<Cq>>,
    recv_cq: Option<Arc<Cq>>,
    srq: Option<Arc<Srq>>,
    path: Path,
    /// ICRC state over the peer's pseudo headers, for one UDP source port of the peer.
    rx_icrc: Option<(u16, FlowIcrc)>,
    /// UDP source port that the caller chose.
    source_port: Option<NonZeroU16>,
    /// The sender from which alone the peer's packets are accepted, if it is pinned.
    peer_port: PeerPort,
    timer: TimerSlot,
    req: Requester,
    sq: SendQueue,
    retry_counts: RetryCounts,
    /// Whether runs of a peer on another host arrive whole.
    run_arrival: RunArrival,
    rq: RecvRing,
    resp: Responder,
    xrcd: Option<Arc<Xrcd>>,
    cap: QpCap,
    notifications: Notifications,
}

/// Counts of retries of a queue pair since its creation. They wrap around.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct RetryCounts {
    /// Retransmissions of all packets in flight, after a gap or a timeout.
    pub retries: u32,
    /// RNR NAKs that the peer sent.
    pub rnr_received: u32,
    /// RNR NAKs sent to the peer.
    pub rnr_sent: u32,
}

/// Attributes and load of a queue pair, as a query reports them.
#[derive(Copy, Clone, Debug)]
pub struct QpQuery {
    /// Attributes; `sq_psn` and `rq_psn` are the next PSNs.
    pub attr: QpAttr,
    /// Granted sizes of the queues.
    pub cap: QpCap,
    /// Type of the queue pair.
    pub qp_type: QpType,
    /// True if every send generates a completion.
    pub sq_sig_all: bool,
    /// Number of sends in the queue.
    pub sends: usize,
    /// Number of receives in the queue.
    pub receives: usize,
    /// Congestion window: bytes that may be in flight.
    pub window: u32,
    /// Bytes in flight, including the overhead that the window counts for each packet.
    pub in_flight: u32,
    /// Smoothed round trip in nanoseconds; 0 before the first measurement.
    pub round_trip_ns: u32,
    /// Oldest unacknowledged PSN.
    pub una: Psn,
    /// Number of request packets that are sent and not acknowledged.
    pub unacked: u32,
    /// Retries so far.
    pub retry_counts: RetryCounts,
    /// Protection domain.
    pub pd: Option<u32>,
    /// Completion queue of sends.
    pub send_cq: Option<u32>,
    /// Completion queue of receives.
    pub recv_cq: Option<u32>,
    /// Shared receive queue.
    pub srq: Option<u32>,
}

impl Qp {
    pub(crate) fn number(&self) -> u32 {
        self.qpn
    }

    pub(crate) fn set_number(&mut self, qpn: u32) {
        self.qpn = qpn;
    }

    pub(crate) fn kind(&self) -> QpType {
        self.kind
    }

    pub(crate) fn state(&self) -> QpState {
        self.state
    }

    pub(crate) fn cap(&self) -> QpCap {
        self.cap
    }

    pub(crate) fn qkey(&self) -> u32 {
        match self.kind {
            QpType::Gsi => datagram::GSI_QKEY,
            _ => self.attr.qkey,
        }
    }

    /// Returns the path to the peer; it is meaningful once the queue pair is connected.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the PSN that the responder expects next.
    pub(crate) fn expected_psn(&self) -> Psn {
        self.resp.expected_psn()
    }

    /// Returns the ICRC state for packets from the peer's UDP `port`, and caches it.
    pub(crate) fn rx_icrc(&mut self, port: u16) -> FlowIcrc {
        match self.rx_icrc {
            Some((known, icrc)) if known == port => icrc,
            _ => {
                let icrc = FlowIcrc::new(&self.path.flow.reversed(port));
                self.rx_icrc = Some((port, icrc));
                icrc
            }
        }
    }

    /// Returns the transport in the opcodes of this queue pair's packets.
    #[inline]
    pub(crate) fn transport(&self) -> Transport {
        match self.kind {
            QpType::Rc => Transport::Rc,
            QpType::Uc => Transport::Uc,
            QpType::Ud | QpType::Gsi => Transport::Ud,
            QpType::XrcInitiator | QpType::XrcTarget => Transport::Xrc,
        }
    }

    pub(crate) fn query(&self) -> QpQuery {
        let mut attr = self.attr;
        attr.state = self.state;
        attr.cur_state = self.state;
        attr.sq_psn = self.req.next_psn();
        attr.rq_psn = self.resp.expected_psn();
        QpQuery {
            attr,
            cap: self.cap,
            qp_type: self.kind,
            sq_sig_all: self.sig_all,
            sends: self.sq.len(),
            receives: self.rq.len(),
            window: self.req.window(),
            in_flight: self.req.window.in_flight(),
            round_trip_ns: self.req.round_trip.smoothed_ns(),
            una: self.req.una,
            unacked: match self.kind {
                QpType::Rc | QpType::XrcInitiator => {
                    self.req.sent_up_to.distance(self.req.una).max(0) as u32
                }
                QpType::Uc | QpType::Ud | QpType::Gsi | QpType::XrcTarget => 0,
            },
            retry_counts: self.retry_counts,
            pd: self.pd.as_ref().map(|pd| pd.id()),
            send_cq: self.send_cq.as_ref().map(|cq| cq.id()),
            recv_cq: self.recv_cq.as_ref().map(|cq| cq.id()),
            srq: self.srq.as_ref().map(|srq| srq.number()),
        }
    }

    /// Returns flow and destination QPN of a connected UC queue pair.
    pub(crate) fn uc_destination(&self) -> Option<(Flow, u32)> {
        let is_connected = self.kind == QpType::Uc && self.attr.av.is_some();
        is_connected.then_some((self.path.flow, self.attr.dest_qpn))
    }

    /// True if the program sees the order in which sends and receives complete.
    pub(crate) fn shows_completion_order(&self) -> bool {
        let cqs = self.send_cq.as_ref().zip(self.recv_cq.as_ref());
        cqs.is_some_and(|(send, receive)| send.is_ordered_with(receive))
    }

    /// Adds the packets that are due to the batch.
    ///
    /// READ responses go first, because the peer's work requests wait for them. Requests
    /// follow. The pending ACK goes last: as the shortest packet it can end their run. It goes
    /// before requests that may be answers, unless the peer receives both in one run.
    pub(crate) fn transmit(&mut self, cx: &mut Context, batch: &mut Batch) {
        let due = core::mem::take(&mut self.due);
        // With no other queue pair ready there is no quantum: send until the batch is full.
        let limit = match cx.ready.is_empty() {
            true => usize::MAX,
            false => batch.len() + QUANTUM,
        };
        let mut more = Due::empty();
        if due.contains(Due::RESPONSES) {
            self.transmit_notification(cx, batch);
            if self.transmit_responses(cx, batch, limit) {
                more = due;
            }
        }
        if more.is_empty() {
            if due.contains(Due::PROBE) {
                self.transmit_probe(cx, batch, limit);
            }
            let mut repeated_ack = None;
            if due.contains(Due::ACK | Due::REQUESTS) {
                let (ack, place) = (self.resp.pending_ack, self.ack_place(batch));
                if place != AckPlace::BehindRequests {
                    self.transmit_ack(batch);
                }
                repeated_ack = ack.filter(|_| place == AckPlace::Both);
            }
            let before = batch.len();
            let requests = due.contains(Due::REQUESTS)
                && match self.kind {
                    QpType::Ud | QpType::Gsi => self.transmit_datagrams(cx, batch, limit),
                    QpType::XrcTarget => false,
                    _ => self.transmit_requests(cx, batch, limit),
                };
            more.set(Due::REQUESTS, requests);
            if due.contains(Due::ACK) {
                // Alone it would look as if it had been separated from its run.
                if batch.len() > before {
                    self.resp.pending_ack = self.resp.pending_ack.or(repeated_ack);
                }
                self.transmit_ack(batch);
            }
        }
        if !more.is_empty() {
            self.wake(cx, more);
        }
        match due.intersects(Due::REQUESTS | Due::PROBE) {
            true => self.settle(cx),
            false => self.settle_consequences(cx),
        }
    }

    /// Handles an expired timer entry of this queue pair.
    pub(crate) fn timer(&mut self, cx: &mut Context, time: Time) {
        if self.timer.came_up(time) {
            self.requester_timer(cx);
            self.settle(cx);
        }
    }

    /// Puts the queue pair on the engine's ready list, to send packets of kind `due`.
    #[inline]
    fn wake(&mut self, cx: &mut Context, due: Due) {
        if self.due.is_empty() {
            cx.ready.push_back(self.qpn);
        }
        self.due |= due;
    }

    /// Ends every entry point: handles a CQ overflow and draining, and arms the timer.
    #[inline]
    fn settle(&mut self, cx: &mut Context) {
        self.settle_consequences(cx);
        if let Some(deadline) = self.req.deadline() {
            cx.timers.arm(&mut self.timer, self.qpn, deadline);
        }
    }

    /// Does the same as [`Qp::settle`] where no deadline can have moved forward.
    #[inline]
    fn settle_consequences(&mut self, cx: &mut Context) {
        if self.cq_overflow || self.attr.sq_draining {
            self.settle_exceptions(cx);
        }
    }

    #[cold]
    fn settle_exceptions(&mut self, cx: &mut Context) {
        if self.cq_overflow {
            self.cq_overflow = false;
            if self.state != QpState::Err && self.state != QpState::Reset {
                self.report(cx, None, WcStatus::General, Reason::CqOverflow);
                self.event(cx, QpEvent::Fatal);
                self.resp.drop_responses();
                self.enter_error(cx);
            }
        }
        self.check_drained(cx);
    }

    /// Queues an asynchronous event.
    fn event(&self, cx: &mut Context, kind: QpEvent) {
        let qpn = self.qpn;
        cx.events.push_back(Event::Qp { qpn, kind });
    }

    /// Queues the reason of a failure, for logs.
    fn report(&self, cx: &mut Context, wr_id: Option<u64>, status: WcStatus, reason: Reason) {
        let failure = Failure {
            qpn: self.qpn,
            wr_id,
            status,
            reason,
        };
        cx.failure_code = failure.reason.code();
        let decided = || Decision::Failed(failure.clone());
        cx.decisions.add(self.qpn, decided);
        cx.events.push_back(Event::Failure(failure));
    }
}

/// Adds a completion to `cq`; sets `overflow` if the CQ is full.
fn queue_completion(cx: &mut Context, cq: &Cq, overflow: &mut bool, wc: Wc, solicited: bool) {
    let pushed = cq.push(wc, solicited);
    after_completion(cx, cq.id(), overflow, pushed);
}

/// Queues the events that follow from adding a completion; sets `overflow` on a full CQ.
#[inline]
fn after_completion(cx: &mut Context, cq: u32, overflow: &mut bool, pushed: Pushed) {
    match pushed {
        Pushed::Quiet => {}
        Pushed::Notify => cx.events.push_back(Event::CqNotify { cq }),
        Pushed::Overflow => {
            *overflow = true;
            cx.events.push_back(Event::CqError { cq });
        }
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn fields_that_are_used_together_share_cache_lines() {
        let line = |offset: usize| offset / 64;
        assert_eq!(line(offset_of!(Qp, attr.dest_qpn)), 1);
        assert_eq!(line(offset_of!(Qp, srq)), 1);
        assert_eq!(offset_of!(Qp, path), 2 * 64);
        assert_eq!(offset_of!(Qp, timer), 3 * 64);
        assert_eq!(offset_of!(Qp, sq), 5 * 64);
        assert_eq!(offset_of!(Qp, rq), 9 * 64);
        assert_eq!(offset_of!(Qp, resp), 11 * 64);
        assert_eq!(line(offset_of!(Qp, resp.held)), 12);
        // An odd number of lines, so that the same line of many queue pairs does not fall
        // into the same few sets of the cache.
        assert_eq!(size_of::<Qp>(), 15 * 64);
    }
}
