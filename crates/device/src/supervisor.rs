//! The supervision of a device by ferroced.
//!
//! The thread of the process's control client calls it when ferroced reports a change of the
//! link. If ferroced ends, queue pairs continue: the program owns the sockets of its slots. The
//! client waits for the next ferroced and names the program's slots to it.

use std::sync::{Arc, RwLock};

use ferroce_control::client::LinkUser;
use ferroce_control::{LinkEvent, LinkEventKind, LinkInfo, PortState};

use crate::device::port_mtu;
use crate::event_queue::{AsyncEvent, EventQueue};
use crate::resources::Inventory;
use crate::shard::Shard;

/// The parts of a device that follow its link.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(crate) link: Arc<RwLock<LinkInfo>>,
    pub(crate) event_queue: Arc<EventQueue>,
    pub(crate) shards: Arc<[Arc<Shard>]>,
    pub(crate) inventory: Inventory,
}

impl LinkUser for Supervisor {
    fn changed(&self, event: LinkEvent) {
        self.update(event.link);
        match event.kind {
            LinkEventKind::PortActive => self.event_queue.post(AsyncEvent::PortActive),
            LinkEventKind::PortErr => self.event_queue.post(AsyncEvent::PortError),
            LinkEventKind::GidChange => self.event_queue.post(AsyncEvent::GidChange),
            LinkEventKind::Removed => self.event_queue.post(AsyncEvent::DeviceFatal),
            LinkEventKind::Added | LinkEventKind::Changed => {}
        }
    }

    fn resumed(&self, link: Option<LinkInfo>) {
        match link {
            Some(link) => self.catch_up(link),
            None => self.event_queue.post(AsyncEvent::DeviceFatal),
        }
    }

    fn report(&self, keys: bool) -> Vec<u8> {
        self.inventory.report(keys)
    }
}

impl Supervisor {
    /// Reports the changes of the link since the last ferroced ended.
    fn catch_up(&self, link: LinkInfo) {
        let before = self.link();
        let (gids, state) = (link.gids != before.gids, link.state());
        self.update(link);
        if gids {
            self.event_queue.post(AsyncEvent::GidChange);
        }
        if state != before.state() {
            self.event_queue.post(match state {
                PortState::Active => AsyncEvent::PortActive,
                PortState::Down => AsyncEvent::PortError,
            });
        }
    }

    fn update(&self, link: LinkInfo) {
        let mtu = port_mtu(&link);
        for shard in self.shards.iter() {
            shard.with(|mut adapter, _| adapter.set_port_mtu(mtu));
        }
        *self
            .link
            .write()
            .expect("no code panics while it holds the link") = link;
    }

    fn link(&self) -> LinkInfo {
        self.link
            .read()
            .expect("no code panics while it holds the link")
            .clone()
    }
}
