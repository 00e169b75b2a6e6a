//! The supervision of a link by ferroced.
//!
//! The thread of the process's control client calls it when ferroced reports a change of the
//! link. If ferroced ends, queue pairs continue: the program owns the sockets of its slots. The
//! client waits for the next ferroced and names the program's slots to it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ferroce_control::client::{Introduction, LinkUser, StreamIntroduction, Tap};
use ferroce_control::{Gid, LinkEvent, LinkEventKind, LinkInfo, PortState};
use ferroce_trace::{JournalFile, RingWriter};

use crate::device::port_mtu;
use crate::event_queue::AsyncEvent;
use crate::faults;
use crate::resources::Inventory;

/// The cause of most events of a port.
const BY_NETDEV: &str = "as its netdev";

/// The parts of an open link that follow its state.
#[derive(Debug)]
pub(crate) struct Supervisor {
    link: RwLock<Arc<LinkInfo>>,
    /// True if ferroced no longer has the link or its slots for this process. Devices of such
    /// a link cannot be opened.
    is_lost: AtomicBool,
    /// False if the user chose UDP or TCP between programs of this host.
    takes_channels: bool,
    inventory: Inventory,
}

impl LinkUser for Supervisor {
    fn changed(&self, event: LinkEvent) {
        self.update(event.link);
        let event = match event.kind {
            LinkEventKind::PortActive => AsyncEvent::PortActive,
            LinkEventKind::PortErr => AsyncEvent::PortError,
            LinkEventKind::GidChange => AsyncEvent::GidChange,
            LinkEventKind::Removed => return self.removed(),
            LinkEventKind::Added | LinkEventKind::Changed => return,
        };
        self.inventory.directory.post_to_all(&event, BY_NETDEV);
    }

    fn resumed(&self, link: Option<LinkInfo>) {
        match link {
            Some(link) => self.catch_up(link),
            None => self.removed(),
        }
    }

    fn refused(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    fn introduced(&self, introduction: Introduction) {
        let mut shards = self.inventory.shards.iter();
        let shard = shards.find(|shard| shard.slot() == introduction.slot);
        // A channel that is dropped closes its other end, too.
        if let Some(shard) = shard.filter(|_| self.takes_channels) {
            shard.introduced(introduction);
        }
    }

    fn stream_introduced(&self, introduction: StreamIntroduction) {
        let mut shards = self.inventory.shards.iter();
        let shard = shards.find(|shard| shard.slot() == introduction.slot);
        if let Some(shard) = shard.filter(|_| self.takes_channels) {
            shard.stream_introduced(introduction);
        }
    }

    fn tapped(&self, tap: Tap) {
        let taps = &self.inventory.directory.taps;
        let added = match tap {
            Tap::Ring { ring, socket } => RingWriter::new(ring, socket).map(|ring| taps.add(ring)),
            Tap::Journal(file) => {
                JournalFile::from_fd(file).and_then(|file| taps.set_journal(&file))
            }
        };
        if let Err(error) = added {
            tracing::warn!("cannot record packets: {error}");
        }
        if !taps.captures() && taps.recording().is_none() {
            return;
        }
        for shard in self.inventory.shards.iter() {
            shard.with_core(|core, _, _| core.observe(true));
        }
    }

    fn report(&self, keys: bool) -> Vec<u8> {
        self.inventory.report(keys)
    }
}

impl Supervisor {
    pub(crate) fn new(link: LinkInfo, takes_channels: bool, inventory: Inventory) -> Supervisor {
        Supervisor {
            link: RwLock::new(Arc::new(link)),
            is_lost: AtomicBool::new(false),
            takes_channels,
            inventory,
        }
    }

    /// Returns the current state of the link.
    pub(crate) fn link(&self) -> Arc<LinkInfo> {
        let link = self.link.read().unwrap_or_else(PoisonError::into_inner);
        self.inventory.directory.as_provoked(&link)
    }

    /// Returns true if `check` holds for the current state of the link, and new devices can
    /// use it.
    pub(crate) fn is_usable(&self, check: impl FnOnce(&LinkInfo) -> bool) -> bool {
        let link = self.link.read().unwrap_or_else(PoisonError::into_inner);
        !self.is_lost.load(Ordering::Relaxed) && check(&link)
    }

    /// Reports the changes of the link since its state was last known.
    pub(crate) fn catch_up(&self, link: LinkInfo) {
        let before = self.link();
        let places = |link: &LinkInfo| link.gids.iter().map(Gid::place).collect::<Vec<_>>();
        let (gids, state) = (places(&link) != places(&before), link.state());
        self.update(link);
        if gids {
            let event = AsyncEvent::GidChange;
            self.inventory.directory.post_to_all(&event, BY_NETDEV);
        }
        if state != before.state() {
            let event = match state {
                PortState::Active => AsyncEvent::PortActive,
                PortState::Down => AsyncEvent::PortError,
            };
            self.inventory.directory.post_to_all(&event, BY_NETDEV);
        }
    }

    /// Handles the removal of the link.
    pub(crate) fn removed(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
        self.inventory
            .directory
            .post_to_all(&AsyncEvent::DeviceFatal, "because its link was removed");
    }

    fn update(&self, link: LinkInfo) {
        let has_faults = self.is_usable(|before| before.faults != link.faults);
        if has_faults {
            let faults = faults::on_link(&link);
            for shard in self.inventory.shards.iter() {
                shard.set_faults(faults.as_ref());
            }
        }
        let mtu = port_mtu(&link);
        for shard in self.inventory.shards.iter() {
            shard.with(|mut adapter, _| adapter.set_port_mtu(mtu));
        }
        *self.link.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(link);
    }
}
