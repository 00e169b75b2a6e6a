//! Transitions of queue pairs: valid and invalid ones.

use core::ffi::c_int;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use libc::{EINVAL, EOPNOTSUPP};

use super::World;
use super::guard::{Guarded, zeros};
use super::input::Input;

/// Returns the attributes that a transition requires.
fn needed(kind: u32, from: u32, to: u32) -> u32 {
    match (from, to, kind) {
        (IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPT_UD) => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
        (IBV_QPS_RESET, IBV_QPS_INIT, _) => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        (IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPT_UD) => 0,
        (IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPT_UC) => {
            IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
        }
        (IBV_QPS_INIT, IBV_QPS_RTR, _) => {
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER
        }
        (IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC) => {
            IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_SQ_PSN
                | IBV_QP_MAX_QP_RD_ATOMIC
        }
        (IBV_QPS_RTR, IBV_QPS_RTS, _) => IBV_QP_SQ_PSN,
        _ => 0,
    }
}

/// Returns whether a transition is allowed; `None` where the model does not know.
fn leads(from: u32, to: u32) -> Option<bool> {
    match (from, to) {
        (_, IBV_QPS_RESET) => Some(true),
        (IBV_QPS_RESET, IBV_QPS_ERR) => None,
        (_, IBV_QPS_ERR) => Some(true),
        (IBV_QPS_RESET | IBV_QPS_INIT, IBV_QPS_INIT) => Some(true),
        (IBV_QPS_INIT, IBV_QPS_RTR) | (IBV_QPS_RTR, IBV_QPS_RTS) => Some(true),
        (IBV_QPS_RESET | IBV_QPS_INIT, _) => Some(false),
        (IBV_QPS_RTR | IBV_QPS_RTS, IBV_QPS_INIT) => Some(false),
        (IBV_QPS_ERR, _) => Some(false),
        _ => None,
    }
}

/// A change to a valid request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Twist {
    None,
    /// A required attribute is missing.
    Missing,
    /// An attribute is out of range.
    Wrong,
    /// An attribute that the transition does not allow.
    More,
    /// An unknown attribute.
    Unknown,
    /// An unknown state.
    NoState,
}

impl World {
    /// Returns the current state of a queue pair.
    pub(super) fn state(&self, at: usize) -> u32 {
        let (mut attr, mut init) = (
            Guarded::new(zeros::<ibv_qp_attr>()),
            Guarded::new(zeros::<ibv_qp_init_attr>()),
        );
        let qp = &self.qps[at];
        // SAFETY: the object is live.
        let got = unsafe { ibv_query_qp(qp.c, &mut attr.it, -1, &mut init.it) };
        assert_eq!(got, 0);
        let cqs = (init.it.send_cq, init.it.recv_cq, init.it.srq);
        assert_eq!(cqs, (qp.send_cq, qp.recv_cq, qp.srq));
        assert_eq!(init.it.qp_type, qp.kind);
        attr.it.qp_state
    }

    /// True if no packet can change the state before the next call.
    pub(super) fn stays(&self, state: u32) -> bool {
        matches!(state, IBV_QPS_RESET | IBV_QPS_INIT) || !self.traffic
    }

    fn attributes(&mut self, input: &mut Input<'_>) -> ibv_qp_attr {
        let mut attr: ibv_qp_attr = zeros();
        attr.port_num = 1;
        attr.qp_access_flags = u32::from(input.byte()) & 0xf;
        attr.qkey = input.pick(&[0x1111, 0x1111, 0x8000_0001]);
        attr.path_mtu = input.pick(&[IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024]);
        attr.dest_qp_num = match input.index(&self.qps) {
            // SAFETY: the object is live.
            Some(at) if !input.one_in(8) => unsafe { (*self.qps[at].c).qp_num },
            _ => input.word() & 0xff_ffff,
        };
        attr.max_dest_rd_atomic = 4;
        attr.max_rd_atomic = 4;
        attr.min_rnr_timer = 1;
        attr.timeout = 8;
        attr.retry_cnt = input.byte() & 7;
        attr.rnr_retry = input.pick(&[0, 1, 3]);
        let (index, gid) = input.pick(&self.gids);
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.sgid_index = index;
        attr.ah_attr.grh.dgid = gid;
        attr
    }

    pub(super) fn modify_qp(&mut self, input: &mut Input<'_>) {
        let Some(at) = input.index(&self.qps) else {
            return;
        };
        let (c, kind) = (self.qps[at].c, self.qps[at].kind);
        let from = self.state(at);
        let to = match (input.one_in(5), from) {
            (true, _) => u32::from(input.byte()) % 7,
            (_, IBV_QPS_RESET) => IBV_QPS_INIT,
            (_, IBV_QPS_INIT) => IBV_QPS_RTR,
            (_, IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD) => IBV_QPS_RTS,
            _ => IBV_QPS_RESET,
        };
        let needed = needed(kind, from, to);
        let mut attr = self.attributes(input);
        attr.qp_state = to;
        let (twist, mask) = twisted(input, &mut attr, needed);
        self.say(format!(
            "modify_qp {c:p} type {kind} from {from} to {} mask {mask:#x} {twist:?}",
            attr.qp_state
        ));
        let mut attr = Guarded::new(attr);
        // SAFETY: the object is live.
        let got = unsafe { ibv_modify_qp(c, &mut attr.it, mask as c_int) };
        let may: &[c_int] = match (twist, leads(from, to)) {
            (Twist::Unknown, _) => &[EOPNOTSUPP],
            (Twist::NoState, _) => &[EINVAL],
            _ if !self.stays(from) => &[0, EINVAL],
            (Twist::More, Some(true)) | (_, None) => &[0, EINVAL, EOPNOTSUPP],
            (Twist::More, _) => &[EINVAL, EOPNOTSUPP],
            (_, Some(false)) => &[EINVAL],
            (Twist::Missing | Twist::Wrong, _) => &[EINVAL],
            (Twist::None, Some(true)) => &[0],
        };
        // Packets in flight may be refused for several reasons.
        let wide = twist == Twist::More && !self.stays(from);
        let wider = [0, EINVAL, EOPNOTSUPP];
        self.check(got, if wide { &wider } else { may });
        if got == 0 && mask & IBV_QP_STATE != 0 {
            self.moved(at, to);
        }
    }

    /// Connects two queue pairs.
    pub(super) fn connect(&mut self, input: &mut Input<'_>) {
        let (Some(one), Some(other)) = (input.index(&self.qps), input.index(&self.qps)) else {
            return;
        };
        for (at, peer) in [(one, other), (other, one)] {
            // SAFETY: the object is live.
            let number = unsafe { (*self.qps[peer].c).qp_num };
            while matches!(self.state(at), IBV_QPS_RESET..=IBV_QPS_RTR) {
                self.advance(at, number);
            }
        }
    }

    /// Makes a valid transition to the next state.
    fn advance(&mut self, at: usize, peer: u32) {
        let (c, from) = (self.qps[at].c, self.state(at));
        let mut attr = Guarded::new(self.attributes(&mut Input(&[])));
        attr.it.qp_state = from + 1;
        attr.it.qp_access_flags = 0xf;
        attr.it.dest_qp_num = peer;
        attr.it.retry_cnt = 7;
        attr.it.rnr_retry = 3;
        let mask = needed(self.qps[at].kind, from, from + 1) | IBV_QP_STATE;
        self.say(format!("modify_qp {c:p} from {from} for {peer:#x}"));
        // SAFETY: the object is live.
        let got = unsafe { ibv_modify_qp(c, &mut attr.it, mask as c_int) };
        self.check(got, if self.stays(from) { &[0] } else { &[0, EINVAL] });
        if got == 0 {
            self.moved(at, from + 1);
        }
    }

    /// Records the new state of a queue pair.
    fn moved(&mut self, at: usize, to: u32) {
        let now = self.state(at);
        assert!(now == to || !self.stays(to), "{now} instead of {to}");
        let qp = &mut self.qps[at];
        match to {
            IBV_QPS_RESET => qp.receives = 0,
            IBV_QPS_RTR | IBV_QPS_RTS => {
                let srq = self.srqs.iter_mut().find(|srq| srq.c == qp.srq);
                if let Some(srq) = srq {
                    srq.taken = true;
                }
            }
            _ => {}
        }
    }
}

/// Returns a request that may be invalid.
fn twisted(input: &mut Input<'_>, attr: &mut ibv_qp_attr, needed: u32) -> (Twist, u32) {
    let mask = needed | IBV_QP_STATE;
    let bits: Vec<u32> = (0..21).map(|bit| needed & (1 << bit)).collect();
    let bits: Vec<u32> = bits.into_iter().filter(|&bit| bit != 0).collect();
    match input.below(16) {
        1 if !bits.is_empty() => (Twist::Missing, mask & !input.pick(&bits)),
        2 | 3 => {
            let set = |flag: u32| needed & flag != 0;
            let mut any = false;
            if set(IBV_QP_PORT) {
                (attr.port_num, any) = (input.pick(&[0, 2, 255]), true);
            } else if set(IBV_QP_AV) {
                any = true;
                match input.below(3) {
                    0 => attr.ah_attr.grh.sgid_index = 200,
                    1 => attr.path_mtu = input.pick(&[0, 6, u32::MAX]),
                    _ => attr.dest_qp_num = 1 << 24,
                }
            } else if set(IBV_QP_MAX_QP_RD_ATOMIC) {
                (attr.max_rd_atomic, any) = (255, true);
            }
            (if any { Twist::Wrong } else { Twist::None }, mask)
        }
        4 => {
            let more = input.word() & ((1 << 21) - 1) & !mask;
            attr.timeout = input.byte();
            attr.min_rnr_timer = input.byte();
            attr.rq_psn = input.word();
            attr.sq_psn = input.word();
            attr.cur_qp_state = input.word() % 9;
            (Twist::More, mask | more)
        }
        5 => (
            Twist::Unknown,
            mask | input.pick(&[1 << 21, 1 << 25, 1 << 31]),
        ),
        6 => {
            attr.qp_state = input.pick(&[7, 99, u32::MAX]);
            (Twist::NoState, mask)
        }
        _ => (Twist::None, mask),
    }
}
