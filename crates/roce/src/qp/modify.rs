//! Changes of state and attributes (`ibv_modify_qp`).

use core::num::NonZeroU16;

use ferroce_wire::{Flow, rc_source_port};

use super::{Due, Qp};
use crate::Protocol;
use crate::attr::{AttrMask, QpAttr, QpState};
use crate::engine::Context;
use crate::error::VerbsError;
use crate::event::QpEvent;
use crate::transitions;
use crate::transmit::Path;

impl Qp {
    /// Changes the attributes in `mask`, and the state.
    pub(crate) fn modify(
        &mut self,
        cx: &mut Context,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), VerbsError> {
        let to = transitions::check(Protocol::Roce, self.kind, self.state, attr, mask)?;
        if self.attr.sq_draining && !matches!(to, QpState::Err | QpState::Reset) {
            return Err(VerbsError::invalid(format!(
                "queue pair {:#x} is still draining, it can only move to ERR or RESET",
                self.qpn
            )));
        }
        let from = self.state;
        if to == QpState::Reset {
            self.reset(cx);
            return Ok(());
        }
        self.apply(attr, mask);
        match (from, to) {
            (_, QpState::Err) => {
                self.resp.drop_responses();
                self.enter_error(cx);
            }
            (QpState::Init, QpState::Rtr) => {
                self.state = to;
                self.mtu = match self.kind.is_datagram() {
                    true => cx.config.port_mtu.bytes() as u32,
                    false => self.attr.path_mtu.bytes() as u32,
                };
                self.resp.ready(attr.rq_psn);
            }
            (QpState::Rtr, QpState::Rts) => {
                self.state = to;
                let in_memory = self.path.in_memory;
                self.req.ready(cx, &self.attr, self.mtu, in_memory);
            }
            (QpState::Rts, QpState::Sqd) => {
                self.state = to;
                self.attr.sq_draining = true;
                self.attr.en_sqd_async_notify &= mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY);
                self.check_drained(cx);
            }
            _ => {
                self.state = to;
                self.req.attributes_changed(&self.attr);
                if to == QpState::Rts {
                    self.wake(cx, Due::all());
                }
            }
        }
        self.settle(cx);
        Ok(())
    }

    /// Ends draining once all started sends have completed, and raises SQ_DRAINED.
    pub(super) fn check_drained(&mut self, cx: &mut Context) {
        if !self.attr.sq_draining || self.has_begun_sends() {
            return;
        }
        self.attr.sq_draining = false;
        if self.attr.en_sqd_async_notify {
            self.event(cx, QpEvent::SqDrained);
        }
    }

    /// Moves to RESET: empties the queues without completions, and clears all state but sizes.
    fn reset(&mut self, cx: &mut Context) {
        self.state = QpState::Reset;
        self.sq.clear();
        self.rq.clear();
        self.attr = QpAttr::default();
        self.req = super::Requester::new(&cx.config, self.mtu);
        self.resp = super::Responder::default();
        self.notifications = super::Notifications::default();
        self.cq_overflow = false;
    }

    /// Copies the attributes in `mask`.
    fn apply(&mut self, attr: &QpAttr, mask: AttrMask) {
        let own = &mut self.attr;
        macro_rules! take {
            ($($flag:ident => $($field:ident),+;)*) => {
                $(if mask.contains(AttrMask::$flag) { $(own.$field = attr.$field;)+ })*
            };
        }
        take! {
            EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify;
            ACCESS_FLAGS => access;
            PKEY_INDEX => pkey_index;
            PORT => port;
            QKEY => qkey;
            AV => av;
            PATH_MTU => path_mtu;
            TIMEOUT => timeout;
            RETRY_CNT => retry_cnt;
            RNR_RETRY => rnr_retry;
            RQ_PSN => rq_psn;
            MIN_RNR_TIMER => min_rnr_timer;
            SQ_PSN => sq_psn;
            DEST_QPN => dest_qpn;
        }
        if mask.contains(AttrMask::MAX_QP_RD_ATOMIC) {
            own.max_rd_atomic = round_up(attr.max_rd_atomic);
        }
        if mask.contains(AttrMask::MAX_DEST_RD_ATOMIC) {
            own.max_dest_rd_atomic = round_up(attr.max_dest_rd_atomic);
        }
        if mask.intersects(AttrMask::AV | AttrMask::DEST_QPN) {
            self.unpin_peer_port();
            self.set_path();
        }
    }

    /// Sets the UDP source port; 0 selects the port by rxe's rule.
    pub(crate) fn set_source_port(&mut self, port: u16) {
        self.source_port = NonZeroU16::new(port);
        self.set_path();
    }

    /// Derives the path to the peer from the attributes.
    fn set_path(&mut self) {
        let Some(av) = &self.attr.av else {
            return;
        };
        let by_rule = || rc_source_port(av.flow_label, self.qpn, self.attr.dest_qpn);
        let flow = Flow {
            source: av.source,
            destination: av.destination,
            source_port: self.source_port.map_or_else(by_rule, NonZeroU16::get),
        };
        let in_memory = self.path.in_memory;
        self.path = Path::new(flow, av.traffic_class, av.hop_limit);
        self.path.in_memory = in_memory;
        self.rx_icrc = None;
    }
}

/// Rounds a depth of READs and atomics up to a power of two, as rxe does. A peer that rounds
/// its own depth up must not find a smaller one here.
fn round_up(depth: u8) -> u8 {
    match depth {
        0 => 0,
        n => n.checked_next_power_of_two().unwrap_or(u8::MAX),
    }
}
