//! Extended queue pairs: work requests built by function calls.
//!
//! `wr_start` locks the mutex of the C structure; `wr_complete` and `wr_abort` unlock it. A
//! [`Builder`] collects the work requests between them. `wr_complete` posts all of them, or
//! none if one is invalid. The builder keeps its memory, so building stops allocating after
//! the largest batch.

use core::ffi::{c_int, c_void};
use core::ops::Range;

use ferroce_device::Posting;
use ferroce_device::transport::{
    MAX_SGE, QpType, SendData, SendFlags, SendOp, SendWr, Sge, UdTarget, VerbsError,
};

use crate::convert;
use crate::errno::{errno_of, refuse};
use crate::ffi::*;
use crate::object::from_c;
use crate::post::{self, read_inline};
use crate::qp::QpObject;
use crate::strict::hooks::{Post, Watched};

/// Work requests that are not posted yet.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    requests: Vec<Request>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// The errno of the first error, or 0.
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

/// The place of a work request's local data in the builder.
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

    /// Changes the last work request.
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

    /// Appends bytes of the program's memory to the inline data that begins at `start` and
    /// holds at most `most` bytes.
    fn add_inline(&mut self, start: usize, most: usize, address: u64, length: usize) {
        let at = self.inline.len();
        if length > most.saturating_sub(at - start) {
            return self.fail(refuse(
                libc::EINVAL,
                format_args!("inline data is longer than max_inline_data, {most}"),
            ));
        }
        self.inline.resize(at + length, 0);
        if let Err(errno) = read_inline(address, &mut self.inline[at..]) {
            self.fail(errno);
        }
    }

    fn end_inline(&mut self, start: usize) {
        let range = start..self.inline.len();
        self.last(|request| request.data = Data::Inline(range));
    }

    /// Posts all work requests, or none.
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

/// Returns the operations of a type of queue pair: `ibv_qp_create_send_ops_flags`.
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

/// Sets all function pointers of a queue pair: an operation that the program did not request
/// makes `wr_complete` fail, where a NULL pointer would crash.
pub(crate) fn fill(qp: &mut ibv_qp_ex, is_watched: bool) {
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
    qp.wr_complete = Some(match is_watched {
        true => watched_wr_complete,
        false => wr_complete,
    });
    qp.wr_abort = Some(wr_abort);
    qp.wr_atomic_write = Some(wr_atomic_write);
    qp.wr_flush = Some(wr_flush);
}

/// Returns the object of a queue pair from `ibv_qp_to_qp_ex`.
///
/// # Safety
///
/// The queue pair is live: inline functions of `verbs.h` call through its own pointers.
#[inline]
unsafe fn object<'a>(qp: *mut ibv_qp_ex) -> &'a QpObject {
    // SAFETY: the pointer is that of a live object, which begins with an `ibv_qp`.
    unsafe { from_c::<QpObject>(qp.cast()).unwrap_unchecked() }
}

/// A queue pair between `wr_start` and `wr_complete` or `wr_abort`.
struct Building<'a> {
    qp: *mut ibv_qp_ex,
    builder: &'a mut Builder,
}

impl Building<'_> {
    /// Returns the queue pair that the program builds work requests for.
    ///
    /// # Safety
    ///
    /// The queue pair is live, and the calling thread holds its mutex since `wr_start`.
    #[inline]
    unsafe fn new<'a>(qp: *mut ibv_qp_ex) -> Building<'a> {
        // SAFETY: only the holder of the mutex uses the builder, one call at a time.
        let builder = unsafe { &mut *object(qp).builder.get() };
        Building { qp, builder }
    }

    /// Begins a work request with the `wr_id` and `wr_flags` that the program has set.
    #[inline]
    fn begin(&mut self, op: SendOp) {
        // SAFETY: `new` promises that the queue pair is live; the program sets both fields
        // before the call.
        let (wr_id, flags) = unsafe { ((*self.qp).wr_id, (*self.qp).wr_flags) };
        let mut flags = convert::send_flags(flags);
        // `wr_set_inline_data` sets it.
        flags.remove(SendFlags::INLINE);
        self.builder.requests.push(Request {
            wr_id,
            op,
            flags,
            data: Data::Sges(0..0),
            ud: None,
            xrc_srq: 0,
        });
    }

    /// Begins a work request that makes `wr_complete` fail.
    fn begin_failed(&mut self, errno: c_int) {
        self.begin(SendOp::default());
        self.builder.fail(errno);
    }

    fn max_inline(&self) -> usize {
        // SAFETY: `new` promises that the queue pair is live.
        unsafe { object(self.qp) }.qp.cap().max_inline_data as usize
    }

    fn set_inline(&mut self, buffers: impl Iterator<Item = (u64, usize)>) {
        let (most, start) = (self.max_inline(), self.builder.inline.len());
        for (address, length) in buffers {
            self.builder.add_inline(start, most, address, length);
            if self.builder.error != 0 {
                return;
            }
        }
        self.builder.end_inline(start);
    }

    /// Drops the work requests and releases the mutex.
    fn end(self) {
        self.builder.clear();
        // SAFETY: `new` promises that this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(&raw mut (*self.qp).qp_base.mutex) };
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the queue pair is live, and its mutex was initialised with it.
    unsafe { libc::pthread_mutex_lock(&raw mut (*qp).qp_base.mutex) };
    // SAFETY: this thread holds the mutex.
    unsafe { Building::new(qp) }.builder.clear();
}

/// Defines functions that programs call between `wr_start` and `wr_complete`.
macro_rules! while_building {
    ($(fn $name:ident($building:ident $(, $argument:ident: $kind:ty)*) $body:block)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $argument: $kind)*) {
            #[allow(unused_mut)] // not every function changes it
            // SAFETY: the program has called `wr_start` on this live queue pair.
            let mut $building = unsafe { Building::new(qp) };
            $body
        }
    )*};
}

while_building! {
    fn wr_abort(building) { building.end() }

    fn wr_send(building) { building.begin(SendOp::Send { imm: None }) }

    fn wr_send_imm(building, imm: __be32) { building.begin(SendOp::Send { imm: Some(imm) }) }

    fn wr_send_inv(building, rkey: u32) { building.begin(SendOp::SendInvalidate { rkey }) }

    fn wr_rdma_read(building, rkey: u32, remote_addr: u64) {
        building.begin(SendOp::Read { remote_addr, rkey })
    }

    fn wr_rdma_write(building, rkey: u32, remote_addr: u64) {
        building.begin(SendOp::Write { remote_addr, rkey, imm: None })
    }

    fn wr_rdma_write_imm(building, rkey: u32, remote_addr: u64, imm: __be32) {
        building.begin(SendOp::Write { remote_addr, rkey, imm: Some(imm) })
    }

    fn wr_atomic_cmp_swp(building, rkey: u32, remote_addr: u64, compare: u64, swap: u64) {
        building.begin(SendOp::CompareSwap { remote_addr, rkey, compare, swap })
    }

    fn wr_atomic_fetch_add(building, rkey: u32, remote_addr: u64, add: u64) {
        building.begin(SendOp::FetchAdd { remote_addr, rkey, add })
    }

    fn wr_atomic_write(building, rkey: u32, remote_addr: u64, value: *const c_void) {
        building.begin(SendOp::AtomicWrite { remote_addr, rkey });
        building.set_inline([(value as u64, 8)].into_iter());
    }

    fn wr_flush(
        building, rkey: u32, remote_addr: u64, length: usize, placement: u8, selectivity: u8
    ) {
        const PLACEMENT: u8 = (IBV_FLUSH_GLOBAL | IBV_FLUSH_PERSISTENT) as u8;
        let known = placement != 0 && placement & !PLACEMENT == 0 && selectivity <= 1;
        building.begin(SendOp::Flush {
            remote_addr,
            rkey,
            length: u32::try_from(length).unwrap_or(u32::MAX),
            placement,
            selectivity,
        });
        if !known || u32::try_from(length).is_err() {
            building.builder.fail(refuse(
                libc::EINVAL,
                "ibv_wr_flush: unknown level or type, or a length above 4 GiB",
            ));
        }
    }

    fn wr_local_inv(building, key: u32) { building.begin(SendOp::LocalInvalidate { key }) }

    fn wr_bind_mw(building, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
        // SAFETY: the program's structure and window are live, or NULL.
        let op = match unsafe { info.as_ref().map(|info| post::bind_op(mw, rkey, info)) } {
            Some(op) => op,
            None => Err(refuse(
                libc::EINVAL,
                "ibv_wr_bind_mw: the bind information is NULL",
            )),
        };
        match op {
            Ok(op) => building.begin(op),
            Err(errno) => building.begin_failed(errno),
        }
    }

    fn wr_send_tso(building, _header: *mut c_void, _header_size: u16, _segment: u16) {
        let why = "ibv_wr_send_tso: this device does not segment TCP";
        building.begin_failed(refuse(libc::EOPNOTSUPP, why));
    }

    fn wr_set_ud_addr(building, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
        // SAFETY: the program's address handle is live, or NULL.
        match unsafe { post::target(ah, remote_qpn, remote_qkey) } {
            Ok(target) => building.builder.last(|request| request.ud = Some(target)),
            Err(errno) => building.builder.fail(errno),
        }
    }

    fn wr_set_xrc_srqn(building, remote_srqn: u32) {
        building.builder.last(|request| request.xrc_srq = remote_srqn)
    }

    fn wr_set_inline_data(building, addr: *mut c_void, length: usize) {
        building.set_inline([(addr as u64, length)].into_iter())
    }

    fn wr_set_inline_data_list(building, count: usize, list: *const ibv_data_buf) {
        if count > 0 && list.is_null() {
            let why = "the list of inline data is NULL";
            return building.builder.fail(refuse(libc::EINVAL, why));
        }
        let buffers = (0..count).map(|index| {
            // SAFETY: the program's list has `count` elements.
            let buffer = unsafe { &*list.add(index) };
            (buffer.addr as u64, buffer.length)
        });
        building.set_inline(buffers);
    }

    fn wr_set_sge(building, lkey: u32, addr: u64, length: u32) {
        building.builder.set_sges(&[Sge { addr, length, lkey }])
    }

    fn wr_set_sge_list(building, count: usize, list: *const ibv_sge) {
        let count = c_int::try_from(count.min(MAX_SGE + 1)).unwrap_or(c_int::MAX);
        let mut room = post::ROOM;
        // SAFETY: the program's list has `count` elements.
        match unsafe { post::elements(list, count, &mut room) } {
            Ok(sges) => building.builder.set_sges(sges),
            Err(errno) => building.builder.fail(errno),
        }
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program has called `wr_start` on this live queue pair.
    let (object, building) = unsafe { (object(qp), Building::new(qp)) };
    let result = match building.builder.error {
        0 => match object.qp.posting(|posting| building.builder.post(posting)) {
            Ok(()) => 0,
            Err(error) => errno_of(&error),
        },
        errno => errno,
    };
    building.end();
    result
}

/// `ibv_wr_complete` in strict mode or with a profile.
unsafe extern "C" fn watched_wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program has called `wr_start` on this live queue pair.
    let (object, building) = unsafe { (object(qp), Building::new(qp)) };
    let errno = match building.builder.error {
        0 => {
            let (requests, sges) = (&building.builder.requests, &building.builder.sges);
            let ops: Vec<SendOp> = requests.iter().map(|request| request.op.clone()).collect();
            let lists: Vec<Vec<Sge>> = requests
                .iter()
                .map(|request| match &request.data {
                    Data::Sges(range) => sges[range.clone()].to_vec(),
                    Data::Inline(_) => Vec::new(),
                })
                .collect();
            let posts: Vec<Post<'_>> = (requests.iter().zip(&ops).zip(&lists))
                .map(|((request, op), sges)| Post {
                    wr_id: request.wr_id,
                    op: Some(op),
                    flags: request.flags,
                    sges,
                })
                .collect();
            let post = || match object.qp.posting(|posting| building.builder.post(posting)) {
                Ok(()) => 0,
                Err(error) => errno_of(&error),
            };
            Watched::of(object).send("ibv_wr_complete", &posts, post)
        }
        errno => errno,
    };
    building.end();
    errno
}
