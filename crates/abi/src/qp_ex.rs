//! Extended queue pairs: work requests built by function calls.
//!
//! `wr_start` takes the mutex of the C structure, `wr_complete` and `wr_abort`
//! give it back. What is built between them waits in a [`Builder`] and is posted
//! as a whole: if anything about it is wrong, `wr_complete` says so and nothing
//! is posted. The builder keeps its room, so that building allocates nothing once
//! it has grown to what the program needs.

use core::ffi::{c_int, c_void};
use core::ops::Range;

use ferroce_device::transport::{
    MAX_SGE, MemRef, Memory, QpType, SendData, SendFlags, SendOp, SendWr, Sge, UdTarget, VerbsError,
};
use ferroce_device::{Posting, ProcessMemory};

use crate::convert;
use crate::errno::{errno_of, refuse};
use crate::ffi::*;
use crate::object::from_c;
use crate::post;
use crate::qp::QpObject;

/// Work requests that are not posted yet.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    requests: Vec<Request>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// The first thing that was wrong, or zero.
    error: c_int,
}

#[derive(Debug)]
struct Request {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    data: Data,
    ud: Option<UdTarget>,
    xrc_srq: u32,
}

/// Where in the builder the local memory of a work request is described.
#[derive(Clone, Debug)]
enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

impl Builder {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline.clear();
        self.error = 0;
    }

    fn fail(&mut self, errno: c_int) {
        if self.error == 0 {
            self.error = errno;
        }
    }

    /// Changes the work request that was begun last.
    fn last(&mut self, change: impl FnOnce(&mut Request)) {
        match self.requests.last_mut() {
            Some(request) => change(request),
            None => self.fail(refuse(libc::EINVAL, "no work request has been begun")),
        }
    }

    fn set_sges(&mut self, sges: &[Sge]) {
        let start = self.sges.len();
        self.sges.extend_from_slice(sges);
        let range = start..self.sges.len();
        self.last(|request| request.data = Data::Sges(range));
    }

    /// Adds bytes of the program's memory to the inline data that begins at
    /// `start`, which may have `most` bytes.
    fn add_inline(&mut self, start: usize, most: usize, address: u64, length: usize) {
        let at = self.inline.len();
        if length > most.saturating_sub(at - start) {
            return self.fail(refuse(
                libc::EINVAL,
                format_args!("inline data is longer than max_inline_data, {most}"),
            ));
        }
        self.inline.resize(at + length, 0);
        let memory = ProcessMemory::recent();
        if memory
            .read(MemRef::host(address), &mut self.inline[at..])
            .is_err()
        {
            self.fail(refuse(
                libc::EFAULT,
                format_args!("inline data at {address:#x} cannot be read"),
            ));
        }
    }

    fn end_inline(&mut self, start: usize) {
        let range = start..self.inline.len();
        self.last(|request| request.data = Data::Inline(range));
    }

    /// Posts everything, or nothing.
    fn post(&mut self, posting: &mut Posting<'_>) -> Result<(), VerbsError> {
        if self.requests.len() > 1 {
            for (ahead, request) in self.requests.iter().enumerate() {
                let wr = request.wr(request.op.clone(), &self.sges, &self.inline);
                posting.check_send(&wr, ahead)?;
            }
        }
        for request in &mut self.requests {
            let op = core::mem::take(&mut request.op);
            posting.send(request.wr(op, &self.sges, &self.inline))?;
        }
        Ok(())
    }
}

impl Request {
    fn wr<'a>(&self, op: SendOp, sges: &'a [Sge], inline: &'a [u8]) -> SendWr<'a> {
        let (data, flags) = match &self.data {
            Data::Sges(range) => (SendData::Sges(&sges[range.clone()]), SendFlags::empty()),
            Data::Inline(range) => (SendData::Inline(&inline[range.clone()]), SendFlags::INLINE),
        };
        SendWr {
            wr_id: self.wr_id,
            op,
            flags: self.flags | flags,
            data,
            ud: self.ud.clone(),
            xrc_srq: self.xrc_srq,
        }
    }
}

/// What `ibv_wr_*` can do on a type of queue pair: `ibv_qp_create_send_ops_flags`.
pub(crate) fn possible(qp_type: QpType) -> u64 {
    const UD: u32 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const UC: u32 = UD
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | IBV_QP_EX_WITH_BIND_MW
        | IBV_QP_EX_WITH_LOCAL_INV;
    const XRC: u32 = UC
        | IBV_QP_EX_WITH_SEND_WITH_INV
        | IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    const RC: u32 = XRC | IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE;
    u64::from(match qp_type {
        QpType::Rc => RC,
        QpType::XrcInitiator => XRC,
        QpType::Uc => UC,
        QpType::Ud | QpType::Gsi => UD,
        QpType::XrcTarget => 0,
    })
}

/// Gives a queue pair the functions. All of them: one that was not asked for
/// ends in an error of `wr_complete`, not in a jump to nowhere.
pub(crate) fn fill(qp: &mut ibv_qp_ex) {
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_send_tso = Some(wr_send_tso);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_atomic_write = Some(wr_atomic_write);
    qp.wr_flush = Some(wr_flush);
}

/// The queue pair, which the program has from `ibv_qp_to_qp_ex`.
#[inline]
unsafe fn object<'a>(qp: *mut ibv_qp_ex) -> &'a QpObject {
    // SAFETY: inline code of the headers called through the object itself, so
    // it is not NULL; it begins with an `ibv_qp`.
    unsafe { from_c::<QpObject>(qp.cast()).unwrap_unchecked() }
}

/// What is being built; the caller is between `wr_start` and `wr_complete`.
#[inline]
unsafe fn builder<'a>(qp: *mut ibv_qp_ex) -> &'a mut Builder {
    // SAFETY: as the program holds the mutex, nobody else has a reference.
    unsafe { &mut *object(qp).builder.get() }
}

/// Begins a work request.
#[inline]
unsafe fn begin(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: fields of the program's object that it sets before the call.
    let (wr_id, flags, builder) = unsafe { ((*qp).wr_id, (*qp).wr_flags, builder(qp)) };
    let mut flags = convert::send_flags(flags);
    flags.remove(SendFlags::INLINE); // said by wr_set_inline_data
    builder.requests.push(Request {
        wr_id,
        op,
        flags,
        data: Data::Sges(0..0),
        ud: None,
        xrc_srq: 0,
    });
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: a mutex of ours, initialised with the object.
    unsafe {
        libc::pthread_mutex_lock(&raw mut (*qp).qp_base.mutex);
        builder(qp).clear();
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program holds the mutex since `wr_start`.
    let (object, builder) = unsafe { (object(qp), builder(qp)) };
    let result = match builder.error {
        0 => match object.qp.posting(|posting| builder.post(posting)) {
            Ok(()) => 0,
            Err(error) => errno_of(&error),
        },
        errno => errno,
    };
    // SAFETY: as above.
    unsafe { end(qp) };
    result
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the program holds the mutex since `wr_start`.
    unsafe { end(qp) };
}

unsafe fn end(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's word that the program holds the mutex.
    unsafe {
        builder(qp).clear();
        libc::pthread_mutex_unlock(&raw mut (*qp).qp_base.mutex);
    }
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: between `wr_start` and `wr_complete`, as for all that follow.
    unsafe { begin(qp, SendOp::Send { imm: None }) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm: __be32) {
    // SAFETY: as for `wr_send`.
    unsafe { begin(qp, SendOp::Send { imm: Some(imm) }) };
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as for `wr_send`.
    unsafe { begin(qp, SendOp::SendInvalidate { rkey }) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: as for `wr_send`.
    unsafe { begin(qp, SendOp::Read { remote_addr, rkey }) };
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    let imm = None;
    let op = SendOp::Write {
        remote_addr,
        rkey,
        imm,
    };
    // SAFETY: as for `wr_send`.
    unsafe { begin(qp, op) };
}

unsafe extern "C" fn wr_rdma_write_imm(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    imm: __be32,
) {
    let imm = Some(imm);
    let op = SendOp::Write {
        remote_addr,
        rkey,
        imm,
    };
    // SAFETY: as for `wr_send`.
    unsafe { begin(qp, op) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    let op = SendOp::CompareSwap {
        remote_addr,
        rkey,
        compare,
        swap,
    };
    // SAFETY: as for `wr_send`.
    unsafe { begin(qp, op) };
}

unsafe extern "C" fn wr_atomic_fetch_add(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    add: u64,
) {
    let op = SendOp::FetchAdd {
        remote_addr,
        rkey,
        add,
    };
    // SAFETY: as for `wr_send`.
    unsafe { begin(qp, op) };
}

unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    value: *const c_void,
) {
    // SAFETY: as for `wr_send`; the program's eight bytes are read with care.
    unsafe {
        begin(qp, SendOp::AtomicWrite { remote_addr, rkey });
        wr_set_inline_data(qp, value.cast_mut(), 8);
    }
}

unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    length: usize,
    placement: u8,
    selectivity: u8,
) {
    const PLACEMENT: u8 = (IBV_FLUSH_GLOBAL | IBV_FLUSH_PERSISTENT) as u8;
    let known = placement != 0 && placement & !PLACEMENT == 0 && selectivity <= 1;
    let op = SendOp::Flush {
        remote_addr,
        rkey,
        length: u32::try_from(length).unwrap_or(u32::MAX),
        placement,
        selectivity,
    };
    // SAFETY: as for `wr_send`.
    unsafe {
        begin(qp, op);
        if !known || u32::try_from(length).is_err() {
            builder(qp).fail(refuse(
                libc::EINVAL,
                "ibv_wr_flush: unknown level or type, or a length above 4 GiB",
            ));
        }
    }
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, key: u32) {
    // SAFETY: as for `wr_send`.
    unsafe { begin(qp, SendOp::LocalInvalidate { key }) };
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: as for `wr_send`; the program's structure and window, or NULL.
    unsafe {
        let op = match info.as_ref() {
            Some(info) => post::bind_op(mw, rkey, info),
            None => Err(refuse(
                libc::EINVAL,
                "ibv_wr_bind_mw: the bind information is NULL",
            )),
        };
        match op {
            Ok(op) => begin(qp, op),
            Err(errno) => begin_failed(qp, errno),
        }
    }
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _: *mut c_void, _: u16, _: u16) {
    // SAFETY: as for `wr_send`.
    unsafe {
        let why = "ibv_wr_send_tso: this device does not segment TCP";
        begin_failed(qp, refuse(libc::EOPNOTSUPP, why));
    };
}

/// Begins something in the place of a work request that cannot be.
unsafe fn begin_failed(qp: *mut ibv_qp_ex, errno: c_int) {
    // SAFETY: the caller's word.
    unsafe {
        begin(qp, SendOp::default());
        builder(qp).fail(errno);
    }
}

unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: as for `wr_send`; the handle is ours, or NULL.
    let (target, builder) = unsafe { (post::target(ah, remote_qpn, remote_qkey), builder(qp)) };
    match target {
        Ok(target) => builder.last(|request| request.ud = Some(target)),
        Err(errno) => builder.fail(errno),
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: as for `wr_send`.
    unsafe { builder(qp).last(|request| request.xrc_srq = remote_srqn) };
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: as for `wr_send`.
    let (most, builder) = unsafe { (max_inline(qp), builder(qp)) };
    let start = builder.inline.len();
    builder.add_inline(start, most, addr as u64, length);
    builder.end_inline(start);
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: as for `wr_send`.
    let (most, builder) = unsafe { (max_inline(qp), builder(qp)) };
    if count > 0 && list.is_null() {
        return builder.fail(refuse(libc::EINVAL, "the list of inline data is NULL"));
    }
    let start = builder.inline.len();
    for index in 0..count {
        // SAFETY: the program's list has `count` elements.
        let buffer = unsafe { &*list.add(index) };
        builder.add_inline(start, most, buffer.addr as u64, buffer.length);
        if builder.error != 0 {
            return;
        }
    }
    builder.end_inline(start);
}

unsafe fn max_inline(qp: *mut ibv_qp_ex) -> usize {
    // SAFETY: the caller's word.
    unsafe { object(qp) }.qp.cap().max_inline_data as usize
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: as for `wr_send`.
    unsafe { builder(qp) }.set_sges(&[Sge { addr, length, lkey }]);
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    let count = c_int::try_from(count.min(MAX_SGE + 1)).unwrap_or(c_int::MAX);
    let mut room = post::ROOM;
    // SAFETY: as for `wr_send`; the program's list.
    let (sges, builder) = unsafe { (post::elements(list, count, &mut room), builder(qp)) };
    match sges {
        Ok(sges) => builder.set_sges(sges),
        Err(errno) => builder.fail(errno),
    }
}
