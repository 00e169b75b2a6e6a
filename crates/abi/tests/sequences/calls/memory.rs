//! Protection domains, memory regions, memory windows, address handles.

use core::ffi::c_int;
use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use libc::{EBUSY, EFAULT, EINVAL};

use super::guard::{ARENA, Guarded, zeros};
use super::input::Input;
use super::{MOST, World};

pub(super) struct Mr {
    pub(super) c: *mut ibv_mr,
    pub(super) pd: *mut ibv_pd,
    /// True if windows may be bound to it.
    pub(super) windows: bool,
}

pub(super) struct Mw {
    pub(super) c: *mut ibv_mw,
    pub(super) pd: *mut ibv_pd,
}

pub(super) struct Ah {
    pub(super) c: *mut ibv_ah,
    pub(super) pd: *mut ibv_pd,
}

/// Returns a range of memory, and whether it can be registered.
fn place(world: &World, input: &mut Input<'_>) -> (*mut u8, usize, bool) {
    if input.one_in(12) {
        let wrong = [0, 8, 0x1000, usize::MAX - 10];
        let addr = ptr::without_provenance_mut(input.pick(&wrong));
        return (addr, input.pick(&[1, 16, 4096]), false);
    }
    let offset = input.below(256) * (ARENA / 256);
    let length = (4096 - input.below(64) * 64).min(ARENA - offset);
    (world.arena.at(offset), length, true)
}

/// Returns access flags, and whether the combination is valid.
fn access(input: &mut Input<'_>) -> (u32, bool) {
    let known = !u32::from(input.byte()) & 0x1f;
    let flags = match input.below(12) {
        1 => known | 1 << 15,
        2 => known,
        _ => known | IBV_ACCESS_LOCAL_WRITE,
    };
    let writes = flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
    let good = flags & 1 << 15 == 0 && !(writes && flags & IBV_ACCESS_LOCAL_WRITE == 0);
    (flags, good)
}

impl World {
    pub(super) fn alloc_pd(&mut self) {
        if self.pds.len() == MOST {
            return;
        }
        self.say("alloc_pd".into());
        // SAFETY: the context is open.
        let pd = unsafe { ibv_alloc_pd(self.context) };
        self.check_made(pd, &[0]);
        self.pds.push(pd);
    }

    fn pd_is_used(&self, pd: *mut ibv_pd) -> bool {
        self.mrs.iter().any(|mr| mr.pd == pd)
            || self.mws.iter().any(|mw| mw.pd == pd)
            || self.ahs.iter().any(|ah| ah.pd == pd)
            || self.srqs.iter().any(|srq| srq.pd == pd)
            || self.qps.iter().any(|qp| qp.pd == pd)
    }

    pub(super) fn dealloc_pd(&mut self, input: &mut Input<'_>) {
        let Some(at) = input.index(&self.pds) else {
            return;
        };
        let pd = self.pds[at];
        let expected = if self.pd_is_used(pd) { EBUSY } else { 0 };
        self.say(format!("dealloc_pd {pd:p}"));
        // SAFETY: the object is live; if it is destroyed, it is removed below.
        let got = unsafe { ibv_dealloc_pd(pd) };
        self.check(got, &[expected]);
        if got == 0 {
            self.pds.remove(at);
        }
    }

    pub(super) fn reg_mr(&mut self, input: &mut Input<'_>) {
        if self.mrs.len() == MOST {
            return;
        }
        let pd = self.some_pd(input);
        let (addr, length, there) = place(self, input);
        let (flags, good) = access(input);
        self.say(format!("reg_mr {pd:p} {addr:p} {length} {flags:#x}"));
        // SAFETY: the protection domain is live, or NULL.
        let c = unsafe { ibv_reg_mr(pd, addr.cast(), length, flags as c_int) };
        let may: &[c_int] = match (pd.is_null(), there, good) {
            (true, ..) | (_, true, false) => &[EINVAL],
            (_, true, true) => &[0],
            (_, false, _) => &[EFAULT, EINVAL],
        };
        if self.check_made(c, may) {
            // SAFETY: the object was just created.
            let seen = unsafe { ((*c).pd, (*c).addr, (*c).length) };
            assert_eq!(seen, (pd, addr.cast(), length));
            let windows = false;
            self.mrs.push(Mr { c, pd, windows });
        }
    }

    pub(super) fn rereg_mr(&mut self, input: &mut Input<'_>) {
        let Some(at) = input.index(&self.mrs) else {
            return;
        };
        let pd = self.some_pd(input);
        let (addr, length, there) = place(self, input);
        let (mut flags, good) = access(input);
        let what = u32::from(input.byte()) & if input.one_in(8) { 0xff } else { 7 };
        let has = |flag| what & flag != 0;
        if !has(IBV_REREG_MR_CHANGE_ACCESS) && !input.one_in(8) {
            flags = 0;
        }
        let Mr { c, windows, .. } = self.mrs[at];
        self.say(format!(
            "rereg_mr {c:p} {what:#x} {pd:p} {addr:p} {length} {flags:#x}"
        ));
        // SAFETY: the objects are live, or NULL.
        let got =
            unsafe { ibv_rereg_mr(c, what as c_int, pd, addr.cast(), length, flags as c_int) };
        let moves = has(IBV_REREG_MR_CHANGE_TRANSLATION);
        let migrates = has(IBV_REREG_MR_CHANGE_PD);
        let permits = has(IBV_REREG_MR_CHANGE_ACCESS);
        let refused = what & 7 == 0
            || what & !0xf != 0
            || moves && addr.is_null()
            || migrates && pd.is_null()
            || !permits && flags != 0;
        let wrong = moves && !there || permits && !good;
        let may: &[c_int] = match (refused, wrong, windows) {
            (true, ..) => &[IBV_REREG_MR_ERR_INPUT],
            (_, true, _) => &[IBV_REREG_MR_ERR_CMD],
            (_, _, true) => &[0, IBV_REREG_MR_ERR_CMD],
            (_, _, false) => &[0],
        };
        self.check(got, may);
        if got == 0 && migrates {
            self.mrs[at].pd = pd;
        }
    }

    pub(super) fn dereg_mr(&mut self, input: &mut Input<'_>) {
        let Some(at) = input.index(&self.mrs) else {
            return;
        };
        let Mr { c, windows, .. } = self.mrs[at];
        self.say(format!("dereg_mr {c:p}"));
        // SAFETY: the object is live; if it is destroyed, it is removed below.
        let got = unsafe { ibv_dereg_mr(c) };
        self.check(got, if windows { &[0, EINVAL] } else { &[0] });
        if got == 0 {
            self.mrs.remove(at);
        }
    }

    pub(super) fn alloc_mw(&mut self, input: &mut Input<'_>) {
        let (Some(at), true) = (input.index(&self.pds), self.mws.len() < MOST) else {
            return;
        };
        let pd = self.pds[at];
        let kind = input.pick(&[IBV_MW_TYPE_1, IBV_MW_TYPE_2, IBV_MW_TYPE_2, 0, 77]);
        let good = matches!(kind, IBV_MW_TYPE_1 | IBV_MW_TYPE_2);
        self.say(format!("alloc_mw {pd:p} {kind}"));
        // SAFETY: the object is live, and the function pointer is set.
        let c = unsafe { (*self.context).ops.alloc_mw.expect("filled")(pd, kind) };
        if self.check_made(c, &[if good { 0 } else { EINVAL }]) {
            self.mws.push(Mw { c, pd });
        }
    }

    pub(super) fn dealloc_mw(&mut self, input: &mut Input<'_>) {
        let Some(at) = input.index(&self.mws) else {
            return;
        };
        let c = self.mws[at].c;
        self.say(format!("dealloc_mw {c:p}"));
        // SAFETY: the object is live, and is removed below.
        let got = unsafe { (*self.context).ops.dealloc_mw.expect("filled")(c) };
        self.check(got, &[0]);
        self.mws.remove(at);
    }

    /// Returns an address of this host, and whether it is valid.
    pub(super) fn way(&mut self, input: &mut Input<'_>) -> (ibv_ah_attr, bool) {
        let (index, gid) = input.pick(&self.gids);
        let mut attr: ibv_ah_attr = zeros();
        attr.is_global = 1;
        attr.port_num = 1;
        attr.grh.sgid_index = index;
        attr.grh.dgid = gid;
        attr.grh.hop_limit = input.byte();
        attr.grh.flow_label = input.word();
        let wrong = input.below(16);
        match wrong {
            1 => attr.port_num = input.pick(&[0, 2, 255]),
            2 => attr.grh.sgid_index = 200,
            _ => {}
        }
        (attr, !(1..=2).contains(&wrong))
    }

    pub(super) fn create_ah(&mut self, input: &mut Input<'_>) {
        if self.ahs.len() == MOST {
            return;
        }
        let pd = self.some_pd(input);
        let (attr, good) = self.way(input);
        let mut attr = Guarded::new(attr);
        self.say(format!("create_ah {pd:p}, a good way: {good}"));
        // SAFETY: the protection domain is live, or NULL.
        let c = unsafe { ibv_create_ah(pd, &mut attr.it) };
        let fine = good && !pd.is_null();
        if self.check_made(c, &[if fine { 0 } else { EINVAL }]) {
            self.ahs.push(Ah { c, pd });
        }
    }

    pub(super) fn destroy_ah(&mut self, input: &mut Input<'_>) {
        let Some(at) = input.index(&self.ahs) else {
            return;
        };
        let Ah { c, .. } = self.ahs.remove(at);
        self.say(format!("destroy_ah {c:p}"));
        // SAFETY: the object was live until now.
        let got = unsafe { ibv_destroy_ah(c) };
        self.check(got, &[0]);
    }
}
