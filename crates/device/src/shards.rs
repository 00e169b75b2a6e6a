//! The shards of a link, which exist once the process has slots of it.

use std::sync::{Arc, OnceLock};

use ferroce_net::slot_of_qpn;
use ferroce_roce::{Counter, Counters};

use crate::shard::Shard;

/// The shards of a link. They are set once.
#[derive(Debug, Default)]
pub(crate) struct Shards(OnceLock<Vec<Slot>>);

/// A slot with its shard.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The top byte of the queue pair numbers.
    pub(crate) number: u8,
    pub(crate) shard: Arc<Shard>,
    pub(crate) counters: Arc<Counters>,
}

impl Shards {
    /// Sets the shards, unless they are set.
    pub(crate) fn set(&self, slots: Vec<Slot>) {
        let _set_before = self.0.set(slots);
    }

    /// Returns true if the shards are set.
    pub(crate) fn exist(&self) -> bool {
        self.0.get().is_some()
    }

    /// Returns the slots; none before they are set.
    pub(crate) fn slots(&self) -> &[Slot] {
        self.0.get().map_or(&[], Vec::as_slice)
    }

    /// Returns all shards.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Shard>> {
        self.slots().iter().map(|slot| &slot.shard)
    }

    /// Returns the shard with this index. Indexes come from queue pairs, so the shards are set.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> &Arc<Shard> {
        &self.slots()[index].shard
    }

    /// Returns the shard of a queue pair number.
    pub(crate) fn of_qpn(&self, qpn: u32) -> Option<&Arc<Shard>> {
        let mut slots = self.slots().iter();
        let slot = slots.find(|slot| slot.number == slot_of_qpn(qpn))?;
        Some(&slot.shard)
    }

    /// Returns true if packets were sent or received.
    pub(crate) fn have_traffic(&self) -> bool {
        let packets = [Counter::SentPkts, Counter::RcvdPkts];
        let mut counters = self.slots().iter().map(|slot| &slot.counters);
        counters.any(|counters| packets.iter().any(|&packet| counters.get(packet) > 0))
    }
}
