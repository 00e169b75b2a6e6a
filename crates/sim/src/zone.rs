//! Zones of registered memory, and the allocation of pieces of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferroce_roce::{Access, Mr, Sge};

use crate::rng::Rng;

/// The use of a zone.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Data to be sent, destinations of READs, and receive buffers.
    Local,
    /// Memory that peers write and read.
    Remote,
    /// Counters for the peers' atomics.
    Counters,
    /// Memory for memory windows.
    Windows,
    /// As `Local`, but deregistered while in use.
    DoomedLocal,
    /// As `Remote`, but deregistered while in use.
    DoomedRemote,
    /// Memory that peers may only read.
    ReadOnly,
    /// As `Remote`, but in another protection domain.
    OtherDomain,
    /// As `Local`, but the memory is not mapped.
    GoneLocal,
    /// As `Remote`, but the memory is not mapped.
    GoneRemote,
}

impl Purpose {
    /// All purposes.
    pub(crate) const ALL: [Purpose; 10] = [
        Purpose::Local,
        Purpose::Remote,
        Purpose::Counters,
        Purpose::Windows,
        Purpose::DoomedLocal,
        Purpose::DoomedRemote,
        Purpose::ReadOnly,
        Purpose::OtherDomain,
        Purpose::GoneLocal,
        Purpose::GoneRemote,
    ];

    /// Returns the access flags of the region.
    pub(crate) fn access(self) -> Access {
        let remote = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::FLUSH_GLOBAL
            | Access::FLUSH_PERSISTENT;
        match self {
            Purpose::Local | Purpose::DoomedLocal | Purpose::GoneLocal => Access::LOCAL_WRITE,
            Purpose::Counters => Access::LOCAL_WRITE | Access::REMOTE_ATOMIC | Access::REMOTE_READ,
            Purpose::Windows => Access::LOCAL_WRITE | Access::MW_BIND,
            Purpose::ReadOnly => Access::REMOTE_READ,
            Purpose::Remote
            | Purpose::DoomedRemote
            | Purpose::OtherDomain
            | Purpose::GoneRemote => remote | Access::REMOTE_ATOMIC,
        }
    }

    /// Returns true if only the local side uses the zone.
    pub(crate) fn is_local(self) -> bool {
        matches!(
            self,
            Purpose::Local | Purpose::DoomedLocal | Purpose::GoneLocal
        )
    }
}

/// A memory region and its free parts.
pub(crate) struct Zone {
    pub(crate) purpose: Purpose,
    pub(crate) mr: Arc<Mr>,
    pub(crate) registered: bool,
    pub(crate) start: u64,
    pub(crate) len: u64,
    free: BTreeMap<u64, u64>,
}

/// A piece of a host's memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Index of the zone in the host.
    pub(crate) zone: usize,
    /// Address in the program's memory.
    pub(crate) va: u64,
    /// Length in bytes.
    pub(crate) len: u64,
}

impl Zone {
    pub(crate) fn new(purpose: Purpose, mr: Arc<Mr>, start: u64, len: u64) -> Zone {
        Zone {
            purpose,
            mr,
            registered: true,
            start,
            len,
            free: BTreeMap::from([(start, len)]),
        }
    }

    /// Returns the address that work requests and peers use for the program's address `va`.
    pub(crate) fn key_address(&self, va: u64) -> u64 {
        va - self.start + self.mr.iova()
    }

    /// Returns a scatter/gather element for a piece of the zone.
    pub(crate) fn sge(&self, place: Place) -> Sge {
        Sge {
            addr: self.key_address(place.va),
            length: place.len as u32,
            lkey: self.mr.lkey(),
        }
    }

    /// Allocates `len` bytes with free bytes before and after them, if there is room.
    pub(crate) fn alloc(&mut self, rng: &mut Rng, len: u64, align: u64) -> Option<u64> {
        let gap = rng.range(1..=40);
        let (start, size, at) = self.free.iter().find_map(|(&start, &size)| {
            let at = (start + gap).next_multiple_of(align);
            (at + len < start + size).then_some((start, size, at))
        })?;
        self.free.insert(start, at - start);
        self.free.insert(at + len, start + size - (at + len));
        Some(at)
    }

    /// Frees a piece.
    pub(crate) fn release(&mut self, at: u64, len: u64) {
        let (mut from, mut to) = (at, at + len);
        if let Some(size) = self.free.remove(&to) {
            to += size;
        }
        if let Some((&start, &size)) = self.free.range(..from).next_back()
            && start + size == from
        {
            from = start;
        }
        self.free.insert(from, to - from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;
    use ferroce_roce::{MemRef, Regions};

    #[test]
    fn allocated_pieces_are_separate_and_can_be_freed_in_any_order() {
        let regions = Regions::new([0; 32]);
        let mr = regions.register(
            &regions.alloc_pd(),
            MemRef::host(0x1000),
            0x1000,
            0,
            Access::empty(),
        );
        let mut zone = Zone::new(Purpose::Local, mr.unwrap(), 0x1000, 0x1000);
        let mut rng = Rng::new(0, Stream::Program);
        for _ in 0..20 {
            let mut taken = Vec::new();
            while let Some(at) = zone.alloc(&mut rng, 100, 8) {
                assert!(at > 0x1000 && at + 100 < 0x2000 && at.is_multiple_of(8));
                taken.push(at);
            }
            assert!(taken.len() > 20);
            taken.sort_unstable();
            assert!(taken.windows(2).all(|pair| pair[0] + 100 < pair[1]));
            // Free them in another order.
            taken.sort_unstable_by_key(|at| at % 256);
            taken.into_iter().for_each(|at| zone.release(at, 100));
            assert_eq!(zone.free, BTreeMap::from([(0x1000, 0x1000)]));
        }
    }
}
