//! Extended completion queues: one completion at a time, read field by field.

use core::ffi::{c_int, c_uint};
use core::sync::atomic::Ordering;
use std::sync::Arc;

use ferroce_device::transport::{NetworkHeader, Time, Wc, WcFlags, WcOpcode, WcStatus};
use rustix::time::{ClockId, clock_gettime};

use crate::context::context_of;
use crate::cq::{CqObject, Request, service_level};
use crate::errno::{null, refuse};
use crate::ffi::*;
use crate::object::from_c;
use crate::pd::PdObject;
use crate::profile;
use crate::provoke::provoke;
use crate::strict::hooks;

/// The fields that a program may request. The others are for raw packets, flow steering and
/// tag matching, which the device does not have.
const READABLE: u64 = (IBV_WC_STANDARD_FLAGS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;
const NANOS: u64 = 1_000_000_000;
/// Number of spins after which a waiting thread yields the processor.
const SPINS: u32 = 100;

/// The current completion of a queue that was not polled yet.
pub(crate) const NO_COMPLETION: Wc = Wc {
    wr_id: 0,
    timestamp: Time::ZERO,
    status: WcStatus::Success,
    opcode: WcOpcode::Send,
    flags: WcFlags::empty(),
    byte_len: 0,
    imm: 0,
    qpn: 0,
    src_qp: 0,
    network: NetworkHeader::None,
};

/// `ibv_create_cq_ex`
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    provoke!("ibv_create_cq" => null);
    const MASKS: u32 = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    const FLAGS: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    // SAFETY: the program's attributes are live, or NULL.
    let attr = unsafe { attr.as_ref() };
    let Some(attr) = attr.filter(|_| !context.is_null()) else {
        return null(refuse(
            libc::EINVAL,
            "ibv_create_cq_ex: the context or the attributes are NULL",
        ));
    };
    if attr.comp_mask & !MASKS != 0 || attr.wc_flags & !u64::from(IBV_CREATE_CQ_SUP_WC_FLAGS) != 0 {
        return null(refuse(
            libc::EINVAL,
            format_args!(
                "ibv_create_cq_ex: comp_mask {:#x} or wc_flags {:#x} have unknown bits",
                attr.comp_mask, attr.wc_flags
            ),
        ));
    }
    let flags = match attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS {
        0 => 0,
        _ => attr.flags,
    };
    if attr.wc_flags & !READABLE != 0 || flags & !FLAGS != 0 {
        return null(refuse(
            libc::EOPNOTSUPP,
            format_args!(
                "ibv_create_cq_ex: wc_flags {:#x}, flags {flags:#x}: this device supports {READABLE:#x} and {FLAGS:#x}",
                attr.wc_flags
            ),
        ));
    }
    let mut domain = None;
    if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0 {
        // SAFETY: the program's context is open, and the domain is live or NULL.
        let (owner, pd) = unsafe { (context_of(context), from_c::<PdObject>(attr.parent_domain)) };
        match pd.filter(|pd| pd.is_parent() && Arc::ptr_eq(pd.device(), &owner.device)) {
            None => {
                return null(refuse(
                    libc::EINVAL,
                    "ibv_create_cq_ex: the domain is NULL, is not a parent domain, or is of another context",
                ));
            }
            Some(pd) => domain = Some(pd.hold()),
        }
    }
    // SAFETY: the program's context is open.
    let settings = unsafe { context_of(context) }.settings;
    let stamps =
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    let has_stamps = |limits: &ferroce_strict::Limits| {
        limits.has_timestamps || attr.wc_flags & u64::from(stamps) == 0
    };
    if let Err(errno) = profile::check_feature(&settings, "timestamps", has_stamps) {
        return null(errno);
    }
    let request = Request {
        cqe: i64::from(attr.cqe),
        cq_context: attr.cq_context,
        channel: attr.channel,
        comp_vector: i64::from(attr.comp_vector),
        single_threaded: flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0,
        domain,
    };
    // SAFETY: the program's context is open, and its channel is live or NULL.
    let created = unsafe {
        CqObject::create(context, request, |c| {
            fill(c);
            if settings.is_strict() {
                c.start_poll = Some(watched_start_poll);
                c.next_poll = Some(watched_next_poll);
            }
        })
    };
    created.map_or_else(null, |cq| cq.cast())
}

fn fill(c: &mut ibv_cq_ex) {
    c.start_poll = Some(start_poll);
    c.next_poll = Some(next_poll);
    c.end_poll = Some(end_poll);
    c.read_opcode = Some(read_opcode);
    c.read_vendor_err = Some(read_vendor_err);
    c.read_byte_len = Some(read_byte_len);
    c.read_imm_data = Some(read_imm_data);
    c.read_qp_num = Some(read_qp_num);
    c.read_src_qp = Some(read_src_qp);
    c.read_wc_flags = Some(read_wc_flags);
    c.read_slid = Some(read_slid);
    c.read_sl = Some(read_sl);
    c.read_dlid_path_bits = Some(read_dlid_path_bits);
    c.read_completion_ts = Some(read_completion_ts);
    c.read_cvlan = Some(read_cvlan);
    c.read_flow_tag = Some(read_flow_tag);
    c.read_tm_info = Some(read_tm_info);
    c.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the program's completion queue is live, and the attributes are live or NULL.
    let (object, attr) = unsafe { (object(cq), attr.as_ref()) };
    if attr.is_some_and(|attr| attr.comp_mask != 0) {
        return refuse(libc::EINVAL, "ibv_start_poll: comp_mask is not 0");
    }
    object.begin();
    let mut found = libc::ENOENT;
    object.cq.poll(1, |wc| {
        object.show(wc);
        found = 0;
    });
    if found != 0 {
        object.end();
    }
    found
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the program's completion queue is live.
    let object = unsafe { object(cq) };
    match object.cq.queue().pop() {
        None => libc::ENOENT,
        Some(wc) => {
            object.show(wc);
            0
        }
    }
}

/// `ibv_start_poll` in strict mode.
unsafe extern "C" fn watched_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the arguments are those of the program.
    let found = unsafe { start_poll(cq, attr) };
    if found == 0 {
        // SAFETY: the program's completion queue is live, and this thread polls it.
        unsafe { judge(cq) };
    }
    found
}

/// `ibv_next_poll` in strict mode.
unsafe extern "C" fn watched_next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the argument is that of the program.
    let found = unsafe { next_poll(cq) };
    if found == 0 {
        // SAFETY: the program's completion queue is live, and this thread polls it.
        unsafe { judge(cq) };
    }
    found
}

/// Passes the current completion to the checks, which may make it an error.
///
/// # Safety
///
/// The completion queue is live, and the calling thread is between `start_poll` and `end_poll`.
unsafe fn judge(cq: *mut ibv_cq_ex) {
    // SAFETY: see `# Safety`.
    let (object, wc) = unsafe { (object(cq), *object(cq).current()) };
    let is_success = wc.status == WcStatus::Success;
    let is_receive = wc.opcode as u32 & IBV_WC_RECV != 0;
    if hooks::polled(object, wc.qpn, wc.wr_id, is_success, is_receive) {
        // SAFETY: see `# Safety`.
        unsafe { (*cq).status = IBV_WC_GENERAL_ERR };
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the program's completion queue is live.
    unsafe { object(cq) }.end();
}

impl CqObject {
    /// Waits until no other thread polls the queue.
    fn begin(&self) {
        if self.single_threaded {
            return;
        }
        let mut spins = 0;
        while self.polling.swap(true, Ordering::Acquire) {
            spins += 1;
            if spins % SPINS == 0 {
                rustix::thread::sched_yield();
            }
            core::hint::spin_loop();
        }
    }

    fn end(&self) {
        if !self.single_threaded {
            self.polling.store(false, Ordering::Release);
        }
    }

    /// Sets the current completion. Only the thread between `begin` and `end` calls it.
    #[inline]
    fn show(&self, wc: Wc) {
        let c = self.c();
        // SAFETY: one thread polls at a time: `begin` or the program's promise ensures it.
        unsafe {
            (*c).status = wc.status as u32;
            (*c).wr_id = wc.wr_id;
            self.current().write(wc);
        }
    }
}

/// Returns the object of an extended completion queue.
///
/// # Safety
///
/// The completion queue is live.
#[inline(always)]
unsafe fn object<'a>(cq: *mut ibv_cq_ex) -> &'a CqObject {
    // SAFETY: the queue is live, and a `CqObject` begins with its `ibv_cq_ex`.
    unsafe { &*cq.cast::<CqObject>() }
}

/// Returns the current completion.
///
/// # Safety
///
/// The completion queue is live, and the calling thread polls it.
#[inline(always)]
unsafe fn current(cq: *mut ibv_cq_ex) -> Wc {
    // SAFETY: the queue is live, and no other thread polls it.
    unsafe { *object(cq).current() }
}

/// Defines a function that reads a field of the current completion.
macro_rules! reader {
    ($name:ident, $result:ty, $wc:pat => $value:expr) => {
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $result {
            // SAFETY: the program calls this between `start_poll` and `end_poll`.
            let $wc = unsafe { current(cq) };
            $value
        }
    };
}

reader!(read_opcode, ibv_wc_opcode, wc => wc.opcode as u32);
reader!(read_vendor_err, u32, wc => wc.vendor_err());
reader!(read_byte_len, u32, wc => wc.byte_len);
reader!(read_imm_data, __be32, wc => wc.imm);
reader!(read_qp_num, u32, wc => wc.qpn);
reader!(read_src_qp, u32, wc => wc.src_qp);
reader!(read_wc_flags, c_uint, wc => wc.flags.bits());
reader!(read_slid, u32, _ => 0);
reader!(read_sl, u8, wc => service_level(&wc));
reader!(read_dlid_path_bits, u8, _ => 0);
reader!(read_completion_ts, u64, wc => wc.timestamp.as_nanos());
reader!(read_cvlan, u16, _ => 0);
reader!(read_flow_tag, u32, _ => 0);
reader!(read_completion_wallclock_ns, u64, wc => wallclock(wc.timestamp));

unsafe extern "C" fn read_tm_info(_: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    // SAFETY: the program's structure is live, or NULL.
    if let Some(info) = unsafe { info.as_mut() } {
        info.tag = 0;
        info.priv_ = 0;
    }
}

/// Converts a time of the monotonic clock to the wall clock.
fn wallclock(time: Time) -> u64 {
    let ago = nanos(ClockId::Monotonic).saturating_sub(time.as_nanos());
    nanos(ClockId::Realtime).saturating_sub(ago)
}

fn nanos(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.cast_unsigned() * NANOS + now.tv_nsec.cast_unsigned()
}
