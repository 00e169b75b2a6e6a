//! A queue pair for datagrams from and to one local address.

use core::ffi::c_int;
use core::ptr;
use std::net::{IpAddr, SocketAddr};

use crate::ah::{ibv_create_ah, ibv_destroy_ah};
use crate::ffi::*;
use crate::gids::ibv_query_gid;

use crate::rsocket::buffer::Buffer;
use crate::rsocket::id::Id;
use crate::rsocket::queue::{Queue, Sizes};
use crate::rsocket::sys;

/// What a datagram may hold, header included, and what comes before it in memory.
pub(super) const MAX_MESSAGE: usize = 4096;
const GRH: usize = 40;
const SLOT: usize = GRH + MAX_MESSAGE;

/// Completions of receives have this in their numbers; the rest is the slot.
const RECEIVE: u64 = 1 << 32;

/// The queue pair of an address.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) ip: IpAddr,
    pub(super) queue: Queue,
    send: Buffer,
    receive: Buffer,
    free: Vec<u32>,
    gid_index: u8,
    /// The queue pair goes first.
    id: Id,
}

/// A datagram that has arrived: the slot, and how long it is.
pub(super) struct Arrived {
    pub(super) slot: u32,
    pub(super) length: u32,
}

impl Local {
    pub(super) fn new(ip: IpAddr, sizes: Sizes) -> Result<Local, c_int> {
        let id = Id::new(RDMA_PS_UDP)?;
        id.bind_to_device(&SocketAddr::new(ip, 0))?;
        let mut queue = Queue::new(&id, IBV_QPT_UD, sizes)?;
        let (pd, access) = (id.pd(), IBV_ACCESS_LOCAL_WRITE);
        let send = Buffer::new(pd, queue.sizes.send as usize * SLOT, access)?;
        let receive = Buffer::new(pd, queue.sizes.receive as usize * SLOT, access)?;
        for slot in 0..queue.sizes.receive {
            post(&mut queue, &receive, slot)?;
        }
        Ok(Local {
            ip,
            free: (0..queue.sizes.send).collect(),
            gid_index: gid_index(&id, ip)?,
            queue,
            send,
            receive,
            id,
        })
    }

    /// Takes completions: what has arrived is handed over.
    pub(super) fn progress(&mut self, mut arrived: impl FnMut(Arrived)) -> usize {
        let Local { queue, free, .. } = self;
        let mut failed = Vec::new();
        let count = queue.poll(|wc| {
            let slot = wc.wr_id as u32;
            if wc.wr_id & RECEIVE == 0 {
                free.push(slot);
            } else if wc.status == IBV_WC_SUCCESS && wc.byte_len as usize >= GRH {
                let length = wc.byte_len - GRH as u32;
                arrived(Arrived { slot, length });
            } else {
                failed.push(slot);
            }
        });
        for slot in failed {
            self.give_back(slot);
        }
        count
    }

    /// The bytes of a datagram that has arrived.
    pub(super) fn bytes(&self, arrived: &Arrived) -> &[u8] {
        let at = arrived.slot as usize * SLOT + GRH;
        let length = (arrived.length as usize).min(MAX_MESSAGE);
        let start = ptr::with_exposed_provenance::<u8>(self.receive.addr() as usize + at);
        // SAFETY: the slot is not posted, so nobody writes to it.
        unsafe { core::slice::from_raw_parts(start, length) }
    }

    /// The slot may receive again.
    pub(super) fn give_back(&mut self, slot: u32) {
        if let Err(errno) = post(&mut self.queue, &self.receive, slot) {
            tracing::debug!("a receive could not be posted: errno {errno}");
        }
    }

    pub(super) fn can_send(&self) -> bool {
        !self.free.is_empty()
    }

    /// Sends parts as one datagram. EAGAIN, if all slots are in use.
    pub(super) fn send(&mut self, parts: &[&[u8]], to: &Way) -> Result<(), c_int> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if length > MAX_MESSAGE {
            return Err(libc::EMSGSIZE);
        }
        let slot = self.free.pop().ok_or(libc::EAGAIN)?;
        let mut at = slot as usize * SLOT;
        for part in parts {
            self.send.write(at, part);
            at += part.len();
        }
        let mut sge = self.send.sge(slot * SLOT as u32, length as u32);
        let way = ibv_send_wr_ud {
            ah: to.ah,
            remote_qpn: to.qpn,
            remote_qkey: RDMA_UDP_QKEY,
        };
        let sent = self
            .queue
            .send_to(core::slice::from_mut(&mut sge), way, slot.into());
        if sent.is_err() {
            self.free.push(slot);
        }
        sent
    }

    /// The way to a peer's queue pair.
    pub(super) fn way(&self, peer: IpAddr, qpn: u32) -> Result<Way, c_int> {
        let mut attr: ibv_ah_attr = zeroed();
        attr.is_global = 1;
        attr.port_num = 1;
        attr.grh.hop_limit = 64;
        attr.grh.sgid_index = self.gid_index;
        attr.grh.dgid = ibv_gid { raw: gid(peer) };
        // SAFETY: a live protection domain, and attributes that are only read.
        let ah = unsafe { ibv_create_ah(self.id.pd(), &mut attr) };
        if ah.is_null() {
            return Err(sys::errno());
        }
        Ok(Way { ah, qpn })
    }
}

fn post(queue: &mut Queue, buffer: &Buffer, slot: u32) -> Result<(), c_int> {
    let part = buffer.sge(slot * SLOT as u32, SLOT as u32);
    queue.receive(part, RECEIVE | u64::from(slot))
}

/// Where a peer is reached. It goes before the queue pair that uses it.
#[derive(Debug)]
pub(super) struct Way {
    ah: *mut ibv_ah,
    pub(super) qpn: u32,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Way {}

impl Drop for Way {
    fn drop(&mut self) {
        // SAFETY: made by us; work requests have a copy of what is in it.
        unsafe { ibv_destroy_ah(self.ah) };
    }
}

fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Which entry of the GID table stands for an address.
fn gid_index(id: &Id, ip: IpAddr) -> Result<u8, c_int> {
    let wanted = gid(ip);
    let found = (0..=u8::MAX).find(|index| {
        let mut found = ibv_gid { raw: [0; 16] };
        // SAFETY: a live context, and a place for the answer.
        let asked = unsafe { ibv_query_gid(id.verbs(), 1, (*index).into(), &mut found) };
        // SAFETY: plain bytes in either case.
        asked == 0 && unsafe { found.raw } == wanted
    });
    found.ok_or(libc::EADDRNOTAVAIL)
}
