//! Posting lists of work requests: under one lock, and sent together.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;

use ferroce_device::transport::{
    Access, BindMw, MAX_SGE, MemRef, Memory, MwKind, OpClass, RecvWr, SendData, SendFlags, SendOp,
    SendWr, Sge, UdTarget, VerbsError,
};
use ferroce_device::{ProcessMemory, read_gpu_memory};

use crate::ah::AhObject;
use crate::convert;
use crate::errno::{errno_of, refuse};
use crate::ffi::*;
use crate::mr::MrObject;
use crate::mw::MwObject;
use crate::object::{from_c, object};
use crate::qp::QpObject;
use crate::srq::SrqObject;

/// The work request that was refused, and its errno.
type Refused<W> = (*mut W, c_int);

/// `ibv_post_send`
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let object = object!(qp as QpObject, "the queue pair is NULL" => errno);
    if list.is_null() || bad_wr.is_null() {
        return refuse(libc::EINVAL, "the list of work requests or bad_wr is NULL");
    }
    let posted = object.qp.posting(|posting| {
        // SAFETY: `posting` holds the shard's lock, and only its holder uses the buffer.
        let inline = unsafe { &mut *object.inline.get() };
        let mut next = list;
        // SAFETY: each `next` of the program's list is NULL or a live work request.
        while let Some(wr) = unsafe { next.as_ref() } {
            let mut room = ROOM;
            // SAFETY: the work request's lists and objects are live.
            let result = match unsafe { send_wr(object, wr, inline, &mut room) } {
                Ok(wr) => posting.send(wr).map_err(|error| errno_of(&error)),
                Err(errno) => Err(errno),
            };
            if let Err(errno) = result {
                return Err((next, errno));
            }
            next = wr.next;
        }
        Ok(())
    });
    // SAFETY: the program's `bad_wr` is not NULL, as checked above.
    unsafe { answer(posted, bad_wr) }
}

/// `ibv_post_recv`
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let object = object!(qp as QpObject, "the queue pair is NULL" => errno);
    if list.is_null() || bad_wr.is_null() {
        return refuse(libc::EINVAL, "the list of work requests or bad_wr is NULL");
    }
    let posted = object.qp.posting(|posting| {
        // SAFETY: the program's list ends with NULL, and its elements are live.
        unsafe { each_receive(list, |wr| posting.recv(wr)) }
    });
    // SAFETY: the program's `bad_wr` is not NULL, as checked above.
    unsafe { answer(posted, bad_wr) }
}

/// `ibv_post_srq_recv`
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let object = object!(srq as SrqObject, "the shared receive queue is NULL" => errno);
    if list.is_null() || bad_wr.is_null() {
        return refuse(libc::EINVAL, "the list of work requests or bad_wr is NULL");
    }
    let posted = object.srq.posting(|posting| {
        // SAFETY: the program's list ends with NULL, and its elements are live.
        unsafe { each_receive(list, |wr| posting.post(wr)) }
    });
    // SAFETY: the program's `bad_wr` is not NULL, as checked above.
    unsafe { answer(posted, bad_wr) }
}

/// Posts receives until one is refused.
///
/// # Safety
///
/// The list ends with NULL; its work requests and their scatter lists are live.
#[inline]
unsafe fn each_receive(
    list: *mut ibv_recv_wr,
    mut post: impl FnMut(&RecvWr<'_>) -> Result<(), VerbsError>,
) -> Result<(), Refused<ibv_recv_wr>> {
    let mut next = list;
    // SAFETY: each `next` of the list is NULL or a live work request: see `# Safety`.
    while let Some(wr) = unsafe { next.as_ref() } {
        let mut room = ROOM;
        // SAFETY: the work request has `num_sge` elements.
        let result = match unsafe { elements(wr.sg_list, wr.num_sge, &mut room) } {
            Ok(sges) => {
                let wr_id = wr.wr_id;
                post(&RecvWr { wr_id, sges }).map_err(|error| errno_of(&error))
            }
            Err(errno) => Err(errno),
        };
        result.map_err(|errno| (next, errno))?;
        next = wr.next;
    }
    Ok(())
}

/// Returns 0, or the errno and the work request that was refused.
///
/// # Safety
///
/// `bad_wr` is writable.
unsafe fn answer<W>(posted: Result<(), Refused<W>>, bad_wr: *mut *mut W) -> c_int {
    match posted {
        Ok(()) => 0,
        Err((wr, errno)) => {
            // SAFETY: `bad_wr` is a variable of the program: see `# Safety`.
            unsafe { *bad_wr = wr };
            errno
        }
    }
}

/// Converts a work request. Inline data is copied to `inline`.
///
/// # Safety
///
/// The objects and the gather list of the work request are live.
#[inline(always)]
unsafe fn send_wr<'a>(
    object: &QpObject,
    wr: &'a ibv_send_wr,
    inline: &'a mut [u8],
    room: &'a mut Room,
) -> Result<SendWr<'a>, c_int> {
    let mut flags = convert::send_flags(wr.send_flags);
    // SAFETY: the objects of the work request are live: see `# Safety`.
    let op = unsafe { op_of(wr)? };
    let data = if op.info().class == OpClass::Local {
        flags.remove(SendFlags::INLINE);
        SendData::Sges(&[])
    } else {
        // SAFETY: the work request has `num_sge` elements.
        let sges = unsafe { elements(wr.sg_list, wr.num_sge, room)? };
        match flags.contains(SendFlags::INLINE) {
            true => SendData::Inline(gather(sges, inline)?),
            false => SendData::Sges(sges),
        }
    };
    let ud = match object.sends_datagrams() {
        // SAFETY: a datagram work request uses `wr.ud`; its handle is live, or NULL.
        true => unsafe {
            let to = &wr.wr.ud;
            Some(target(to.ah, to.remote_qpn, to.remote_qkey)?)
        },
        false => None,
    };
    Ok(SendWr {
        wr_id: wr.wr_id,
        op,
        flags,
        data,
        ud,
        // SAFETY: the union has one field, an integer.
        xrc_srq: unsafe { wr.qp_type.xrc.remote_srqn },
    })
}

/// Returns the operation of a work request.
///
/// # Safety
///
/// The objects of the work request are live.
#[inline]
pub(crate) unsafe fn op_of(wr: &ibv_send_wr) -> Result<SendOp, c_int> {
    // SAFETY: the opcode selects the union fields, all of which are integers or, for
    // `bind_mw`, live objects.
    unsafe {
        let (rdma, imm) = (&wr.wr.rdma, wr.imm.imm_data);
        let (remote_addr, rkey) = (rdma.remote_addr, rdma.rkey);
        Ok(match wr.opcode {
            IBV_WR_SEND => SendOp::Send { imm: None },
            IBV_WR_SEND_WITH_IMM => SendOp::Send { imm: Some(imm) },
            IBV_WR_RDMA_WRITE => SendOp::Write {
                remote_addr,
                rkey,
                imm: None,
            },
            IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::Write {
                remote_addr,
                rkey,
                imm: Some(imm),
            },
            IBV_WR_RDMA_READ => SendOp::Read { remote_addr, rkey },
            IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CompareSwap {
                remote_addr,
                rkey: wr.wr.atomic.rkey,
                compare: wr.wr.atomic.compare_add,
                swap: wr.wr.atomic.swap,
            },
            IBV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd {
                remote_addr,
                rkey: wr.wr.atomic.rkey,
                add: wr.wr.atomic.compare_add,
            },
            IBV_WR_SEND_WITH_INV => SendOp::SendInvalidate {
                rkey: wr.imm.invalidate_rkey,
            },
            IBV_WR_LOCAL_INV => SendOp::LocalInvalidate {
                key: wr.imm.invalidate_rkey,
            },
            IBV_WR_BIND_MW => {
                let bind = &wr.ext.bind_mw;
                bind_op(bind.mw, bind.rkey, &bind.bind_info)?
            }
            IBV_WR_ATOMIC_WRITE => SendOp::AtomicWrite { remote_addr, rkey },
            _ => {
                return Err(refuse(
                    libc::EINVAL,
                    format_args!(
                        "work request opcode {} is unknown or not for ibv_post_send",
                        wr.opcode
                    ),
                ));
            }
        })
    }
}

/// Returns the destination of a datagram.
///
/// # Safety
///
/// The address handle is live, or NULL.
#[inline]
pub(crate) unsafe fn target(
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) -> Result<UdTarget, c_int> {
    // SAFETY: `ah` is NULL, or a handle that the program has not destroyed: see `# Safety`.
    let ah = unsafe { from_c::<AhObject>(ah) }.ok_or_else(|| {
        refuse(
            libc::EINVAL,
            "a datagram work request has no address handle",
        )
    })?;
    Ok(UdTarget {
        ah: ah.ah.clone(),
        remote_qpn: remote_qpn & 0xff_ffff,
        remote_qkey,
    })
}

/// Returns the bind of a type 2 window. Type 1 windows are bound by `ibv_bind_mw`.
///
/// # Safety
///
/// The window and the region are live, or NULL.
pub(crate) unsafe fn bind_op(
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<SendOp, c_int> {
    // SAFETY: window and region are NULL, or the program has not destroyed them: see
    // `# Safety`.
    let (mw, mr) = unsafe { (from_c::<MwObject>(mw), from_c::<MrObject>(info.mr)) };
    let mw = mw.ok_or_else(|| refuse(libc::EINVAL, "bind: the memory window is NULL"))?;
    if mw.mw.kind() == MwKind::Type1 {
        return Err(refuse(
            libc::EINVAL,
            "a type 1 memory window is bound by ibv_bind_mw, not by a work request",
        ));
    }
    Ok(SendOp::BindMw(Box::new(BindMw {
        mw: mw.mw.clone(),
        rkey,
        mr: mr.map(|mr| mr.mr().clone()),
        addr: info.addr,
        length: info.length,
        access: Access::from_bits_retain(info.mw_access_flags),
    })))
}

/// Memory for a copy of a scatter/gather list.
pub(crate) type Room = [MaybeUninit<Sge>; MAX_SGE];

pub(crate) const ROOM: Room = [MaybeUninit::uninit(); MAX_SGE];

/// Returns the elements of a scatter/gather list. A list that is not aligned, as in
/// libiscsi's packed structures, is copied to `room`.
///
/// # Safety
///
/// The list has `count` elements.
#[inline]
pub(crate) unsafe fn elements(
    list: *const ibv_sge,
    count: c_int,
    room: &mut Room,
) -> Result<&[Sge], c_int> {
    const { assert!(size_of::<Sge>() == size_of::<ibv_sge>()) };
    let count = match usize::try_from(count) {
        Ok(0) => return Ok(&[]),
        Ok(count) if count <= MAX_SGE && !list.is_null() => count,
        _ => {
            return Err(refuse(
                libc::EINVAL,
                format_args!(
                    "a list of {count} scatter/gather elements: 0 to {MAX_SGE} are allowed, and the list must not be NULL unless it is empty"
                ),
            ));
        }
    };
    // SAFETY: the list has `count` elements, checked to be at most `MAX_SGE`. `Sge` and
    // `ibv_sge` are `repr(C)` with the same fields.
    unsafe {
        let mut from = list.cast::<Sge>();
        if !from.is_aligned() {
            let bytes = count * size_of::<Sge>();
            ptr::copy_nonoverlapping(list.cast::<u8>(), room.as_mut_ptr().cast(), bytes);
            from = room.as_ptr().cast();
        }
        Ok(&*ptr::slice_from_raw_parts(from, count))
    }
}

/// Copies inline data from the program's memory.
fn gather<'a>(sges: &[Sge], inline: &'a mut [u8]) -> Result<&'a [u8], c_int> {
    let (mut length, most) = (0, inline.len());
    for sge in sges {
        let into = inline.get_mut(length..).unwrap_or_default();
        let into = into.get_mut(..sge.length as usize).ok_or_else(|| {
            refuse(
                libc::EINVAL,
                format_args!("inline data is longer than max_inline_data, {most}"),
            )
        })?;
        read_inline(sge.addr, into)?;
        length += into.len();
    }
    Ok(&inline[..length])
}

/// Copies inline data from memory that the program passes to a call, of the process or of a
/// GPU.
#[inline]
pub(crate) fn read_inline(address: u64, into: &mut [u8]) -> Result<(), c_int> {
    // SAFETY: this function only reads, from memory that the program passes to this call of
    // `ibv_post_send` or `ibv_wr_set_inline_data`.
    let memory = unsafe { ProcessMemory::recent() };
    let read = memory.read(MemRef::host(address), into);
    read.or_else(|_| read_gpu_memory(address, into))
        .map_err(|fault| refuse(libc::EFAULT, format_args!("inline data: {fault}")))
}
