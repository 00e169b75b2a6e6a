//! A queue pair with one completion queue, and work requests for it.

use core::ffi::c_int;
use core::ptr;

use crate::channel::{
    ibv_ack_cq_events, ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event,
};
use crate::cq::{ibv_create_cq, ibv_destroy_cq, poll_cq, req_notify_cq};
use crate::ffi::*;
use crate::post::{post_recv, post_send};
use crate::query::ibv_query_device;
use crate::rdmacm::{rdma_create_qp, rdma_destroy_qp};

use super::id::Id;
use super::sys;

/// How large the queues are, and how many bytes may be inline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) send: u32,
    pub(crate) receive: u32,
    pub(crate) inline: u32,
}

/// The queues of an identifier. It goes before the identifier does.
#[derive(Debug)]
pub(crate) struct Queue {
    id: *mut rdma_cm_id,
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    armed: bool,
    pub(crate) sizes: Sizes,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Queue {}

/// Completions taken at a time.
const BATCH: usize = 32;

impl Queue {
    pub(crate) fn new(id: &Id, kind: ibv_qp_type, wanted: Sizes) -> Result<Queue, c_int> {
        let context = id.verbs();
        if context.is_null() {
            return Err(libc::ENODEV);
        }
        let mut sizes = wanted;
        let mut limits: ibv_device_attr = zeroed();
        // SAFETY: a live context, and a place for the answer.
        if unsafe { ibv_query_device(context, &mut limits) } == 0 {
            let most = limits
                .max_qp_wr
                .unsigned_abs()
                .min(limits.max_cqe.unsigned_abs() / 2);
            sizes.send = sizes.send.min(most);
            sizes.receive = sizes.receive.min(most);
        }
        // SAFETY: a live context.
        let channel = unsafe { ibv_create_comp_channel(context) };
        if channel.is_null() {
            return Err(sys::errno());
        }
        let mut queue = Queue {
            id: id.as_ptr(),
            qp: ptr::null_mut(),
            cq: ptr::null_mut(),
            channel,
            armed: false,
            sizes,
        };
        sys::set_nonblocking(queue.fd(), true)?;
        let entries = (sizes.send + sizes.receive) as c_int;
        // SAFETY: a live context and channel.
        queue.cq = unsafe { ibv_create_cq(context, entries, ptr::null_mut(), channel, 0) };
        if queue.cq.is_null() {
            return Err(sys::errno());
        }
        queue.create_qp(kind)?;
        Ok(queue)
    }

    fn create_qp(&mut self, kind: ibv_qp_type) -> Result<(), c_int> {
        let mut attr = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: self.sizes.send,
                max_recv_wr: self.sizes.receive,
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: self.sizes.inline,
            },
            qp_type: kind,
            sq_sig_all: 1,
        };
        // SAFETY: a live identifier; NULL stands for its own protection domain.
        if unsafe { rdma_create_qp(self.id, ptr::null_mut(), &mut attr) } != 0 {
            return Err(sys::errno());
        }
        // SAFETY: a live identifier, which has a queue pair now.
        self.qp = unsafe { (*self.id).qp };
        self.sizes.inline = attr.cap.max_inline_data;
        Ok(())
    }

    /// Readable when there is something to poll, if the queue was armed.
    pub(crate) fn fd(&self) -> c_int {
        // SAFETY: the channel lives as long as this.
        unsafe { (*self.channel).fd }
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair lives as long as this.
        unsafe { (*self.qp).qp_num }
    }

    /// Has the next completion make the descriptor readable.
    pub(crate) fn arm(&mut self) {
        if !self.armed {
            // SAFETY: a live completion queue.
            self.armed = unsafe { req_notify_cq(self.cq, 0) } == 0;
        }
    }

    /// Takes events off the descriptor; the queue has to be armed again.
    pub(crate) fn take_events(&mut self) {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a live channel, which does not block; the only queue on it is ours.
        unsafe {
            while ibv_get_cq_event(self.channel, &mut cq, &mut context) == 0 {
                ibv_ack_cq_events(cq, 1);
                self.armed = false;
            }
        }
    }

    /// Hands over completions, until there are none; how many there were.
    pub(crate) fn poll(&mut self, mut each: impl FnMut(&ibv_wc)) -> usize {
        let mut total = 0;
        loop {
            let mut batch: [ibv_wc; BATCH] = core::array::from_fn(|_| zeroed());
            // SAFETY: a live completion queue; room for that many.
            let count = unsafe { poll_cq(self.cq, BATCH as c_int, batch.as_mut_ptr()) };
            let count = usize::try_from(count).unwrap_or(0);
            batch[..count].iter().for_each(&mut each);
            total += count;
            if count < BATCH {
                return total;
            }
        }
    }

    /// Posts receives that take no bytes.
    pub(crate) fn receive_nothing(&mut self, mut count: usize, wr_id: u64) -> Result<(), c_int> {
        while count > 0 {
            let mut requests: [ibv_recv_wr; BATCH] = core::array::from_fn(|_| ibv_recv_wr {
                wr_id,
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge: 0,
            });
            let now = count.min(BATCH);
            let first = requests.as_mut_ptr();
            for place in 1..now {
                // SAFETY: both are in the array.
                unsafe { (*first.add(place - 1)).next = first.add(place) };
            }
            self.post_recv(first)?;
            count -= now;
        }
        Ok(())
    }

    /// Posts a receive for a part of a buffer.
    pub(crate) fn receive(&mut self, mut part: ibv_sge, wr_id: u64) -> Result<(), c_int> {
        self.post_recv(&mut ibv_recv_wr {
            wr_id,
            next: ptr::null_mut(),
            sg_list: &mut part,
            num_sge: 1,
        })
    }

    fn post_recv(&mut self, first: *mut ibv_recv_wr) -> Result<(), c_int> {
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair and a list of work requests.
        match unsafe { post_recv(self.qp, first, &mut bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Writes to the peer's memory, with or without immediate data.
    pub(crate) fn write(
        &mut self,
        parts: &mut [ibv_sge],
        inline: bool,
        remote: (u64, u32),
        immediate: Option<u32>,
        wr_id: u64,
    ) -> Result<(), c_int> {
        let mut request: ibv_send_wr = zeroed();
        request.opcode = match immediate {
            Some(_) => IBV_WR_RDMA_WRITE_WITH_IMM,
            None => IBV_WR_RDMA_WRITE,
        };
        request.imm.imm_data = immediate.unwrap_or(0).to_be();
        request.wr.rdma = ibv_send_wr_rdma {
            remote_addr: remote.0,
            rkey: remote.1,
        };
        self.post_send(request, parts, inline, wr_id)
    }

    /// Sends a datagram.
    pub(crate) fn send_to(
        &mut self,
        parts: &mut [ibv_sge],
        to: ibv_send_wr_ud,
        wr_id: u64,
    ) -> Result<(), c_int> {
        let mut request: ibv_send_wr = zeroed();
        request.opcode = IBV_WR_SEND;
        request.wr.ud = to;
        self.post_send(request, parts, false, wr_id)
    }

    fn post_send(
        &mut self,
        mut request: ibv_send_wr,
        parts: &mut [ibv_sge],
        inline: bool,
        wr_id: u64,
    ) -> Result<(), c_int> {
        request.wr_id = wr_id;
        request.sg_list = parts.as_mut_ptr();
        request.num_sge = parts.len() as c_int;
        request.send_flags = if inline { IBV_SEND_INLINE } else { 0 };
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair and one work request.
        match unsafe { post_send(self.qp, &mut request, &mut bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: nobody uses them any more; all events were acknowledged.
        unsafe {
            if !self.qp.is_null() {
                rdma_destroy_qp(self.id);
            }
            if !self.cq.is_null() {
                ibv_destroy_cq(self.cq);
            }
            ibv_destroy_comp_channel(self.channel);
        }
    }
}
