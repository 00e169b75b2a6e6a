//! Completion queues.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ferroce_device::transport::{Arm, NetworkHeader, Wc};
use ferroce_device::{Cq, Device};

use crate::channel::ChannelObject;
use crate::context::context_of;
use crate::errno::{code, errno_of, null, refuse};
use crate::event_count::EventCount;
use crate::ffi::*;
use crate::object::{Object, from_c, into_c, object};
use crate::pd::PdUse;
use crate::profile;
use crate::provoke::provoke;
use crate::retired_cqs;
use crate::strict::connect;

/// `ibv_cq`, which is also an `ibv_cq_ex`.
#[repr(C)]
pub(crate) struct CqObject {
    c: UnsafeCell<ibv_cq_ex>,
    pub(crate) cq: Arc<Cq>,
    /// The completion that the functions of `ibv_cq_ex` read.
    current: UnsafeCell<Wc>,
    /// True between `start_poll` and `end_poll`.
    pub(crate) polling: AtomicBool,
    /// True if the program promises to poll in one thread at a time.
    pub(crate) single_threaded: bool,
    /// Completion events that the program has taken and not acknowledged.
    pub(crate) events: EventCount,
    pub(crate) device: Arc<Device>,
    /// The parent domain that the queue keeps busy until it is destroyed.
    domain: Mutex<Option<PdUse>>,
}

// SAFETY: `repr(C)`, and the first field is a cell of an `ibv_cq_ex`, which begins with the
// fields of an `ibv_cq` (asserted with the layouts).
unsafe impl Object for CqObject {
    type C = ibv_cq;
}

/// The arguments of a new completion queue.
pub(crate) struct Request {
    pub(crate) cqe: i64,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: i64,
    pub(crate) single_threaded: bool,
    pub(crate) domain: Option<PdUse>,
}

impl CqObject {
    /// Creates a completion queue for the program. `fill` sets the fields of an extended one.
    ///
    /// # Safety
    ///
    /// The context is open, and the channel is live or NULL.
    pub(crate) unsafe fn create(
        context: *mut ibv_context,
        request: Request,
        fill: impl FnOnce(&mut ibv_cq_ex),
    ) -> Result<*mut ibv_cq, c_int> {
        // SAFETY: the context is open, and the channel is live or NULL: see `# Safety`.
        let (owner, channel) = unsafe {
            (
                context_of(context),
                from_c::<ChannelObject>(request.channel),
            )
        };
        // SAFETY: the context is open, and the field does not change.
        let vectors = unsafe { (*context).num_comp_vectors };
        let entries = u32::try_from(request.cqe).map_err(|_| {
            refuse(
                libc::EINVAL,
                format_args!("a completion queue cannot have {} entries", request.cqe),
            )
        })?;
        if !(0..i64::from(vectors)).contains(&request.comp_vector)
            || channel.is_some_and(|channel| channel.context() != context)
        {
            return Err(refuse(
                libc::EINVAL,
                format_args!(
                    "completion vector {} is not below {vectors}, or the completion channel is of another context",
                    request.comp_vector
                ),
            ));
        }
        let (device, settings) = (&owner.device, &owner.settings);
        profile::check(settings, |profile| {
            profile.check_cq(entries)?;
            let (live, most) = (owner.objects.cqs.len(), profile.limits().max_cq);
            profile.check_count("completion queues", live, most)
        })?;
        let cq = device
            .create_cq(entries, channel.map(|c| Arc::clone(&c.channel)))
            .map_err(|error| errno_of(&error))?;
        let mut c = ibv_cq_ex {
            context,
            channel: request.channel,
            cq_context: request.cq_context,
            handle: owner.new_handle(),
            cqe: cq.queue().capacity().cast_signed(),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            ..zeroed()
        };
        fill(&mut c);
        let id = cq.id();
        let object = Box::new(CqObject {
            c: UnsafeCell::new(c),
            current: UnsafeCell::new(crate::cq_ex::NO_COMPLETION),
            polling: AtomicBool::new(false),
            single_threaded: request.single_threaded,
            events: EventCount::default(),
            device: Arc::clone(device),
            domain: Mutex::new(request.domain),
            cq: Arc::clone(&cq),
        });
        let c = into_c(object);
        if settings.is_strict() {
            connect::set_cq(c, cq.queue().capacity());
        }
        cq.set_cookie(c.expose_provenance() as u64);
        owner.objects.cqs.insert(id, c, Arc::default());
        if let Some(channel) = channel {
            channel.users().fetch_add(1, Ordering::AcqRel);
        }
        Ok(c)
    }

    /// Returns the C structure.
    pub(crate) fn c(&self) -> *mut ibv_cq_ex {
        self.c.get()
    }

    /// Returns the completion that the functions of `ibv_cq_ex` read. Only the thread between
    /// `start_poll` and `end_poll` may use it.
    pub(crate) fn current(&self) -> *mut Wc {
        self.current.get()
    }

    /// Counts acknowledged completion events.
    pub(crate) fn acknowledge(&self, count: u32) {
        // SAFETY: the field is aligned, and written only as an atomic.
        let done = unsafe { AtomicU32::from_ptr(&raw mut (*self.c.get()).comp_events_completed) };
        done.fetch_add(count, Ordering::Relaxed);
        self.events.acknowledge(count);
    }
}

/// `ibv_create_cq`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    provoke!("ibv_create_cq" => null);
    if context.is_null() {
        return null(refuse(libc::EINVAL, "ibv_create_cq: the context is NULL"));
    }
    let request = Request {
        cqe: i64::from(cqe),
        cq_context,
        channel,
        comp_vector: i64::from(comp_vector),
        single_threaded: false,
        domain: None,
    };
    // SAFETY: the program's context is open, and its channel is live or NULL.
    unsafe { CqObject::create(context, request, |_| {}) }.unwrap_or_else(null)
}

/// `ibv_destroy_cq`. Waits until the program has acknowledged all events of the queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    provoke!("ibv_destroy_cq" => errno);
    let object = object!(cq as CqObject, "ibv_destroy_cq: the completion queue is NULL" => errno);
    if let Err(error) = object.device.destroy_cq(&object.cq) {
        return errno_of(&error);
    }
    object.events.wait();
    connect::remove_cq(cq);
    // SAFETY: these fields do not change after creation.
    let (context, channel) = unsafe { ((*cq).context, (*cq).channel) };
    // SAFETY: a context is open as long as it has completion queues.
    unsafe { context_of(context) }
        .objects
        .cqs
        .retire(object.cq.id());
    // SAFETY: a channel is live as long as completion queues use it.
    if let Some(channel) = unsafe { from_c::<ChannelObject>(channel) } {
        channel.users().fetch_sub(1, Ordering::AcqRel);
    }
    object
        .domain
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    // SAFETY: no queue pair uses the queue, all its events are acknowledged, and this is the
    // program's last use of it.
    unsafe { retired_cqs::free_later(cq) };
    0
}

/// `ibv_resize_cq`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    provoke!("ibv_resize_cq" => errno);
    let object = object!(cq as CqObject, "ibv_resize_cq: the completion queue is NULL" => errno);
    let Ok(entries) = u32::try_from(cqe) else {
        return refuse(
            libc::EINVAL,
            format_args!("ibv_resize_cq: a completion queue cannot have {cqe} entries"),
        );
    };
    // SAFETY: a context is open as long as it has completion queues.
    let settings = unsafe { context_of((*cq).context) }.settings;
    if let Err(errno) = profile::check(&settings, |profile| profile.check_cq(entries)) {
        return errno;
    }
    let result = object.cq.queue().resize(entries);
    if result.is_ok() && settings.is_strict() {
        connect::set_cq(cq, object.cq.queue().capacity());
    }
    if result.is_ok() {
        // SAFETY: the field is aligned, and written only as an atomic.
        let field = unsafe { AtomicI32::from_ptr(&raw mut (*object.c.get()).cqe) };
        let capacity = object.cq.queue().capacity().cast_signed();
        field.store(capacity, Ordering::Relaxed);
    }
    code(result)
}

/// `ibv_poll_cq`
pub(crate) unsafe extern "C" fn poll_cq(
    cq: *mut ibv_cq,
    num_entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    let object = object!(cq as CqObject, "ibv_poll_cq: the completion queue is NULL" => negative);
    let max = usize::try_from(num_entries).unwrap_or(0);
    if wc.is_null() && max > 0 {
        return -refuse(
            libc::EINVAL,
            "ibv_poll_cq: the array for completions is NULL",
        );
    }
    let mut next = wc;
    let taken = object.cq.poll(max, |completion| {
        // SAFETY: `poll` takes at most `max` completions, and the array has room for them.
        unsafe {
            next.write(to_c(&completion));
            next = next.add(1);
        }
    });
    taken as c_int
}

/// `ibv_req_notify_cq`
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    provoke!("ibv_req_notify_cq" => errno);
    let object =
        object!(cq as CqObject, "ibv_req_notify_cq: the completion queue is NULL" => errno);
    if let Err(error) = object.cq.prepare_events() {
        let errno = error.raw_os_error().unwrap_or(libc::ENOMEM);
        return refuse(errno, "ibv_req_notify_cq: no descriptors for the channel");
    }
    object.cq.arm(match solicited_only {
        0 => Arm::Any,
        _ => Arm::Solicited,
    });
    0
}

/// Returns the service level of a completion, which tells the kind of network header.
///
/// `ibv_wc` has no field for it. RoCE has no service levels, so hardware uses the field, and
/// UCX relies on that: 8 stands for a UDP header, 1 for IPv6, 2 for IPv4.
#[inline]
pub(crate) fn service_level(wc: &Wc) -> u8 {
    match wc.network {
        NetworkHeader::None => 0,
        NetworkHeader::Ipv6 => 8 | 1,
        NetworkHeader::Ipv4 => 8 | 2,
    }
}

/// Converts a completion. Statuses, opcodes and flags have the same numbers in C.
#[inline]
fn to_c(wc: &Wc) -> ibv_wc {
    ibv_wc {
        wr_id: wc.wr_id,
        status: wc.status as u32,
        opcode: wc.opcode as u32,
        vendor_err: wc.vendor_err(),
        byte_len: wc.byte_len,
        imm: ibv_wc_imm { imm_data: wc.imm },
        qp_num: wc.qpn,
        src_qp: wc.src_qp,
        wc_flags: wc.flags.bits(),
        pkey_index: 0,
        slid: 0,
        sl: service_level(wc),
        dlid_path_bits: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_device::transport::{Time, WcFlags, WcOpcode, WcStatus};

    /// Asserts the numbers of an enum. Does not compile unless all variants are listed.
    macro_rules! assert_numbers {
        ($type:ident: $($variant:ident = $number:ident,)*) => {
            let number = |value| match value {
                $($type::$variant => $number,)*
            };
            $(assert_eq!($type::$variant as u32, number($type::$variant));)*
        };
    }

    #[test]
    fn completion_statuses_opcodes_and_flags_have_the_numbers_of_c() {
        assert_numbers!(WcStatus:
            Success = IBV_WC_SUCCESS,
            LocalLength = IBV_WC_LOC_LEN_ERR,
            LocalQpOperation = IBV_WC_LOC_QP_OP_ERR,
            LocalProtection = IBV_WC_LOC_PROT_ERR,
            WrFlush = IBV_WC_WR_FLUSH_ERR,
            MwBind = IBV_WC_MW_BIND_ERR,
            BadResponse = IBV_WC_BAD_RESP_ERR,
            LocalAccess = IBV_WC_LOC_ACCESS_ERR,
            RemoteInvalidRequest = IBV_WC_REM_INV_REQ_ERR,
            RemoteAccess = IBV_WC_REM_ACCESS_ERR,
            RemoteOperation = IBV_WC_REM_OP_ERR,
            RetryExceeded = IBV_WC_RETRY_EXC_ERR,
            RnrRetryExceeded = IBV_WC_RNR_RETRY_EXC_ERR,
            Fatal = IBV_WC_FATAL_ERR,
            General = IBV_WC_GENERAL_ERR,
        );
        assert_numbers!(WcOpcode:
            Send = IBV_WC_SEND,
            RdmaWrite = IBV_WC_RDMA_WRITE,
            RdmaRead = IBV_WC_RDMA_READ,
            CompareSwap = IBV_WC_COMP_SWAP,
            FetchAdd = IBV_WC_FETCH_ADD,
            BindMw = IBV_WC_BIND_MW,
            LocalInvalidate = IBV_WC_LOCAL_INV,
            Flush = IBV_WC_FLUSH,
            AtomicWrite = IBV_WC_ATOMIC_WRITE,
            Recv = IBV_WC_RECV,
            RecvRdmaWithImm = IBV_WC_RECV_RDMA_WITH_IMM,
        );
        assert_eq!(WcFlags::GRH.bits(), IBV_WC_GRH);
        assert_eq!(WcFlags::WITH_IMM.bits(), IBV_WC_WITH_IMM);
        assert_eq!(WcFlags::WITH_INV.bits(), IBV_WC_WITH_INV);
    }

    #[test]
    fn every_field_of_a_completion_is_converted() {
        let c = to_c(&Wc {
            wr_id: 1,
            timestamp: Time::from_nanos(2),
            status: WcStatus::RemoteAccess,
            opcode: WcOpcode::Recv,
            flags: WcFlags::GRH | WcFlags::WITH_IMM,
            byte_len: 3,
            imm: 4,
            qpn: 5,
            src_qp: 6,
            network: NetworkHeader::Ipv4,
        });
        assert_eq!(c.sl, 10);
        assert_eq!((c.wr_id, c.status, c.opcode), (1, 10, 128));
        assert_eq!((c.byte_len, c.qp_num, c.src_qp, c.wc_flags), (3, 5, 6, 3));
        // SAFETY: both fields of the union are integers of the same size.
        assert_eq!(unsafe { c.imm.imm_data }, 4);
    }
}
