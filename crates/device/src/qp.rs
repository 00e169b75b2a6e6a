//! Queue pairs of a device.

use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use std::sync::{Arc, Weak};

use ferroce_net::{Source, has_address, slot_of_qpn};
use ferroce_roce::{
    AttrMask, Cq as CompletionQueue, QpAttr, QpCap, QpInit, QpQuery, QpState, QpType, RecvWr,
    SendWr, Time, VerbsError,
};
use ferroce_wire::{Mtu, rc_source_port, ud_source_port};

use crate::adapter::Adapter;
use crate::address::AhAttr;
use crate::core::Core;
use crate::device::{Device, closed, port_mtu};
use crate::shard::Shard;

/// A queue pair. Dropping it destroys it.
///
/// ```no_run
/// # fn example(qp: &ferroce_device::Qp, remote_addr: u64, rkey: u32) -> Result<(), Box<dyn std::error::Error>> {
/// use ferroce_device::transport::{SendData, SendFlags, SendOp, SendWr};
///
/// qp.post_send(SendWr {
///     wr_id: 1,
///     op: SendOp::Write { remote_addr, rkey, imm: None },
///     flags: SendFlags::SIGNALED,
///     data: SendData::Inline(b"hello"),
///     ud: None,
///     xrc_srq: 0,
/// })?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Qp {
    device: Arc<Device>,
    shard: Arc<Shard>,
    qpn: u32,
    cap: QpCap,
    kind: QpType,
    /// The completion queue of its receives.
    receives: Weak<CompletionQueue>,
    /// The path MTU that the program set, as a number of `enum ibv_mtu`, if it is above the
    /// active MTU of the link; 0 otherwise.
    asked_mtu: AtomicU8,
    /// UDP source port of the queue pair's packets; 0 before it has one.
    source_port: AtomicU16,
}

impl Qp {
    pub(crate) fn new(
        device: Arc<Device>,
        shard: Arc<Shard>,
        qpn: u32,
        cap: QpCap,
        init: &QpInit,
    ) -> Qp {
        Qp {
            device,
            shard,
            qpn,
            cap,
            kind: init.qp_type,
            receives: init
                .recv_cq
                .as_ref()
                .map(Arc::downgrade)
                .unwrap_or_default(),
            asked_mtu: AtomicU8::new(0),
            source_port: AtomicU16::new(0),
        }
    }

    /// Returns the queue pair number.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Returns the granted sizes.
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Returns true if the completion queue of its receives has completions that the program has
    /// not polled.
    pub fn has_unpolled_receives(&self) -> bool {
        self.receives.upgrade().is_some_and(|cq| !cq.is_empty())
    }

    /// Changes attributes and state. With [`AttrMask::AV`], `ah` is the route.
    ///
    /// A path MTU above the port's active MTU is accepted, as rxe does, and a query reports
    /// it. Packets carry no more than the active MTU: longer ones would be lost, because
    /// packets are never fragmented. The peer does the same if its netdev has the same MTU.
    pub fn modify(
        &self,
        attr: &QpAttr,
        mask: AttrMask,
        ah: Option<&AhAttr>,
    ) -> Result<(), VerbsError> {
        let mut attr = *attr;
        if self.device.link().is_iwarp() {
            // siw takes no notice of the attributes of a route.
            return self.shard.with_core(|core, now, process| {
                self.check_open()?;
                core.modify_qp(now, process, self.qpn, &attr, mask)
            });
        }
        if mask.contains(AttrMask::AV) {
            attr.av = match ah {
                Some(ah) => Some(self.device.resolve(ah)?),
                None => None,
            };
        }
        let asked = attr.path_mtu;
        let cut = mask.contains(AttrMask::PATH_MTU) && asked > port_mtu(&self.device.link());
        if cut {
            attr.path_mtu = port_mtu(&self.device.link());
        }
        let connects = mask.contains(AttrMask::STATE) && attr.state == QpState::Rtr;
        let peer = attr.av.filter(|_| connects && !self.kind.is_datagram());
        let peer_is_here =
            peer.is_some_and(|av| has_address(av.destination, self.device.link().ifindex));
        let slot = slot_of_qpn(attr.dest_qpn);
        let in_memory = peer_is_here && self.device.shared.reaches_in_memory(&self.shard, slot);
        // The route of a connection stays as it is: its peer has pinned it.
        let redirected = attr
            .av
            .filter(|_| mask.contains(AttrMask::AV) && !connects && !self.kind.is_datagram());
        let stays_here =
            redirected.is_some_and(|av| has_address(av.destination, self.device.link().ifindex));
        self.shard.with_core(|core, now, process| {
            self.check_open()?;
            let before = stays_here.then(|| self.local_route(core)).flatten();
            core.modify_qp(now, process, self.qpn, &attr, mask)?;
            if mask.contains(AttrMask::AV) {
                self.device.forget_path(self.qpn);
            }
            let Core::Roce(core) = core else {
                return Ok(());
            };
            if peer_is_here {
                core.engine.pin_peer_port(self.qpn)?;
                core.engine.set_local_peer(self.qpn, slot, in_memory)?;
            }
            if let Some((slot, in_memory)) = before {
                core.engine.set_local_peer(self.qpn, slot, in_memory)?;
            }
            if cut {
                tracing::debug!(
                    "queue pair {:#x}: path MTU {} is above the active MTU, packets carry {} bytes",
                    self.qpn,
                    asked.bytes(),
                    attr.path_mtu.bytes()
                );
                self.asked_mtu
                    .store(asked.to_enum() as u8, Ordering::Relaxed);
            } else if mask.contains(AttrMask::PATH_MTU)
                || mask.contains(AttrMask::STATE) && attr.state == QpState::Reset
            {
                self.asked_mtu.store(0, Ordering::Relaxed);
            }
            let port = match (self.kind.is_datagram(), attr.av) {
                // A peer on this host accepts no packets from another port, so the port stays
                // if the address changes later. The other IP family needs its own socket.
                (false, Some(av)) if mask.contains(AttrMask::AV) => {
                    let want = match connects {
                        true => rc_source_port(av.flow_label, self.qpn, attr.dest_qpn),
                        false => self.source_port.load(Ordering::Relaxed),
                    };
                    Some((want, Source::Address(av.source)))
                }
                (true, _) if mask.contains(AttrMask::STATE) && attr.state == QpState::Init => {
                    Some((ud_source_port(self.qpn), Source::Any))
                }
                _ => None,
            };
            if let Some((want, source)) = port {
                match core.choose_port(self.qpn, want, source) {
                    Ok(port) => self.source_port.store(port, Ordering::Relaxed),
                    Err(error) => {
                        tracing::warn!(
                            "no UDP source port for queue pair {:#x}: {error}",
                            self.qpn
                        );
                    }
                }
            }
            Ok(())
        })
    }

    /// Returns the slot of the peer, and true if packets to it travel through shared memory.
    fn local_route(&self, core: &mut Core) -> Option<(u8, bool)> {
        let engine = &core.roce().ok()?.engine;
        let query = engine.query_qp(self.qpn).ok()?;
        let in_memory = engine.sends_in_memory(self.qpn);
        Some((slot_of_qpn(query.attr.dest_qpn), in_memory))
    }

    /// Returns true if packets to the peer travel through shared memory. For UD: if the last
    /// datagram did.
    pub fn sends_in_memory(&self) -> bool {
        self.shard.with_core(|core, _, _| {
            core.roce()
                .is_ok_and(|core| core.engine.sends_in_memory(self.qpn))
        })
    }

    /// Returns attributes, state and sizes.
    pub fn query(&self) -> Result<QpQuery, VerbsError> {
        let mut query = self.shard.with(|adapter, _| {
            self.check_open()?;
            adapter.query_qp(self.qpn)
        })?;
        let asked = self.asked_mtu.load(Ordering::Relaxed);
        if let Some(asked) = Mtu::from_enum(asked.into()) {
            query.attr.path_mtu = asked;
        }
        Ok(query)
    }

    /// Posts to the send queue, and sends as many packets as the window permits.
    pub fn post_send(&self, wr: SendWr<'_>) -> Result<(), VerbsError> {
        self.posting(|posting| posting.send(wr))
    }

    /// Posts several work requests, and sends them together. Returns how many were
    /// accepted, and the error of the next.
    pub fn post_sends<'a>(
        &self,
        wrs: impl IntoIterator<Item = SendWr<'a>>,
    ) -> (usize, Option<VerbsError>) {
        self.posting(|posting| {
            let mut taken = 0;
            for wr in wrs {
                if let Err(error) = posting.send(wr) {
                    return (taken, Some(error));
                }
                taken += 1;
            }
            (taken, None)
        })
    }

    /// Holds the queue pair for several posts, whose packets are sent together afterwards.
    /// `work` must not call this device: it would deadlock.
    pub fn posting<T>(&self, work: impl FnOnce(&mut Posting<'_>) -> T) -> T {
        let (result, sought) = self.shard.post(self.qpn, |adapter, now| {
            let mut posting = Posting {
                adapter,
                now,
                qpn: self.qpn,
                is_closed: self.device.is_closed(),
                sends: false,
                sought: Vec::new(),
            };
            let result = work(&mut posting);
            let Posting {
                mut adapter,
                sends,
                mut sought,
                ..
            } = posting;
            if !sought.is_empty() {
                self.shard.use_open_channels(&mut adapter, now, &mut sought);
            }
            ((result, sought), sends)
        });
        if !sought.is_empty() {
            self.device.shared.seek_routes(&self.shard, sought);
        }
        result
    }

    /// Posts to the receive queue.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        self.posting(|posting| posting.recv(wr))
    }

    /// Returns the number of bytes of completed sends that the peer's host may not have yet.
    ///
    /// On RoCE there are none: a send completes when the peer has acknowledged it. On iWARP it
    /// completes when TCP has accepted it. If the queue pair is destroyed before TCP has
    /// delivered the bytes, and the peer sends something later, the bytes are lost.
    pub fn undelivered(&self) -> usize {
        self.shard.with_core(|core, _, _| {
            let core = core.iwarp();
            core.map_or(0, |core| core.unacknowledged(self.qpn))
        })
    }

    /// Destroys the queue pair. Fails while it is attached to a multicast group.
    pub fn destroy(&self) -> Result<(), VerbsError> {
        self.shard.with_core(|core, now, process| {
            if self.device.is_closed() {
                // The device has destroyed it.
                return Ok(());
            }
            core.destroy_qp(now, process, self.qpn)?;
            self.device.forget_qp(self.qpn);
            Ok(())
        })
    }

    /// Refuses a call after the device was closed: another queue pair may have the number.
    fn check_open(&self) -> Result<(), VerbsError> {
        match self.device.is_closed() {
            true => Err(closed()),
            false => Ok(()),
        }
    }

    /// Attaches the queue pair to a multicast group, or detaches it.
    pub fn multicast(&self, group: core::net::IpAddr, join: bool) -> Result<(), VerbsError> {
        self.shard.with_core(|core, _, _| {
            self.check_open()?;
            let changed = match join {
                true => core.adapter().attach_multicast(self.qpn, group)?,
                false => core.adapter().detach_multicast(self.qpn, group)?,
            };
            let roce = core.roce()?;
            let result = match (changed, join) {
                (true, true) => roce.join_multicast(group),
                (true, false) => roce.leave_multicast(group),
                (false, _) => Ok(()),
            };
            if let Err(error) = result {
                if join {
                    let _undone = core.adapter().detach_multicast(self.qpn, group);
                }
                return Err(VerbsError::Invalid(format!(
                    "multicast group {group}: {error}"
                )));
            }
            Ok(())
        })
    }
}

/// A queue pair held for several posts, as [`Qp::posting`] passes it.
pub struct Posting<'a> {
    adapter: Adapter<'a>,
    now: Time,
    qpn: u32,
    /// True if the device was closed: another queue pair may have the number.
    is_closed: bool,
    /// True if the send queue has got work requests.
    sends: bool,
    /// Destinations on this host to which no route is known yet.
    sought: Vec<u32>,
}

impl Posting<'_> {
    /// Posts to the send queue.
    ///
    /// The function is always inlined: a call would copy the work request once more.
    #[inline(always)]
    pub fn send(&mut self, wr: SendWr<'_>) -> Result<(), VerbsError> {
        if self.is_closed {
            return Err(closed());
        }
        self.sends = true;
        if let (Some(target), Adapter::Roce(engine)) = (&wr.ud, &mut self.adapter)
            && engine.lacks_datagram_route(target)
        {
            engine.seek_datagram_route(target.remote_qpn);
            self.sought.push(target.remote_qpn);
        }
        self.adapter.post_send(self.now, self.qpn, wr)
    }

    /// Checks whether the send queue would accept a work request after `ahead` others.
    pub fn check_send(&self, wr: &SendWr<'_>, ahead: usize) -> Result<(), VerbsError> {
        if self.is_closed {
            return Err(closed());
        }
        self.adapter.check_send(self.qpn, wr, ahead)
    }

    /// Posts to the receive queue.
    #[inline]
    pub fn recv(&mut self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        if self.is_closed {
            return Err(closed());
        }
        self.adapter.post_recv(self.now, self.qpn, wr)
    }
}

impl core::fmt::Debug for Posting<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Posting")
            .field("qpn", &self.qpn)
            .finish_non_exhaustive()
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let _gone_already = self.destroy();
    }
}
