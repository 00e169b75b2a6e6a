//! The core of a shard, for each protocol.
//!
//! A shard decides which thread does a turn, and when. A core does the turn: that of RoCE
//! with datagrams, that of iWARP with streams. The protocol is decided once per call.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ferroce_net::Wire;
use ferroce_net::local::{Doorbell, HostSender, HostWire};
use ferroce_roce::{AttrMask, QpAttr, ReceivedMessages, Time, VerbsError};
use ferroce_shard::{Caller, Faults};

use crate::adapter::Adapter;
use crate::credits::MappedCredits;
use crate::streams::{Observer, StreamCore};

/// The core of a RoCE shard.
pub(crate) type RoceCore = ferroce_shard::Core<HostWire, MappedCredits>;

/// Packets that a thread sends.
pub(crate) type Sending = ferroce_shard::Sending<HostWire, MappedCredits>;

/// The state that a shard's lock protects.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one for each slot; a box would cost each call a load
pub(crate) enum Core {
    Roce(RoceCore),
    Iwarp(StreamCore),
}

impl Core {
    /// Borrows the engine for a verbs call.
    #[inline]
    pub(crate) fn adapter(&mut self) -> Adapter<'_> {
        match self {
            Core::Roce(core) => Adapter::Roce(&mut core.engine),
            Core::Iwarp(core) => Adapter::Iwarp(&mut core.engine),
        }
    }

    /// Returns the descriptors that are readable when something has arrived.
    pub(crate) fn descriptors(&self) -> std::io::Result<Vec<OwnedFd>> {
        match self {
            Core::Roce(core) => core.wire().descriptors(),
            Core::Iwarp(core) => core.descriptors(),
        }
    }

    /// Returns the number of the slot.
    pub(crate) fn slot(&self) -> u8 {
        match self {
            Core::Roce(core) => core.wire().properties().slot,
            Core::Iwarp(core) => core.slot(),
        }
    }

    /// Returns the channels to programs of this host.
    pub(crate) fn doorbell(&self) -> &Arc<Doorbell> {
        match self {
            Core::Roce(core) => core.wire().doorbell(),
            Core::Iwarp(core) => core.doorbell(),
        }
    }

    /// Forgets channels whose other end is closed. Bytes that have arrived before are still
    /// received.
    pub(crate) fn remove_closed_channels(&mut self) {
        if let Some((wire, sender)) = self.wire_halves() {
            wire.remove_closed(sender);
        } else if let Core::Iwarp(core) = self {
            core.doorbell().remove_closed();
        }
    }

    /// Returns the name of a queue pair's wire: `local` for shared memory.
    pub(crate) fn wire_of(&self, qpn: u32) -> &'static str {
        match self {
            Core::Roce(core) if core.engine.sends_in_memory(qpn) => "local",
            Core::Roce(_) => "udp",
            Core::Iwarp(core) => core.wire_of(qpn),
        }
    }

    /// Returns the wire and its sender, unless a thread sends.
    pub(crate) fn wire_halves(&mut self) -> Option<(&mut HostWire, &mut HostSender)> {
        match self {
            Core::Roce(core) => core.wire_halves(),
            Core::Iwarp(_) => None,
        }
    }

    #[inline]
    pub(crate) fn turn(
        &mut self,
        now: Time,
        process: &mut impl Observer,
        caller: Caller,
    ) -> (usize, Option<Sending>) {
        match self {
            Core::Roce(core) => core.turn(now, process, caller),
            Core::Iwarp(core) => (core.turn(now, process, caller), None),
        }
    }

    #[inline]
    pub(crate) fn posted(
        &mut self,
        now: Time,
        process: &mut impl Observer,
        qpn: u32,
    ) -> Option<Sending> {
        match self {
            Core::Roce(core) => core.posted(now, process, qpn),
            Core::Iwarp(core) => {
                core.transmit(now, process);
                None
            }
        }
    }

    #[inline]
    pub(crate) fn begin_transmit(
        &mut self,
        now: Time,
        process: &mut impl Observer,
    ) -> Option<Sending> {
        match self {
            Core::Roce(core) => core.begin_transmit(now, process),
            Core::Iwarp(core) => {
                core.transmit(now, process);
                None
            }
        }
    }

    /// Returns memory of channels that is not used any more to the kernel. Returns true if some is left: call it again
    /// later.
    pub(crate) fn shrink_rings(&mut self) -> bool {
        match self {
            // None while a thread sends.
            Core::Roce(core) => core.wire_halves().is_none_or(|(_, sender)| sender.shrink()),
            Core::Iwarp(core) => core.shrink_rings(),
        }
    }

    /// Puts faults of packets in force, or ends them.
    pub(crate) fn set_faults(&mut self, now: Time, faults: Option<&Faults>) {
        match self {
            Core::Roce(core) => core.set_faults(now, faults),
            Core::Iwarp(core) => core.set_faults(faults),
        }
    }

    /// Sends the packets that faults hold back.
    pub(crate) fn send_held(&mut self, now: Time) {
        match self {
            Core::Roce(core) => core.send_held(now),
            Core::Iwarp(_) => {}
        }
    }

    /// Chooses whether the engine records its decisions, and whether streams are shown.
    pub(crate) fn observe(&mut self, observed: bool) {
        match self {
            Core::Roce(core) => core.observe(observed),
            Core::Iwarp(core) => core.observe(observed),
        }
    }

    /// Has batches prepared while a thread sends, or no longer.
    pub(crate) fn prepare_batches(&mut self, begins: bool) {
        match self {
            Core::Roce(core) => core.prepare_batches(begins),
            // Streams are sent under the lock.
            Core::Iwarp(_) => {}
        }
    }

    #[inline]
    pub(crate) fn end_transmit(
        &mut self,
        now: Time,
        process: &mut impl Observer,
        sending: Sending,
        continues: bool,
    ) -> Option<Sending> {
        match self {
            Core::Roce(core) => core.end_transmit(now, process, sending, continues),
            // Streams are sent under the lock.
            Core::Iwarp(_) => None,
        }
    }

    pub(crate) fn transmit(&mut self, now: Time, process: &mut impl Observer) {
        match self {
            Core::Roce(core) => core.transmit(now, process),
            Core::Iwarp(core) => core.transmit(now, process),
        }
    }

    pub(crate) fn flush_deferred(&mut self, now: Time, process: &mut impl Observer) {
        match self {
            Core::Roce(core) => core.flush_deferred(now, process),
            Core::Iwarp(core) => core.flush(now, process),
        }
    }

    #[inline]
    pub(crate) fn report(&mut self, process: &mut impl Observer) {
        match self {
            Core::Roce(core) => core.report(process),
            Core::Iwarp(core) => core.report(process),
        }
    }

    /// Returns true if [`Core::report`] has something to report.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        match self {
            Core::Roce(core) => core.has_events(),
            Core::Iwarp(_) => true,
        }
    }

    /// Returns the numbers of messages that were received whole.
    #[inline]
    pub(crate) fn received_messages(&self) -> ReceivedMessages {
        match self {
            Core::Roce(core) => core.engine.received_messages(),
            Core::Iwarp(core) => core.engine.received_messages(),
        }
    }

    /// Returns true if a turn of a poller has nothing to do. If not, the caller does a turn.
    #[inline]
    pub(crate) fn finds_nothing(&mut self, now: Time) -> bool {
        match self {
            Core::Roce(core) => core.finds_nothing(now),
            Core::Iwarp(core) => core.finds_nothing(now),
        }
    }

    /// Returns true if packets arrive through memory, and none waits. It needs no time.
    #[inline]
    pub(crate) fn is_memory_quiet(&self) -> bool {
        match self {
            Core::Roce(core) => core.is_memory_quiet(),
            Core::Iwarp(core) => core.is_memory_quiet(),
        }
    }

    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        match self {
            Core::Roce(core) => core.has_deferred(),
            Core::Iwarp(_) => false,
        }
    }

    pub(crate) fn has_waiting_posts(&self) -> bool {
        match self {
            Core::Roce(core) => core.has_waiting_posts(),
            Core::Iwarp(_) => false,
        }
    }

    #[inline]
    pub(crate) fn is_sending(&self) -> bool {
        match self {
            Core::Roce(core) => core.is_sending(),
            Core::Iwarp(_) => false,
        }
    }

    /// Returns true if a thread sends, and no packets are assembled for it yet.
    pub(crate) fn wants_packets(&self) -> bool {
        match self {
            Core::Roce(core) => core.is_sending() && !core.has_prepared(),
            Core::Iwarp(_) => false,
        }
    }

    #[inline]
    pub(crate) fn next_deadline(&self, now: Time) -> Option<Time> {
        match self {
            Core::Roce(core) => core.next_deadline(now),
            Core::Iwarp(core) => core.next_deadline(now),
        }
    }

    pub(crate) fn modify_qp(
        &mut self,
        now: Time,
        process: &mut impl Observer,
        qpn: u32,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), VerbsError> {
        match self {
            Core::Roce(core) => core.modify_qp(now, process, qpn, attr, mask),
            Core::Iwarp(core) => core.modify_qp(now, process, qpn, attr, mask),
        }
    }

    pub(crate) fn destroy_qp(
        &mut self,
        now: Time,
        process: &mut impl Observer,
        qpn: u32,
    ) -> Result<(), VerbsError> {
        match self {
            Core::Roce(core) => core.destroy_qp(now, process, qpn),
            Core::Iwarp(core) => core.destroy_qp(now, process, qpn),
        }
    }

    /// Borrows the core of RoCE, for calls that only RoCE has.
    pub(crate) fn roce(&mut self) -> Result<&mut RoceCore, VerbsError> {
        match self {
            Core::Roce(core) => Ok(core),
            Core::Iwarp(_) => Err(VerbsError::NotSupported("iWARP has no datagrams".into())),
        }
    }

    /// Borrows the core of iWARP, for calls that only iWARP has.
    pub(crate) fn iwarp(&mut self) -> Result<&mut StreamCore, VerbsError> {
        match self {
            Core::Iwarp(core) => Ok(core),
            Core::Roce(_) => Err(VerbsError::NotSupported("RoCE has no streams".into())),
        }
    }
}
