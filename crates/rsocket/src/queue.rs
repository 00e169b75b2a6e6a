//! A queue pair with one completion queue, and the work requests of rsockets.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ferroce_device::transport::{
    Access, Arm, Pd, QpCap, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, UdTarget, Wc,
};
use ferroce_device::{Buffer, CompletionChannel, Cq, Device, Qp};
use ferroce_rdmacm::{LinkDevice, QpConfig};

use crate::cm::{self, Id};
use crate::{Errno, Result, error, sys};

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Number of work requests in the send queue.
    pub(crate) send: u32,
    /// Number of work requests in the receive queue.
    pub(crate) receive: u32,
    /// Maximum number of inline bytes.
    pub(crate) inline: u32,
}

/// The queue pair of an id with its completion queue and completion channel.
#[derive(Debug)]
pub(crate) struct Queue {
    id: Id,
    /// Before `cq`: fields are dropped in this order, and a completion queue goes last.
    qp: Arc<Qp>,
    cq: OwnedCq,
    channel: Arc<CompletionChannel>,
    link: LinkDevice,
    /// Memory of messages, on an iWARP link. iWARP has no immediate data: a message is a SEND
    /// of its own, after the WRITE that it belongs to.
    messages: Option<Buffer>,
    is_armed: bool,
    pub(crate) sizes: Sizes,
}

/// A completion queue that is destroyed when it is dropped.
#[derive(Debug)]
struct OwnedCq {
    cq: Arc<Cq>,
    device: Arc<Device>,
}

/// Number of completions that one poll takes.
const BATCH: usize = 32;

/// Bytes of a message that is a SEND of its own.
const MESSAGE: usize = size_of::<u32>();

/// The wr_id of a WRITE whose message follows. The message completes both.
pub(crate) const HALF: u64 = 0;

/// Maximum size of a send or receive queue: both complete in one queue, and rxe's
/// completion queues have at most 2^20 - 1 entries.
const MAX_QUEUE: u32 = ((1 << 20) - 1) / 2;
/// The same on an iWARP link, whose queues have at most 2^15 entries.
const MAX_IWARP_QUEUE: u32 = (1 << 15) / 2;
/// Most inline bytes on an iWARP link.
const MAX_IWARP_INLINE: u32 = 80;

impl Queue {
    /// Creates the queue pair of an id.
    pub(crate) fn new(id: &Id, wanted: Sizes) -> Result<Queue> {
        let link = id.device().ok_or(Errno::NODEV)?;
        let device = link.device();
        let is_iwarp = link.is_iwarp() && id.inner().qp_type() == QpType::Rc;
        let most = if is_iwarp { MAX_IWARP_QUEUE } else { MAX_QUEUE };
        let mut sizes = Sizes {
            send: wanted.send.min(most),
            receive: wanted.receive.min(most),
            inline: match is_iwarp {
                true => wanted.inline.min(MAX_IWARP_INLINE),
                false => wanted.inline,
            },
        };
        // Each message takes a second work request. Receives for control messages, for which
        // the peer needs no credit: iWARP ends a connection that has no receive.
        let factor = if is_iwarp { 2 } else { 1 };
        let channel = device.create_channel().map_err(error::of_device)?;
        sys::set_nonblocking(channel.fd())?;
        let cq = OwnedCq {
            cq: device
                .create_cq(
                    factor * (sizes.send + sizes.receive),
                    Some(Arc::clone(&channel)),
                )
                .map_err(error::of_verbs)?,
            device: Arc::clone(device),
        };
        let config = QpConfig {
            pd: None,
            send_cq: &cq.cq,
            recv_cq: &cq.cq,
            cap: QpCap {
                max_send_wr: factor * sizes.send,
                max_recv_wr: factor * sizes.receive,
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: sizes.inline,
            },
            sq_sig_all: true,
        };
        let qp = id.inner().create_qp(&config).map_err(cm::errno)?;
        sizes.inline = qp.cap().max_inline_data;
        let messages = match is_iwarp {
            true => {
                let length = (factor * sizes.receive) as usize * MESSAGE;
                let access = Access::LOCAL_WRITE;
                let buffer = Buffer::new(device, link.pd(), length, access);
                Some(buffer.map_err(error::of_verbs)?)
            }
            false => None,
        };
        Ok(Queue {
            id: id.clone(),
            qp,
            cq,
            channel,
            link,
            messages,
            is_armed: false,
            sizes,
        })
    }

    /// Returns the device of the queue pair, and its protection domain.
    pub(crate) fn device(&self) -> (&Arc<Device>, &Arc<Pd>) {
        (self.link.device(), self.link.pd())
    }

    /// Returns the descriptor that is readable after a completion, if the queue was armed.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Returns the queue pair number.
    pub(crate) fn number(&self) -> u32 {
        self.qp.qpn()
    }

    /// Requests that the next completion makes the descriptor readable.
    pub(crate) fn arm(&mut self) {
        if !self.is_armed {
            self.cq.cq.arm(Arm::Any);
            self.is_armed = true;
        }
    }

    /// Takes completion events off the descriptor. Returns true if there was one: then the
    /// queue must be armed again.
    pub(crate) fn take_events(&mut self) -> bool {
        let mut taken = false;
        while self.channel.take().is_ok() {
            taken = true;
        }
        self.is_armed &= !taken;
        taken
    }

    /// Takes all completions and returns their number.
    ///
    /// `each` gets a function that returns the message of a receive.
    pub(crate) fn poll(&mut self, mut each: impl FnMut(&Wc, &dyn Fn() -> u32)) -> usize {
        let mut total = 0;
        let messages = self.messages.as_ref();
        loop {
            let count = self
                .cq
                .cq
                .poll(BATCH, |wc| each(&wc, &|| Queue::message(messages, &wc)));
            total += count;
            if count < BATCH {
                return total;
            }
        }
    }

    /// Posts the first receives of messages. The lower half of their `wr_id` is the number of
    /// the receive.
    pub(crate) fn post_first_receives(&mut self, wr_id: u64) -> Result<()> {
        let Some(messages) = &self.messages else {
            return self.post_empty_receives(self.sizes.receive as usize, wr_id);
        };
        let count = messages.len() / MESSAGE;
        (0..count as u64).try_for_each(|number| self.post_again(wr_id | number))
    }

    /// Posts a receive of messages again, by its `wr_id`.
    fn post_again(&self, wr_id: u64) -> Result<()> {
        let number = wr_id as u32 as usize;
        let part = self
            .messages
            .as_ref()
            .map(|messages| messages.sge(number * MESSAGE, MESSAGE as u32));
        let sges = part.as_slice();
        self.qp
            .post_recv(&RecvWr { wr_id, sges })
            .map_err(error::of_verbs)
    }

    /// Posts the receives of messages that have been taken again.
    pub(crate) fn post_receives_again(&mut self, taken: &[u64]) -> Result<()> {
        taken.iter().try_for_each(|wr_id| self.post_again(*wr_id))
    }

    /// True if messages are SENDs of their own, whose receives have numbers.
    pub(crate) fn has_messages(&self) -> bool {
        self.messages.is_some()
    }

    /// Returns the message of a completed receive.
    fn message(messages: Option<&Buffer>, wc: &Wc) -> u32 {
        let Some(messages) = messages else {
            return u32::from_be(wc.imm);
        };
        let mut bytes = [0; MESSAGE];
        messages.read(wc.wr_id as u32 as usize * MESSAGE, &mut bytes);
        // rdma-core sends it in the byte order of the host.
        u32::from_ne_bytes(bytes)
    }

    /// Posts receives without memory, for WRITEs with immediate data.
    pub(crate) fn post_empty_receives(&mut self, count: usize, wr_id: u64) -> Result<()> {
        self.qp
            .posting(|posting| {
                (0..count).try_for_each(|_| posting.recv(&RecvWr { wr_id, sges: &[] }))
            })
            .map_err(error::of_verbs)
    }

    /// Posts a receive for a part of a buffer.
    pub(crate) fn post_receive(&mut self, part: Sge, wr_id: u64) -> Result<()> {
        let sges = &[part];
        self.qp
            .post_recv(&RecvWr { wr_id, sges })
            .map_err(error::of_verbs)
    }

    /// Posts an RDMA WRITE, with or without immediate data.
    pub(crate) fn write(
        &mut self,
        data: SendData<'_>,
        (remote_addr, rkey): (u64, u32),
        immediate: Option<u32>,
        wr_id: u64,
    ) -> Result<()> {
        if let (Some(message), Some(_)) = (immediate, &self.messages) {
            let is_empty = matches!(data, SendData::Sges([]) | SendData::Inline([]));
            if !is_empty {
                let op = SendOp::Write {
                    remote_addr,
                    rkey,
                    imm: None,
                };
                self.post_send(op, data, None, HALF)?;
            }
            let op = SendOp::Send { imm: None };
            let bytes = message.to_ne_bytes();
            return self.post_send(op, SendData::Inline(&bytes), None, wr_id);
        }
        let op = SendOp::Write {
            remote_addr,
            rkey,
            imm: immediate.map(u32::to_be),
        };
        self.post_send(op, data, None, wr_id)
    }

    /// Returns the number of bytes of completed work requests that TCP has not delivered.
    pub(crate) fn undelivered(&self) -> usize {
        match self.has_messages() {
            true => self.qp.undelivered(),
            false => 0,
        }
    }

    /// Posts a datagram.
    pub(crate) fn send_to(&mut self, part: Sge, to: UdTarget, wr_id: u64) -> Result<()> {
        let op = SendOp::Send { imm: None };
        self.post_send(op, SendData::Sges(&[part]), Some(to), wr_id)
    }

    fn post_send(
        &mut self,
        op: SendOp,
        data: SendData<'_>,
        ud: Option<UdTarget>,
        wr_id: u64,
    ) -> Result<()> {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::empty(),
            data,
            ud,
            xrc_srq: 0,
        };
        self.qp.post_send(wr).map_err(error::of_verbs)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // The id's reference to the queue pair goes; ours is the last.
        self.id.inner().detach_qp();
    }
}

impl Drop for OwnedCq {
    fn drop(&mut self) {
        if let Err(refused) = self.device.destroy_cq(&self.cq) {
            tracing::debug!("the completion queue of an rsocket stays: {refused}");
        }
    }
}
