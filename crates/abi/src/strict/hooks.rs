//! The functions that post and poll, for contexts in strict mode or with a profile.

use core::ffi::c_int;
use core::ptr;

use ferroce_device::transport::{SendFlags, SendOp, Sge};
use ferroce_strict::work::{check_atomic, check_datagram_receive};
use ferroce_strict::{Check, Finding, Ledger, QpId, RefusalErrno, Sent};

use super::memory::{buffers, check_unchanged, device_id};
use super::place::call_stack;
use super::{Settings, ledger};
use crate::context::context_of;
use crate::cq::{self, CqObject};
use crate::errno::refuse;
use crate::ffi::*;
use crate::object::{from_c, object};
use crate::post::{self, ROOM, elements};
use crate::qp::QpObject;
use crate::srq::SrqObject;

/// Replaces the functions of a new context that post and poll.
pub(crate) fn fill(ops: &mut ibv_context_ops) {
    ops.poll_cq = Some(poll_cq);
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
}

/// A queue pair in the ledger.
pub(crate) struct Watched {
    settings: Settings,
    id: QpId,
}

/// A send that is about to be posted.
pub(crate) struct Post<'a> {
    pub(crate) wr_id: u64,
    /// The operation; none if its opcode is unknown.
    pub(crate) op: Option<&'a SendOp>,
    pub(crate) flags: SendFlags,
    /// The gather list; empty for inline data.
    pub(crate) sges: &'a [Sge],
}

/// The operations that the checks treat alike.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Group {
    /// Operations that send the buffers of the gather list.
    Message,
    /// Atomics that return the value before.
    Atomic,
    /// Flushes and atomic writes, which rxe has and most adapters do not.
    Persistent,
    Other,
}

/// The parts of an operation that the checks look at.
struct Traits {
    group: Group,
    /// The address of an atomic access.
    atomic_at: Option<u64>,
}

impl Post<'_> {
    fn traits(&self) -> Traits {
        let (group, atomic_at) = match self.op {
            Some(SendOp::Send { .. } | SendOp::SendInvalidate { .. } | SendOp::Write { .. }) => {
                (Group::Message, None)
            }
            Some(
                SendOp::CompareSwap { remote_addr, .. } | SendOp::FetchAdd { remote_addr, .. },
            ) => (Group::Atomic, Some(*remote_addr)),
            Some(SendOp::AtomicWrite { remote_addr, .. }) => {
                (Group::Persistent, Some(*remote_addr))
            }
            Some(SendOp::Flush { .. }) => (Group::Persistent, None),
            Some(SendOp::Read { .. } | SendOp::LocalInvalidate { .. } | SendOp::BindMw(_))
            | None => (Group::Other, None),
        };
        Traits { group, atomic_at }
    }
}

impl Watched {
    /// Returns the queue pair of an object.
    pub(crate) fn of(object: &QpObject) -> Watched {
        // SAFETY: the field does not change, and a context is open as long as it has queue pairs.
        let context = unsafe { context_of((*object.c()).qp_base.context) };
        Watched {
            settings: context.settings,
            id: (device_id(&context.device), object.qp.qpn()),
        }
    }

    /// Posts sends after the checks. `post` posts them; the ledger is locked meanwhile, so that
    /// it has the order of the queue.
    pub(crate) fn send(
        &self,
        verb: &str,
        sends: &[Post<'_>],
        post: impl FnOnce() -> c_int,
    ) -> c_int {
        if let Err(errno) = self.check_process(verb) {
            return errno;
        }
        if let Err(errno) = self.check_profile(sends) {
            return errno;
        }
        if !self.settings.is_strict() || self.settings.is_inherited() {
            return post();
        }
        let mut ledger = ledger();
        for send in sends {
            if let Err(errno) = self.check_send(verb, &ledger, send) {
                return errno;
            }
        }
        let new: Vec<Sent> = sends.iter().map(|send| self.sent(&ledger, send)).collect();
        match post() {
            0 => new.into_iter().for_each(|sent| ledger.sent(self.id, sent)),
            errno => return errno,
        }
        0
    }

    fn check_process(&self, verb: &str) -> Result<(), c_int> {
        let inherited = self.settings.is_strict() && self.settings.is_inherited();
        let finding = inherited.then(|| {
            let what = format!(
                "queue pair {:#x} belongs to process {}, and this is its child {}",
                self.id.1,
                self.settings.process,
                std::process::id()
            );
            Finding::warning(Check::Fork, what)
        });
        self.settings.report(verb, libc::EFAULT, finding)
    }

    /// Refuses work requests that the adapter of the profile does not have.
    fn check_profile(&self, sends: &[Post<'_>]) -> Result<(), c_int> {
        let Some(profile) = self.settings.profile else {
            return Ok(());
        };
        let limits = profile.limits();
        for send in sends {
            let why = match send.traits().group {
                Group::Persistent if !limits.has_persistent_ops => {
                    "neither flushes nor atomic writes"
                }
                Group::Atomic if !limits.has_atomics => "no atomics",
                _ if profile.must_signal() && !self.signals(&ledger(), send) => {
                    "no sends without IBV_SEND_SIGNALED"
                }
                _ if bytes(send.sges) > u64::from(limits.max_msg_sz) => "no messages of this size",
                _ => continue,
            };
            let why = format!("profile {} has {why}", profile.name());
            return Err(refuse(libc::EINVAL, why));
        }
        Ok(())
    }

    fn check_send(&self, verb: &str, ledger: &Ledger, send: &Post<'_>) -> Result<(), c_int> {
        let atomic = send.traits().atomic_at.and_then(check_atomic);
        self.settings.report(verb, libc::EINVAL, atomic)?;
        let finding = ledger.check_send(self.id, self.signals(ledger, send));
        self.settings.report(verb, libc::ENOMEM, finding)
    }

    fn signals(&self, ledger: &Ledger, send: &Post<'_>) -> bool {
        send.flags.contains(SendFlags::SIGNALED)
            || ledger.track(self.id).is_some_and(|track| track.signals_all)
    }

    fn sent(&self, ledger: &Ledger, send: &Post<'_>) -> Sent {
        let reads = send.traits().group == Group::Message;
        Sent {
            wr_id: send.wr_id,
            signaled: self.signals(ledger, send),
            keys: send.sges.iter().map(|sge| sge.lkey).collect(),
            buffers: reads.then(|| buffers(self.id.0, send.sges)).flatten(),
            posted_at: if reads { call_stack() } else { Vec::new() },
        }
    }
}

fn bytes(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// Returns a refusal of the profile as an errno.
pub(crate) fn refused(refusal: &ferroce_strict::Refusal) -> c_int {
    let errno = match refusal.errno {
        RefusalErrno::Invalid => libc::EINVAL,
        RefusalErrno::NoMemory => libc::ENOMEM,
        RefusalErrno::NotSupported => libc::EOPNOTSUPP,
    };
    refuse(errno, format_args!("profile: {}", refusal.why))
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let object = object!(qp as QpObject, "the queue pair is NULL" => errno);
    let watched = Watched::of(object);
    let mut next = list;
    if list.is_null() || bad_wr.is_null() {
        // SAFETY: the arguments are those of the program.
        return unsafe { post::post_send(qp, list, bad_wr) };
    }
    // SAFETY: each `next` of the program's list is NULL or a live work request.
    while let Some(wr) = unsafe { next.as_ref() } {
        let flags = crate::convert::send_flags(wr.send_flags);
        let mut room = ROOM;
        // SAFETY: the work request has `num_sge` elements, and its objects are live.
        let (sges, op) = unsafe {
            (
                elements(wr.sg_list, wr.num_sge, &mut room).unwrap_or_default(),
                post::op_of(wr),
            )
        };
        let send = Post {
            wr_id: wr.wr_id,
            op: op.as_ref().ok(),
            flags,
            sges: if flags.contains(SendFlags::INLINE) {
                &[]
            } else {
                sges
            },
        };
        let mut one = *wr;
        one.next = ptr::null_mut();
        let mut bad = ptr::null_mut();
        let errno = watched.send("ibv_post_send", &[send], || {
            // SAFETY: a list of one work request of the program, and a place for the bad one.
            unsafe { post::post_send(qp, &raw mut one, &raw mut bad) }
        });
        if errno != 0 {
            // SAFETY: the program's `bad_wr` is not NULL, as checked above.
            unsafe { *bad_wr = next };
            return errno;
        }
        next = wr.next;
    }
    0
}

/// Returns the keys and the length of a receive.
///
/// # Safety
///
/// The work request has `num_sge` elements.
unsafe fn scatter(wr: &ibv_recv_wr) -> (Vec<u32>, u64) {
    let mut room = ROOM;
    // SAFETY: see `# Safety`.
    let sges = unsafe { elements(wr.sg_list, wr.num_sge, &mut room) }.unwrap_or_default();
    (sges.iter().map(|sge| sge.lkey).collect(), bytes(sges))
}

/// Posts receives one by one, with `check` before and `note` after each.
///
/// # Safety
///
/// The list ends with NULL, its elements are live, and `bad_wr` is writable.
unsafe fn each_receive(
    list: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    mut post: impl FnMut(*mut ibv_recv_wr, Vec<u32>, u64) -> c_int,
) -> c_int {
    let mut next = list;
    // SAFETY: each `next` of the list is NULL or a live work request: see `# Safety`.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: the work request has `num_sge` elements.
        let (keys, length) = unsafe { scatter(wr) };
        let mut one = *wr;
        one.next = ptr::null_mut();
        let errno = post(&raw mut one, keys, length);
        if errno != 0 {
            // SAFETY: see `# Safety`.
            unsafe { *bad_wr = next };
            return errno;
        }
        next = wr.next;
    }
    0
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    const VERB: &str = "ibv_post_recv";
    let object = object!(qp as QpObject, "the queue pair is NULL" => errno);
    let watched = Watched::of(object);
    let settings = watched.settings;
    if list.is_null() || bad_wr.is_null() || !settings.is_strict() {
        // SAFETY: the arguments are those of the program.
        return unsafe { post::post_recv(qp, list, bad_wr) };
    }
    let post = |wr: *mut ibv_recv_wr, keys, length| {
        let mut bad = ptr::null_mut();
        // SAFETY: a list of one work request of the program, and a place for the bad one.
        let mut post = || unsafe { post::post_recv(qp, wr, &raw mut bad) };
        if let Err(errno) = watched.check_process(VERB) {
            return errno;
        }
        if settings.is_inherited() {
            return post();
        }
        let grh = object
            .sends_datagrams()
            .then(|| check_datagram_receive(length));
        if let Err(errno) = settings.report(VERB, libc::EINVAL, grh.flatten()) {
            return errno;
        }
        let mut ledger = ledger();
        let finding = ledger.check_receive(watched.id);
        if let Err(errno) = settings.report(VERB, libc::ENOMEM, finding) {
            return errno;
        }
        // SAFETY: the work request is a copy of the program's.
        let wr_id = unsafe { (*wr).wr_id };
        let errno = post();
        if errno == 0 {
            ledger.posted_receive(watched.id, wr_id, keys);
        }
        errno
    };
    // SAFETY: the program's list ends with NULL, and `bad_wr` is not NULL.
    unsafe { each_receive(list, bad_wr, post) }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    const VERB: &str = "ibv_post_srq_recv";
    if srq.is_null() || list.is_null() || bad_wr.is_null() {
        // SAFETY: the arguments are those of the program.
        return unsafe { post::post_srq_recv(srq, list, bad_wr) };
    }
    // SAFETY: the program's queue is live, and so is its context.
    let settings = unsafe { context_of((*srq).context) }.settings;
    // SAFETY: the program's queue is live.
    let is_xrc = unsafe { from_c::<SrqObject>(srq) }.is_some_and(|srq| srq.srq.xrc_cq().is_some());
    if !settings.is_strict() || settings.is_inherited() || is_xrc {
        // SAFETY: the arguments are those of the program.
        return unsafe { post::post_srq_recv(srq, list, bad_wr) };
    }
    let post = |wr: *mut ibv_recv_wr, keys, _| {
        let mut bad = ptr::null_mut();
        let mut ledger = ledger();
        let finding = ledger.check_shared_receive(srq.addr());
        if let Err(errno) = settings.report(VERB, libc::ENOMEM, finding) {
            return errno;
        }
        // SAFETY: a list of one work request of the program, and a place for the bad one.
        let (wr_id, errno) = unsafe { ((*wr).wr_id, post::post_srq_recv(srq, wr, &raw mut bad)) };
        if errno == 0 {
            ledger.posted_shared_receive(srq.addr(), wr_id, keys);
        }
        errno
    };
    // SAFETY: the program's list ends with NULL, and `bad_wr` is not NULL.
    unsafe { each_receive(list, bad_wr, post) }
}

pub(crate) unsafe extern "C" fn poll_cq(
    queue: *mut ibv_cq,
    entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    // SAFETY: the arguments are those of the program.
    let count = unsafe { cq::poll_cq(queue, entries, wc) };
    super::report_short_receives();
    // SAFETY: the program's queue is live, or NULL.
    let Some(object) = (unsafe { from_c::<CqObject>(queue) }) else {
        return count;
    };
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the array has `count` completions.
        let wc = unsafe { &mut *wc.add(index) };
        let is_success = wc.status == IBV_WC_SUCCESS;
        let is_receive = wc.opcode & IBV_WC_RECV != 0;
        if polled(object, wc.qp_num, wc.wr_id, is_success, is_receive) {
            wc.status = IBV_WC_GENERAL_ERR;
        }
    }
    count
}

/// Returns the buffers of a polled completion to the program. Returns true if the completion
/// must become an error.
pub(crate) fn polled(
    object: &CqObject,
    qpn: u32,
    wr_id: u64,
    is_success: bool,
    is_receive: bool,
) -> bool {
    // SAFETY: the field does not change, and a context is open as long as it has queues.
    let settings = unsafe { context_of((*object.c()).context) }.settings;
    if !settings.is_strict() || settings.is_inherited() {
        return false;
    }
    let id = (device_id(&object.device), qpn);
    if is_receive {
        ledger().polled_receive(id, wr_id, is_success);
        return false;
    }
    let returned = ledger().polled_send(id, wr_id, is_success);
    let mut fails = false;
    // A failed send may not have been read.
    for sent in returned.iter().filter(|_| is_success) {
        if let Some(finding) = check_unchanged(qpn, sent) {
            fails |= settings.report_completion(&finding, &sent.posted_at);
        }
    }
    fails
}
