//! A queue pair.
//!
//! The roles have a file each:
//!
//! | file | role |
//! | --- | --- |
//! | [`post`] | work requests come in |
//! | [`requester`], [`read_atomic`], [`request_header`], [`middle_packets`], [`cursor`] | work requests become packets |
//! | [`completer`] | answers become completions; retries |
//! | [`probe`] | silence is questioned before the ACK timeout expires |
//! | [`responder`], [`admission`], [`prediction`], [`messages`], [`remote_ops`] | the peer's requests are executed |
//! | [`responses`] | and answered |
//! | [`datagram`] | all of this for UD |
//! | [`ecn`] | congestion notification |
//! | [`modify`], [`flush`] | states, and an orderly end |

mod admission;
mod completer;
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
mod read_atomic;
mod remote_ops;
mod request_header;
mod requester;
mod responder;
mod responses;

use core::net::{IpAddr, Ipv4Addr};
use core::num::NonZeroU16;
use std::sync::Arc;

use bitflags::bitflags;
use ferroce_wire::{Flow, FlowIcrc, Psn, Transport};

use crate::attr::{QpAttr, QpCap, QpInit, QpState, QpType};
use crate::cq::{Cq, Pushed};
use crate::engine::{Config, Context};
use crate::error::{Failure, Reason, VerbsError};
use crate::event::{Event, QpEvent};
use crate::recv_queue::RecvRing;
use crate::region::Pd;
use crate::room;
use crate::send_queue::SendQueue;
use crate::srq::{Srq, Xrcd};
use crate::time::Time;
use crate::timers::TimerSlot;
use crate::transmit::{Batch, Path};
use crate::verbs::{MAX_SGE, Wc, WcStatus};

use cursor::Requester;
use ecn::Notifications;
use responder::Responder;

/// Most work requests of a queue.
const MAX_WR: u32 = 1 << 20;
/// Most bytes of inline data.
const MAX_INLINE: u32 = 512;
/// Packets a queue pair may add to a batch before others have their turn.
const QUANTUM: usize = 64;

bitflags! {
    /// What a queue pair may have to send.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    struct Due: u8 {
        /// Requests: new ones, or some again.
        const REQUESTS = 1 << 0;
        /// Notifications, and all answers but the one below.
        const RESPONSES = 1 << 1;
        /// The acknowledgement that is kept at hand.
        const ACK = 1 << 2;
        /// A loss probe.
        const PROBE = 1 << 3;
    }
}

/// Ten thousand of them do not fit the caches that are near, so the order of fields counts:
///
/// | cache lines | are for |
/// | --- | --- |
/// | 0 | verbs that change attributes |
/// | 1 and 2 | every packet |
/// | 3 to 6 | sending |
/// | 7 and 8 | what sending seldom needs |
/// | 9 to 12 | receiving |
/// | from 13 on | the rest |
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Qp {
    attr: QpAttr,
    qpn: u32,
    mtu: u32,
    kind: QpType,
    state: QpState,
    sig_all: bool,
    /// What it waits for in the engine's list of those who want to send.
    due: Due,
    /// A completion was lost: the queue pair is to fail.
    cq_overflow: bool,
    /// The first packet decides about `peer_port`.
    learns_peer_port: bool,
    /// The peer's last IPv4 identification: the next is likely near.
    pub(crate) peer_ip_id: u16,
    pd: Option<Arc<Pd>>,
    send_cq: Option<Arc<Cq>>,
    recv_cq: Option<Arc<Cq>>,
    srq: Option<Arc<Srq>>,
    path: Path,
    /// What the ICRCs of the peer's packets begin with, by its source port.
    rx_icrc: Option<(u16, FlowIcrc)>,
    /// The UDP source port the caller chose.
    source_port: Option<NonZeroU16>,
    /// The only UDP port that the peer's packets may come from, if there is one.
    peer_port: Option<NonZeroU16>,
    timer: TimerSlot,
    req: Requester,
    sq: SendQueue,
    rq: RecvRing,
    resp: Responder,
    xrcd: Option<Arc<Xrcd>>,
    cap: QpCap,
    notifications: Notifications,
}

/// What a query reports.
#[derive(Copy, Clone, Debug)]
pub struct QpQuery {
    /// Attributes; `sq_psn` and `rq_psn` are the next PSNs.
    pub attr: QpAttr,
    /// Sizes.
    pub cap: QpCap,
    /// The type.
    pub qp_type: QpType,
    /// Every send completes with a completion.
    pub sq_sig_all: bool,
    /// Sends in the queue.
    pub sends: usize,
    /// Receives in the queue.
    pub receives: usize,
    /// Bytes that may be in flight.
    pub window: u32,
    /// The protection domain.
    pub pd: Option<u32>,
    /// Where sends complete.
    pub send_cq: Option<u32>,
    /// Where receives complete.
    pub recv_cq: Option<u32>,
    /// The shared receive queue.
    pub srq: Option<u32>,
}

impl Qp {
    pub(crate) fn new(init: &QpInit, config: &Config) -> Result<Qp, VerbsError> {
        check_init(init)?;
        room::for_an_object("bytes of a queue pair")?;
        Qp::with_sizes(init, granted_cap(init), config)
    }

    /// One that takes the place of another: it has no number, and nobody uses it.
    pub(crate) fn placeholder() -> Qp {
        let cap = QpCap {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline_data: 0,
        };
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: None,
            send_cq: None,
            recv_cq: None,
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: false,
        };
        Qp::with_sizes(&init, cap, &Config::default()).expect("empty queues take no memory")
    }

    fn with_sizes(init: &QpInit, cap: QpCap, config: &Config) -> Result<Qp, VerbsError> {
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Ok(Qp {
            attr: QpAttr::default(),
            qpn: 0,
            mtu: config.port_mtu.bytes() as u32,
            kind: init.qp_type,
            state: QpState::Reset,
            sig_all: init.sq_sig_all,
            due: Due::empty(),
            cq_overflow: false,
            learns_peer_port: false,
            peer_ip_id: 0,
            pd: init.pd.clone(),
            send_cq: init.send_cq.clone(),
            recv_cq: init.recv_cq.clone(),
            srq: init.srq.clone(),
            path: Path::new(
                Flow {
                    source: nowhere,
                    destination: nowhere,
                    source_port: 0,
                },
                0,
                0,
            ),
            rx_icrc: None,
            source_port: None,
            peer_port: None,
            timer: TimerSlot::default(),
            req: Requester::new(config),
            sq: SendQueue::new(&cap, init.qp_type.is_datagram())?,
            rq: RecvRing::new(cap.max_recv_wr, cap.max_recv_sge)?,
            resp: Responder::default(),
            xrcd: init.xrcd.clone(),
            cap,
            notifications: Notifications::default(),
        })
    }

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

    /// Our address and the peer's, once connected.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The PSN of the request that comes next.
    pub(crate) fn expected_psn(&self) -> Psn {
        self.resp.expected_psn()
    }

    /// What the ICRCs of packets from the peer's `port` begin with.
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

    /// The transport bits of packets for this queue pair.
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
            pd: self.pd.as_ref().map(|pd| pd.id()),
            send_cq: self.send_cq.as_ref().map(|cq| cq.id()),
            recv_cq: self.recv_cq.as_ref().map(|cq| cq.id()),
            srq: self.srq.as_ref().map(|srq| srq.number()),
        }
    }

    /// Adds what this queue pair has to send: answers with data first, they free the
    /// peer; requests; then the acknowledgement, which travels with them.
    pub(crate) fn transmit(&mut self, cx: &mut Context, batch: &mut Batch) {
        let due = core::mem::take(&mut self.due);
        // Nobody waits for a turn of one who is alone.
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
            let requests = due.contains(Due::REQUESTS)
                && match self.kind {
                    QpType::Ud | QpType::Gsi => self.transmit_datagrams(cx, batch, limit),
                    QpType::XrcTarget => false,
                    _ => self.transmit_requests(cx, batch, limit),
                };
            more.set(Due::REQUESTS, requests);
            if due.contains(Due::ACK) {
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

    /// A timer entry of this queue pair came up.
    pub(crate) fn timer(&mut self, cx: &mut Context, time: Time) {
        if self.timer.came_up(time) {
            self.requester_timer(cx);
            self.settle(cx);
        }
    }

    /// Asks for a turn to send.
    #[inline]
    fn wake(&mut self, cx: &mut Context, due: Due) {
        if self.due.is_empty() {
            cx.ready.push_back(self.qpn);
        }
        self.due |= due;
    }

    /// What every entry point ends with: consequences that were put off, and the timer.
    #[inline]
    fn settle(&mut self, cx: &mut Context) {
        self.settle_consequences(cx);
        if let Some(deadline) = self.req.deadline() {
            cx.timers.arm(&mut self.timer, self.qpn, deadline);
        }
    }

    /// As [`Qp::settle`], where no deadline can have come nearer.
    #[inline]
    fn settle_consequences(&mut self, cx: &mut Context) {
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

    fn event(&self, cx: &mut Context, kind: QpEvent) {
        let qpn = self.qpn;
        cx.events.push_back(Event::Qp { qpn, kind });
    }

    fn report(&self, cx: &mut Context, wr_id: Option<u64>, status: WcStatus, reason: Reason) {
        cx.events.push_back(Event::Failure(Failure {
            qpn: self.qpn,
            wr_id,
            status,
            reason,
        }));
    }
}

/// Queues a completion; notes in `overflow` if it is lost.
fn queue_completion(cx: &mut Context, cq: &Cq, overflow: &mut bool, wc: Wc, solicited: bool) {
    let pushed = cq.push(wc, solicited);
    after_completion(cx, cq.id(), overflow, pushed);
}

/// What adding a completion to a queue entails.
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

fn check_init(init: &QpInit) -> Result<(), VerbsError> {
    let cap = &init.cap;
    for (what, value, most) in [
        ("max_send_wr", cap.max_send_wr, MAX_WR),
        ("max_recv_wr", cap.max_recv_wr, MAX_WR),
        ("max_send_sge", cap.max_send_sge, MAX_SGE as u32),
        ("max_recv_sge", cap.max_recv_sge, MAX_SGE as u32),
        ("max_inline_data", cap.max_inline_data, MAX_INLINE),
    ] {
        if value > most {
            return Err(VerbsError::invalid(format!(
                "{what} {value}, at most {most} is possible"
            )));
        }
    }
    let sends = init.qp_type != QpType::XrcTarget;
    let receives = !matches!(init.qp_type, QpType::XrcTarget | QpType::XrcInitiator);
    let complaint = if sends && init.pd.is_none() {
        "no protection domain"
    } else if sends && init.send_cq.is_none() {
        "no completion queue for sends"
    } else if receives && init.recv_cq.is_none() {
        "no completion queue for receives"
    } else if init.qp_type == QpType::XrcTarget && init.xrcd.is_none() {
        "an XRC target without an XRC domain"
    } else if !receives && init.srq.is_some() {
        "an XRC queue pair names shared receive queues in its packets, it has none of its own"
    } else if init.srq.as_ref().is_some_and(|srq| srq.xrc_cq().is_some()) {
        "an XRC shared receive queue serves XRC targets only"
    } else {
        return Ok(());
    };
    Err(VerbsError::invalid(complaint))
}

/// Sizes as rxe grants them: inline data and gather lists share their room.
fn granted_cap(init: &QpInit) -> QpCap {
    let mut cap = init.cap;
    if init.qp_type == QpType::XrcTarget {
        cap.max_send_wr = 0;
    }
    let receives = !matches!(init.qp_type, QpType::XrcTarget | QpType::XrcInitiator);
    if init.srq.is_some() || !receives {
        cap.max_recv_wr = 0;
        cap.max_recv_sge = 0;
    }
    cap.max_inline_data = cap
        .max_inline_data
        .max(cap.max_send_sge * 16)
        .min(MAX_INLINE);
    cap.max_send_sge = cap.max_send_sge.max(cap.max_inline_data / 16);
    cap
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
        // An odd number: the same line of several queue pairs is not for the same few
        // places of the cache.
        assert_eq!(size_of::<Qp>(), 15 * 64);
    }
}
