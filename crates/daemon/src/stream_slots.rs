//! Slots for streams: numbers and counters for programs on iWARP links.
//!
//! These slots have no sockets: a program opens its own TCP sockets. A slot gives the queue pairs
//! of a program their numbers, so that `rdma resource` shows each number once. They are counted
//! apart from the slots of UDP port 4791, and need no group.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use ferroce_control::protocol::SlotGrant;
use ferroce_control::{CounterPage, CounterValues, SlotKind};

use crate::owner::Owner;
use crate::refusal::Refusal;
use crate::server::Server;
use crate::slots::{OwnerId, Slots};

/// Returns the counters of an owner of slots for streams.
pub(crate) fn counted(owner: &Owner) -> CounterValues {
    let mut sum = CounterValues::default();
    for page in &owner.pages {
        match page.read(0) {
            Ok(values) => sum.add(&values),
            Err(error) => tracing::warn!(
                pid = owner.process.pid,
                %error,
                "cannot read the counters of a program"
            ),
        }
    }
    sum
}

/// Returns the grants of an owner's slots, and their descriptors.
pub(crate) fn grant(owner: &Owner) -> io::Result<(Vec<SlotGrant>, Vec<OwnedFd>)> {
    let grants = owner.slots.iter().map(|slot| SlotGrant {
        slot: *slot,
        v6: false,
    });
    let fds = owner.pages.iter();
    let fds = fds.map(|page| page.as_fd().try_clone_to_owned());
    Ok((grants.collect(), fds.collect::<io::Result<_>>()?))
}

impl Server {
    /// Takes free slots for streams, each with a new page of counters.
    pub(crate) fn take_stream_slots(
        &mut self,
        count: usize,
        owner: OwnerId,
    ) -> Result<(Vec<u8>, Vec<CounterPage>), Refusal> {
        self.check_available(SlotKind::Streams, count)?;
        let pages: io::Result<Vec<CounterPage>> = (0..count).map(|_| CounterPage::new()).collect();
        let pages = pages.map_err(|error| Refusal::system("cannot create counters", &error))?;
        if self.stream_slots.existing() == 0 {
            // Slot 0 is for no program, as with UDP: queue pair numbers 0 and 1 are special.
            self.stream_slots.grow();
        }
        for _ in 0..self.stream_slots.missing(count) {
            self.stream_slots.grow();
        }
        Ok((self.stream_slots.take(count, owner), pages))
    }

    /// Returns the slots for streams, of which those with these numbers exist.
    pub(crate) fn stream_slots_up_to(&mut self, slots: &[u8]) -> &mut Slots {
        let highest = slots.iter().copied().max().unwrap_or(0);
        while self.stream_slots.existing() <= usize::from(highest) {
            self.stream_slots.grow();
        }
        &mut self.stream_slots
    }

    /// Gives an owner from the state of an earlier ferroced its slots for streams.
    pub(crate) fn restore_stream_slots(&mut self, id: OwnerId, owner: &Owner) {
        if owner.kind != SlotKind::Streams {
            return;
        }
        let all = self.stream_slots_up_to(&owner.slots);
        for slot in &owner.slots {
            if !all.claim(*slot, id) {
                tracing::warn!(slot, "slot of the state file has two owners");
            }
        }
    }

    /// Takes slots for streams back from programs that ended while no ferroced ran.
    pub(crate) fn release_dead_streams(&mut self) {
        let owners = self.owners.iter();
        let dead = owners.filter(|(_, owner)| owner.kind == SlotKind::Streams && owner.dead);
        for id in dead.map(|(id, _)| *id).collect::<Vec<OwnerId>>() {
            self.release(id);
        }
    }

    /// Takes slots for streams back, and keeps their counters.
    pub(crate) fn release_stream_slots(&mut self, owner: &Owner) {
        if let Some(link) = self.links.by_index_mut(owner.link) {
            link.totals.add(&counted(owner));
        }
        for slot in &owner.slots {
            self.stream_slots.release(*slot);
        }
    }
}
