//! Creating and destroying shared receive queues and queue pairs; multicast groups.

use core::ffi::c_int;
use core::ptr;
use std::collections::BTreeSet;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use libc::{EBUSY, EINVAL, EOPNOTSUPP};

use super::guard::{Guarded, zeros};
use super::input::Input;
use super::{MOST, World};

pub(super) struct Srq {
    pub(super) c: *mut ibv_srq,
    pub(super) pd: *mut ibv_pd,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    limit: u32,
    /// Maximum number of posted receives that are left.
    pub(super) posted: u32,
    /// True if a queue pair may have taken receives.
    pub(super) taken: bool,
}

pub(super) struct Qp {
    pub(super) c: *mut ibv_qp,
    pub(super) kind: u32,
    pub(super) pd: *mut ibv_pd,
    pub(super) send_cq: *mut ibv_cq,
    pub(super) recv_cq: *mut ibv_cq,
    pub(super) srq: *mut ibv_srq,
    pub(super) cap: ibv_qp_cap,
    /// Number of receives posted since the last reset.
    pub(super) receives: u32,
    pub(super) groups: BTreeSet<u8>,
}

/// Returns the GID of an IPv4 multicast group.
fn group_gid(group: u8) -> ibv_gid {
    let mut raw = [0; 16];
    raw[10..].copy_from_slice(&[0xff, 0xff, 239, 1, 2, group]);
    ibv_gid { raw }
}

impl World {
    pub(super) fn create_srq(&mut self, input: &mut Input<'_>) {
        if self.srqs.len() == MOST {
            return;
        }
        let pd = self.some_pd(input);
        let mut init = Guarded::new(zeros::<ibv_srq_init_attr>());
        let attr = &mut init.it.attr;
        attr.max_wr = input.pick(&[16, 16, 16, 4, 1, 0, (1 << 20) + 1, u32::MAX]);
        attr.max_sge = input.pick(&[4, 4, 4, 2, 1, 0, 28, u32::MAX]);
        let (max_wr, max_sge) = (attr.max_wr, attr.max_sge);
        self.say(format!("create_srq {pd:p} {max_wr} {max_sge}"));
        // SAFETY: the protection domain is live, or NULL.
        let c = unsafe { ibv_create_srq(pd, &mut init.it) };
        let fine = !pd.is_null() && (1..=16).contains(&max_wr) && max_sge < 28;
        if self.check_made(c, &[if fine { 0 } else { EINVAL }]) {
            let attr = &init.it.attr;
            assert!(attr.max_wr >= max_wr && attr.max_sge >= max_sge);
            self.srqs.push(Srq {
                c,
                pd,
                max_wr: attr.max_wr,
                max_sge: attr.max_sge,
                limit: 0,
                posted: 0,
                taken: false,
            });
        }
    }

    pub(super) fn modify_srq(&mut self, input: &mut Input<'_>) {
        let Some(at) = input.index(&self.srqs) else {
            return;
        };
        let mut attr = Guarded::new(zeros::<ibv_srq_attr>());
        attr.it.max_wr = input.pick(&[16, 32, 4, 1, 0, u32::MAX]);
        attr.it.srq_limit = input.pick(&[0, 1, 8, 1000, u32::MAX]);
        let mask = u32::from(input.byte()) & if input.one_in(8) { 0xff } else { 3 };
        let (resize, limits) = (mask & IBV_SRQ_MAX_WR != 0, mask & IBV_SRQ_LIMIT != 0);
        let (max_wr, limit) = (attr.it.max_wr, attr.it.srq_limit);
        let srq = &self.srqs[at];
        let c = srq.c;
        let size = if resize { max_wr } else { srq.max_wr };
        let wrong =
            mask & !3 != 0 || resize && !(1..=1 << 20).contains(&max_wr) || limits && limit > size;
        // A limit that was reached is reset to 0, and queue pairs take receives.
        let tight = resize && (srq.posted > max_wr || srq.limit > max_wr);
        let may: &[c_int] = match (wrong, tight, srq.taken) {
            (true, ..) | (_, true, false) => &[EINVAL],
            (_, true, true) => &[0, EINVAL],
            _ => &[0],
        };
        self.say(format!("modify_srq {c:p} {mask:#x} {max_wr} {limit}"));
        // SAFETY: the object is live.
        let got = unsafe { ibv_modify_srq(c, &mut attr.it, mask as c_int) };
        self.check(got, may);
        let srq = &mut self.srqs[at];
        if got == 0 {
            srq.max_wr = size;
            srq.limit = if limits { limit } else { srq.limit };
        }
        let mut seen = Guarded::new(zeros::<ibv_srq_attr>());
        // SAFETY: the object is live.
        assert_eq!(unsafe { ibv_query_srq(c, &mut seen.it) }, 0);
        assert_eq!((seen.it.max_wr, seen.it.max_sge), (srq.max_wr, srq.max_sge));
        let fired = srq.taken && seen.it.srq_limit == 0;
        assert!(fired || seen.it.srq_limit == srq.limit);
    }

    pub(super) fn destroy_srq(&mut self, input: &mut Input<'_>) {
        let Some(at) = input.index(&self.srqs) else {
            return;
        };
        let c = self.srqs[at].c;
        let used = self.qps.iter().any(|qp| qp.srq == c);
        self.say(format!("destroy_srq {c:p}"));
        // SAFETY: the object is live; if it is destroyed, it is removed below.
        let got = unsafe { ibv_destroy_srq(c) };
        self.check(got, &[if used { EBUSY } else { 0 }]);
        if got == 0 {
            self.srqs.remove(at);
        }
    }

    fn some_cq(&mut self, input: &mut Input<'_>) -> *mut ibv_cq {
        match input.index(&self.cqs) {
            Some(at) if !input.one_in(24) => self.cqs[at].c,
            _ => ptr::null_mut(),
        }
    }

    pub(super) fn create_qp(&mut self, input: &mut Input<'_>) {
        let good = [IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD];
        let odd = [0, 1, 5, IBV_QPT_RAW_PACKET, IBV_QPT_DRIVER, 99, u32::MAX];
        let kind = match input.one_in(12) {
            true => input.pick(&odd),
            false => input.pick(&good),
        };
        self.create_qp_of(kind, input);
    }

    pub(super) fn create_qp_of(&mut self, kind: u32, input: &mut Input<'_>) {
        if self.qps.len() == MOST {
            return;
        }
        let pd = self.some_pd(input);
        let mut init = Guarded::new(zeros::<ibv_qp_init_attr>());
        init.it.send_cq = self.some_cq(input);
        init.it.recv_cq = self.some_cq(input);
        if let (Some(at), true) = (input.index(&self.srqs), input.one_in(3)) {
            init.it.srq = self.srqs[at].c;
        }
        init.it.qp_type = kind;
        init.it.sq_sig_all = c_int::from(input.byte() & 1);
        let cap = &mut init.it.cap;
        cap.max_send_wr = input.pick(&[16, 4, 1, 0]);
        cap.max_recv_wr = input.pick(&[16, 4, 1, 0]);
        cap.max_send_sge = input.pick(&[4, 2, 1, 0]);
        cap.max_recv_sge = input.pick(&[4, 2, 1, 0]);
        cap.max_inline_data = input.pick(&[128, 8, 0]);
        let huge = input.one_in(12);
        if huge {
            match input.below(5) {
                0 => cap.max_send_wr = input.pick(&[(1 << 20) + 1, u32::MAX]),
                1 => cap.max_recv_wr = input.pick(&[(1 << 20) + 1, u32::MAX]),
                2 => cap.max_send_sge = input.pick(&[33, u32::MAX]),
                3 => cap.max_recv_sge = input.pick(&[33, u32::MAX]),
                _ => cap.max_inline_data = input.pick(&[513, u32::MAX]),
            }
        }
        let asked = init.it;
        let null = pd.is_null() || asked.send_cq.is_null() || asked.recv_cq.is_null();
        let may: &[c_int] = match kind {
            IBV_QPT_RAW_PACKET | IBV_QPT_DRIVER if null => &[EOPNOTSUPP, EINVAL],
            IBV_QPT_RAW_PACKET | IBV_QPT_DRIVER => &[EOPNOTSUPP],
            IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_UD if !null && !huge => &[0],
            _ => &[EINVAL],
        };
        self.say(format!(
            "create_qp {pd:p} type {kind} {:p} {:p} {:p} {} {} {} {} {}",
            asked.send_cq,
            asked.recv_cq,
            asked.srq,
            asked.cap.max_send_wr,
            asked.cap.max_recv_wr,
            asked.cap.max_send_sge,
            asked.cap.max_recv_sge,
            asked.cap.max_inline_data,
        ));
        // SAFETY: the objects are live, or NULL.
        let c = unsafe { ibv_create_qp(pd, &mut init.it) };
        if self.check_made(c, may) {
            let cap = init.it.cap;
            assert!(cap.max_send_wr >= asked.cap.max_send_wr);
            assert!(cap.max_send_sge >= asked.cap.max_send_sge);
            assert!(!asked.srq.is_null() || cap.max_recv_wr >= asked.cap.max_recv_wr);
            self.qps.push(Qp {
                c,
                kind,
                pd,
                send_cq: asked.send_cq,
                recv_cq: asked.recv_cq,
                srq: asked.srq,
                cap,
                receives: 0,
                groups: BTreeSet::new(),
            });
        }
    }

    pub(super) fn destroy_qp(&mut self, input: &mut Input<'_>) {
        let Some(at) = input.index(&self.qps) else {
            return;
        };
        let c = self.qps[at].c;
        let busy = !self.qps[at].groups.is_empty();
        self.say(format!("destroy_qp {c:p}"));
        // SAFETY: the object is live; if it is destroyed, it is removed below.
        let got = unsafe { ibv_destroy_qp(c) };
        self.check(got, &[if busy { EBUSY } else { 0 }]);
        if got == 0 {
            self.qps.remove(at);
        }
    }

    pub(super) fn multicast(&mut self, input: &mut Input<'_>) {
        let Some(at) = input.index(&self.qps) else {
            return;
        };
        let group = input.byte() % 3;
        if input.one_in(3) {
            return self.detach(at, group);
        }
        let mut gid = Guarded::new(group_gid(group));
        let foreign = input.one_in(8);
        if foreign {
            gid.it = input.pick(&self.gids).1; // nobody's group
        }
        let Qp { c, kind, .. } = self.qps[at];
        self.say(format!("attach_mcast {c:p} {group}, a group: {}", !foreign));
        // SAFETY: the object is live.
        let got = unsafe { ibv_attach_mcast(c, &gid.it, 0) };
        let fine = kind == IBV_QPT_UD && !foreign;
        self.check(got, &[if fine { 0 } else { EINVAL }]);
        if got == 0 {
            self.qps[at].groups.insert(group);
        }
    }

    pub(super) fn detach(&mut self, at: usize, group: u8) {
        let gid = Guarded::new(group_gid(group));
        let c = self.qps[at].c;
        let attached = self.qps[at].groups.remove(&group);
        self.say(format!("detach_mcast {c:p} {group}"));
        // SAFETY: the object is live.
        let got = unsafe { ibv_detach_mcast(c, &gid.it, 0) };
        self.check(got, &[if attached { 0 } else { EINVAL }]);
    }
}
