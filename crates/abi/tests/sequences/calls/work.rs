//! Valid and invalid work requests.

use core::ffi::c_int;
use core::ptr;

use ferroce_abi::ffi::*;
use libc::{EFAULT, EINVAL, ENOMEM, EPERM};

use super::World;
use super::guard::{ARENA, Guarded, zeros};
use super::input::Input;

/// Number of elements behind every work request: the most that a call may read.
const ELEMENTS: usize = 40;
/// Maximum number of elements of a work request.
const MAX_SGE: c_int = 32;
const OPCODES: [u32; 11] = [
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_RDMA_READ,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_LOCAL_INV,
    IBV_WR_BIND_MW,
    IBV_WR_SEND_WITH_INV,
    IBV_WR_ATOMIC_WRITE,
];
const NONSENSE: [u32; 6] = [IBV_WR_TSO, IBV_WR_DRIVER1, 12, IBV_WR_FLUSH, 99, u32::MAX];

/// The expected result of a work request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Verdict {
    Taken,
    Refused,
    Unsure,
}

/// Scatter/gather elements, and the count in the work request.
struct Elements {
    list: Guarded<[ibv_sge; ELEMENTS]>,
    count: c_int,
    null: bool,
}

impl Elements {
    fn pointer(&mut self) -> *mut ibv_sge {
        match self.null {
            true => ptr::null_mut(),
            false => self.list.it.as_mut_ptr(),
        }
    }

    /// True if a queue with this limit accepts them.
    fn fit(&self, most: u32) -> bool {
        let range = 0..=(most as c_int).min(MAX_SGE);
        range.contains(&self.count) && (self.count == 0 || !self.null)
    }
}

impl World {
    fn elements(&mut self, input: &mut Input<'_>) -> Elements {
        let mut list = Guarded::new([zeros::<ibv_sge>(); ELEMENTS]);
        for sge in &mut list.it[..3] {
            *sge = self.element(input);
        }
        let odd = input.one_in(10);
        let wrong = [33, -1, c_int::MAX, c_int::MIN];
        Elements {
            list,
            count: match odd {
                true => input.pick(&wrong),
                false => input.pick(&[1, 1, 2, 0, 3]),
            },
            null: input.one_in(24),
        }
    }

    fn element(&mut self, input: &mut Input<'_>) -> ibv_sge {
        match input.index(&self.mrs) {
            Some(at) if !input.one_in(10) => {
                // SAFETY: the object is live.
                let mr = unsafe { &*self.mrs[at].c };
                let most = (mr.length as u32).min(2048);
                ibv_sge {
                    addr: mr.addr as u64,
                    length: match input.one_in(16) {
                        true => most.saturating_add(input.pick(&[1, 4096, u32::MAX - 4096])),
                        false => most.min(u32::from(input.byte()) * 8),
                    },
                    lkey: mr.lkey,
                }
            }
            _ => ibv_sge {
                addr: self.arena.at(input.below(ARENA)) as u64,
                length: input.pick(&[0, 8, 64, u32::MAX]),
                lkey: input.word(),
            },
        }
    }

    /// Returns a remote key and address.
    fn remote(&mut self, input: &mut Input<'_>) -> (u64, u32) {
        match input.index(&self.mrs) {
            Some(at) if !input.one_in(10) => {
                // SAFETY: the object is live.
                let mr = unsafe { &*self.mrs[at].c };
                ((mr.addr as u64).next_multiple_of(8), mr.rkey)
            }
            _ => match input.index(&self.mws) {
                // SAFETY: the object is live.
                Some(at) => (self.arena.at(0) as u64, unsafe { (*self.mws[at].c).rkey }),
                None => (input.word().into(), input.word()),
            },
        }
    }

    fn wr_id(&mut self) -> u64 {
        self.next_wr += 1;
        self.next_wr
    }

    fn send_wr(&mut self, input: &mut Input<'_>, at: usize) -> ibv_send_wr {
        let mut wr: ibv_send_wr = zeros();
        wr.wr_id = self.wr_id();
        wr.opcode = match (input.below(16), self.qps[at].kind) {
            (1, _) => input.pick(&NONSENSE),
            (2..8, IBV_QPT_UC) => input.pick(&OPCODES[..4]),
            (2..14, IBV_QPT_UD) => input.pick(&OPCODES[..2]),
            _ => input.pick(&OPCODES),
        };
        wr.send_flags = match input.below(8) {
            0 => input.word(),
            1 => IBV_SEND_INLINE | IBV_SEND_SIGNALED,
            2 => IBV_SEND_FENCE,
            _ => IBV_SEND_SIGNALED,
        };
        let (remote_addr, rkey) = self.remote(input);
        wr.imm.invalidate_rkey = rkey;
        wr.qp_type.xrc.remote_srqn = input.byte().into();
        if self.qps[at].kind == IBV_QPT_UD {
            let ah = input.index(&self.ahs).filter(|_| !input.one_in(16));
            let to = input.index(&self.qps).unwrap_or(at);
            wr.wr.ud = ibv_send_wr_ud {
                ah: ah.map_or(ptr::null_mut(), |at| self.ahs[at].c),
                // SAFETY: the object is live.
                remote_qpn: unsafe { (*self.qps[to].c).qp_num },
                remote_qkey: input.pick(&[0x1111, 0x1111, 0x2222, u32::MAX]),
            };
        } else if matches!(
            wr.opcode,
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD
        ) {
            wr.wr.atomic = ibv_send_wr_atomic {
                remote_addr: remote_addr + u64::from(input.one_in(8)),
                compare_add: input.word().into(),
                swap: input.word().into(),
                rkey,
            };
        } else {
            wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
        }
        if wr.opcode == IBV_WR_BIND_MW {
            let mw = input.index(&self.mws).filter(|_| !input.one_in(12));
            wr.ext.bind_mw = ibv_send_wr_bind_mw {
                mw: mw.map_or(ptr::null_mut(), |at| self.mws[at].c),
                rkey: input.word(),
                bind_info: self.bind_info(input),
            };
        }
        wr
    }

    fn bind_info(&mut self, input: &mut Input<'_>) -> ibv_mw_bind_info {
        let mut info: ibv_mw_bind_info = zeros();
        if let Some(at) = input.index(&self.mrs).filter(|_| !input.one_in(10)) {
            self.mrs[at].windows = true;
            info.mr = self.mrs[at].c;
            // SAFETY: the object is live.
            (info.addr, info.length) =
                unsafe { ((*info.mr).addr as u64, (*info.mr).length as u64) };
        }
        if input.one_in(8) {
            info.length = info.length.wrapping_add(input.word().into());
        }
        info.mw_access_flags = u32::from(input.byte()) & if input.one_in(8) { 0xff } else { 0xe };
        info
    }

    fn verdict(&self, at: usize, state: u32, wr: &ibv_send_wr, elements: &Elements) -> Verdict {
        let qp = &self.qps[at];
        let (inline, op) = (wr.send_flags & IBV_SEND_INLINE != 0, wr.opcode);
        let without = matches!(op, IBV_WR_LOCAL_INV | IBV_WR_BIND_MW);
        let early = matches!(state, IBV_QPS_RESET | IBV_QPS_INIT | IBV_QPS_RTR);
        let plain = matches!(op, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM);
        let write = matches!(op, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM);
        let possible = match qp.kind {
            IBV_QPT_UD => plain,
            IBV_QPT_UC => plain || write || without,
            _ => OPCODES.contains(&op),
        };
        // SAFETY: a datagram uses the field `ud`, which was set.
        let nowhere = qp.kind == IBV_QPT_UD && unsafe { wr.wr.ud.ah.is_null() };
        // Inline data is copied, so only the limit of all requests applies.
        let most = if inline {
            u32::MAX >> 1
        } else {
            qp.cap.max_send_sge
        };
        if !possible || nowhere || early && self.stays(state) || !without && !elements.fit(most) {
            return Verdict::Refused;
        }
        let used = &elements.list.it[..elements.count.clamp(0, MAX_SGE) as usize];
        let length: u64 = used.iter().map(|sge| u64::from(sge.length)).sum();
        let read = op == IBV_WR_RDMA_READ;
        match (plain || write || read) && !inline && !early && length <= 1 << 31 {
            true => Verdict::Taken,
            false => Verdict::Unsure,
        }
    }

    pub(super) fn post_send(&mut self, input: &mut Input<'_>) {
        let Some(at) = input.index(&self.qps) else {
            return;
        };
        let (c, state) = (self.qps[at].c, self.state(at));
        let count = input.pick(&[1, 1, 1, 2, 3]);
        let mut elements: Vec<Elements> = (0..count).map(|_| self.elements(input)).collect();
        let mut wrs: Vec<_> = (0..count)
            .map(|_| Guarded::new(self.send_wr(input, at)))
            .collect();
        let mut next = ptr::null_mut();
        let mut said = String::new();
        let mut verdict = Verdict::Taken;
        for (wr, elements) in wrs.iter_mut().zip(&mut elements).rev() {
            wr.it.sg_list = elements.pointer();
            wr.it.num_sge = elements.count;
            wr.it.next = next;
            next = &raw mut wr.it;
            verdict = match (self.verdict(at, state, &wr.it, elements), verdict) {
                (Verdict::Refused, _) | (_, Verdict::Refused) => Verdict::Refused,
                (Verdict::Taken, Verdict::Taken) => Verdict::Taken,
                _ => Verdict::Unsure,
            };
            let (op, flags, sges) = (wr.it.opcode, wr.it.send_flags, elements.count);
            said = format!(" ({op} flags {flags:#x} sges {sges}){said}");
        }
        self.say(format!("post_send {c:p} in {state}{said} {verdict:?}"));
        let mut bad = Guarded::new(ptr::null_mut());
        // SAFETY: the objects that the list names are live, and the function pointer is set.
        let got = unsafe { (*self.context).ops.post_send.expect("filled")(c, next, &mut bad.it) };
        let may: &[c_int] = match verdict {
            Verdict::Taken => &[0, ENOMEM],
            Verdict::Refused => &[EINVAL, EFAULT, ENOMEM],
            Verdict::Unsure => &[0, EINVAL, EFAULT, ENOMEM, EPERM],
        };
        let exact = verdict == Verdict::Refused && count == 1;
        let inline = wrs[0].it.send_flags & IBV_SEND_INLINE != 0;
        self.check(got, if exact && !inline { &[EINVAL] } else { may });
        let refused = wrs.iter().position(|wr| ptr::eq(&raw const wr.it, bad.it));
        assert_eq!(refused.is_some(), got != 0, "which one was it?");
        let posted = &wrs[..refused.unwrap_or(wrs.len())];
        self.traffic |= !posted.is_empty();
        self.outstanding.extend(posted.iter().map(|wr| wr.it.wr_id));
    }

    pub(super) fn bind_mw(&mut self, input: &mut Input<'_>) {
        let (Some(at), Some(mw)) = (input.index(&self.qps), input.index(&self.mws)) else {
            return;
        };
        let (qp, mw) = (self.qps[at].c, self.mws[mw].c);
        let mut bind = Guarded::new(zeros::<ibv_mw_bind>());
        bind.it.wr_id = self.wr_id();
        bind.it.send_flags = u32::from(input.byte());
        bind.it.bind_info = self.bind_info(input);
        self.say(format!("bind_mw {qp:p} {mw:p}"));
        // SAFETY: the objects are live, and the function pointer is set.
        let got = unsafe { (*self.context).ops.bind_mw.expect("filled")(qp, mw, &mut bind.it) };
        self.check(got, &[0, EINVAL, EPERM, ENOMEM]);
        if got == 0 {
            self.traffic = true;
            self.outstanding.insert(bind.it.wr_id);
        }
    }

    pub(super) fn post_recv(&mut self, input: &mut Input<'_>) {
        let Some(at) = input.index(&self.qps) else {
            return;
        };
        let state = self.state(at);
        let mut elements = self.elements(input);
        let mut wr = Guarded::new(zeros::<ibv_recv_wr>());
        wr.it.wr_id = self.wr_id();
        wr.it.sg_list = elements.pointer();
        wr.it.num_sge = elements.count;
        let qp = &self.qps[at];
        let (c, sges) = (qp.c, elements.count);
        let full = qp.receives >= qp.cap.max_recv_wr;
        let wrong = !qp.srq.is_null() || state == IBV_QPS_RESET;
        let may: &[c_int] = match (wrong || !elements.fit(qp.cap.max_recv_sge), state) {
            (true, _) => &[EINVAL],
            (_, IBV_QPS_INIT) if full => &[ENOMEM],
            (_, IBV_QPS_INIT) => &[0],
            _ => &[0, ENOMEM],
        };
        self.say(format!("post_recv {c:p} in {state} sges {sges}"));
        let mut bad = Guarded::new(ptr::null_mut());
        // SAFETY: the objects that the list names are live, and the function pointer is set.
        let got =
            unsafe { (*self.context).ops.post_recv.expect("filled")(c, &mut wr.it, &mut bad.it) };
        self.check(got, may);
        assert_eq!(ptr::eq(bad.it, &raw const wr.it), got != 0);
        if got == 0 {
            self.qps[at].receives += 1;
            self.outstanding.insert(wr.it.wr_id);
        }
    }

    pub(super) fn post_srq_recv(&mut self, input: &mut Input<'_>) {
        let Some(at) = input.index(&self.srqs) else {
            return;
        };
        let mut elements = self.elements(input);
        let mut wr = Guarded::new(zeros::<ibv_recv_wr>());
        wr.it.wr_id = self.wr_id();
        wr.it.sg_list = elements.pointer();
        wr.it.num_sge = elements.count;
        let srq = &self.srqs[at];
        let (c, sges) = (srq.c, elements.count);
        let full = srq.posted >= srq.max_wr;
        let may: &[c_int] = match (elements.fit(srq.max_sge), full, srq.taken) {
            (false, ..) => &[EINVAL],
            (_, false, _) => &[0],
            (_, true, false) => &[ENOMEM],
            (_, true, true) => &[0, ENOMEM],
        };
        self.say(format!("post_srq_recv {c:p} sges {sges}"));
        let mut bad = Guarded::new(ptr::null_mut());
        // SAFETY: the objects that the list names are live, and the function pointer is set.
        let got = unsafe {
            (*self.context).ops.post_srq_recv.expect("filled")(c, &mut wr.it, &mut bad.it)
        };
        self.check(got, may);
        assert_eq!(ptr::eq(bad.it, &raw const wr.it), got != 0);
        if got == 0 {
            self.srqs[at].posted += 1;
            self.outstanding.insert(wr.it.wr_id);
        }
    }
}
