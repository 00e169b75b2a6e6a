//! A queue pair for datagrams from and to one local address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ferroce_device::transport::{Access, AddressHandle, UdTarget, WcStatus};
use ferroce_device::{AhAttr, Buffer};

use crate::cm::Id;
use crate::queue::{Queue, Sizes};
use crate::{Errno, Result, error};

/// Maximum length of a datagram on any link, including its address header.
pub(super) const MAX_MESSAGE: usize = 4096;
/// The smallest MTU of a port: a datagram that fits needs no look at the link.
const SMALLEST_MTU: usize = 256;
/// The device writes 40 bytes of GRH in front of each received datagram.
const GRH: usize = 40;
const SLOT: usize = GRH + MAX_MESSAGE;

/// Set in the `wr_id` of receives. The rest is the slot.
const RECEIVE: u64 = 1 << 32;

/// The Q_Key of all queue pairs of the UDP port space.
const QKEY: u32 = 0x0123_4567;

/// The queue pair of a local address.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) ip: IpAddr,
    pub(super) queue: Queue,
    send: Buffer,
    receive: Buffer,
    /// Slots of `send` that no work request uses.
    free: Vec<u32>,
    gid_index: u8,
}

/// A received datagram: its slot and its length.
pub(super) struct Received {
    pub(super) slot: u32,
    pub(super) length: u32,
}

impl Local {
    /// Creates a queue pair on the link with an address.
    pub(super) fn new(ip: IpAddr, sizes: Sizes) -> Result<Local> {
        let id = Id::datagram(SocketAddr::new(ip, 0))?;
        let mut queue = Queue::new(&id, sizes)?;
        let (device, pd) = queue.device();
        let sizes = queue.sizes;
        let buffer = |count| {
            let length = count as usize * SLOT;
            Buffer::new(device, pd, length, Access::LOCAL_WRITE).map_err(error::of_verbs)
        };
        let send = buffer(sizes.send)?;
        let receive = buffer(sizes.receive)?;
        let link = device.link();
        let gid = link.gids.iter().find(|gid| gid.address == ip);
        let gid_index = gid.and_then(|gid| u8::try_from(gid.index).ok());
        let gid_index = gid_index.ok_or(Errno::ADDRNOTAVAIL)?;
        for slot in 0..sizes.receive {
            post(&mut queue, &receive, slot)?;
        }
        Ok(Local {
            ip,
            free: (0..sizes.send).collect(),
            gid_index,
            queue,
            send,
            receive,
        })
    }

    /// Takes completions and returns their number. Hands over received datagrams.
    pub(super) fn progress(&mut self, mut received: impl FnMut(Received)) -> usize {
        let Local { queue, free, .. } = self;
        let mut failed = Vec::new();
        let count = queue.poll(|wc, _| {
            let slot = wc.wr_id as u32;
            if wc.wr_id & RECEIVE == 0 {
                free.push(slot);
            } else if wc.status == WcStatus::Success && wc.byte_len as usize >= GRH {
                let length = wc.byte_len - GRH as u32;
                received(Received { slot, length });
            } else {
                failed.push(slot);
            }
        });
        for slot in failed {
            self.repost(slot);
        }
        count
    }

    /// Copies a received datagram.
    pub(super) fn copy(&self, received: &Received) -> Vec<u8> {
        let mut bytes = vec![0; (received.length as usize).min(MAX_MESSAGE)];
        self.receive
            .read(received.slot as usize * SLOT + GRH, &mut bytes);
        bytes
    }

    /// Posts a receive slot again.
    pub(super) fn repost(&mut self, slot: u32) {
        if let Err(errno) = post(&mut self.queue, &self.receive, slot) {
            tracing::debug!("cannot post a receive of a datagram rsocket: {errno}");
        }
    }

    /// True if a send slot is free.
    pub(super) fn can_send(&self) -> bool {
        !self.free.is_empty()
    }

    /// Refuses a datagram that is longer than the present MTU of the port, address header included:
    /// EMSGSIZE. Posted, it would put the queue pair into the error state, and no datagram would be
    /// sent or received any more.
    pub(super) fn check_length(&self, length: usize) -> Result<()> {
        if length <= SMALLEST_MTU {
            return Ok(());
        }
        let link = self.queue.device().0.link();
        let mtu = (link.active_mtu as usize).clamp(SMALLEST_MTU, MAX_MESSAGE);
        if length > mtu {
            tracing::debug!(
                "a datagram rsocket refuses {length} bytes (address header included): the MTU of \
                 {} is {mtu}; send shorter datagrams, or raise the MTU of {}",
                link.name,
                link.netdev
            );
            return Err(Errno::MSGSIZE);
        }
        Ok(())
    }

    /// Sends slices as one datagram, whose length is checked; EAGAIN if all send slots are in use.
    pub(super) fn send(&mut self, parts: &[&[u8]], to: &Route) -> Result<()> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let slot = self.free.pop().ok_or(Errno::AGAIN)?;
        let mut at = slot as usize * SLOT;
        for part in parts {
            self.send.write(at, part);
            at += part.len();
        }
        let sge = self.send.sge(slot as usize * SLOT, length as u32);
        let target = UdTarget {
            ah: Arc::clone(&to.ah),
            remote_qpn: to.qpn,
            remote_qkey: QKEY,
        };
        let sent = self.queue.send_to(sge, target, slot.into());
        if sent.is_err() {
            self.free.push(slot);
        }
        sent
    }

    /// Returns the route to a peer's queue pair.
    pub(super) fn route(&self, peer: IpAddr, qpn: u32) -> Result<Route> {
        let dgid = match peer {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        let attr = AhAttr {
            sgid_index: self.gid_index,
            dgid,
            hop_limit: 64,
            port: 1,
            ..AhAttr::default()
        };
        let (device, pd) = self.queue.device();
        let ah = device.create_ah(pd, &attr).map_err(error::of_verbs)?;
        Ok(Route { ah, qpn })
    }
}

fn post(queue: &mut Queue, buffer: &Buffer, slot: u32) -> Result<()> {
    let part = buffer.sge(slot as usize * SLOT, SLOT as u32);
    queue.post_receive(part, RECEIVE | u64::from(slot))
}

/// The address handle of a peer and its queue pair number.
#[derive(Debug)]
pub(super) struct Route {
    ah: Arc<AddressHandle>,
    pub(super) qpn: u32,
}
