//! The table of handles: maps the handles in ferroced's messages to ids.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use ferroce_cm::{ConnId, Event, SidrId};
use ferroce_control::{CmAnswer, CmEvent, CmId, CmPort};

use crate::channel::{ChannelEvent, EventChannel};
use crate::id::{Binding, Port, Shared};
use crate::incoming;

/// All ids of the process, and the handles of their objects in ferroced.
#[derive(Debug)]
pub(crate) struct HandleTable {
    /// Number of the connection to ferroced that the handles hold on.
    generation: u64,
    ids: BTreeMap<usize, Arc<Shared>>,
    ports: BTreeMap<CmPort, Arc<Shared>>,
    connections: BTreeMap<CmId<ConnId>, Arc<Shared>>,
    sidr_requests: BTreeMap<CmId<SidrId>, Arc<Shared>>,
}

fn key(id: &Arc<Shared>) -> usize {
    Arc::as_ptr(id).addr()
}

impl HandleTable {
    /// Creates an empty table for the connection with this number.
    pub(crate) fn new(generation: u64) -> HandleTable {
        HandleTable {
            generation,
            ids: BTreeMap::new(),
            ports: BTreeMap::new(),
            connections: BTreeMap::new(),
            sidr_requests: BTreeMap::new(),
        }
    }

    /// Returns the number of the connection that the handles hold on.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Adds a new id.
    pub(crate) fn add(&mut self, id: &Arc<Shared>) {
        self.ids.insert(key(id), Arc::clone(id));
    }

    /// Returns true until the id is removed.
    pub(crate) fn contains(&self, id: &Arc<Shared>) -> bool {
        self.ids.contains_key(&key(id))
    }

    /// Returns the id of a weak reference until it is removed.
    pub(crate) fn find(&self, id: &Weak<Shared>) -> Option<Arc<Shared>> {
        self.ids.get(&id.as_ptr().addr()).cloned()
    }

    /// Returns all ids.
    pub(crate) fn ids(&self) -> Vec<Arc<Shared>> {
        self.ids.values().cloned().collect()
    }

    /// Returns all ids whose events go to this channel.
    pub(crate) fn ids_on(&self, channel: &EventChannel) -> Vec<Arc<Shared>> {
        let ids = self.ids.values();
        ids.filter(|id| id.channel().is_same(channel))
            .cloned()
            .collect()
    }

    /// Removes an id and its handles: it receives no more events.
    pub(crate) fn remove(&mut self, id: &Arc<Shared>) {
        self.ids.remove(&key(id));
        let inner = id.inner();
        // The handle of a lost port may be that of another id's port by now.
        if let Some(port) = inner.port
            && !port.borrowed
            && port.generation == self.generation
        {
            self.ports.remove(&port.handle);
        }
        if let Some(conn) = inner.conn {
            self.connections.remove(&conn);
        }
        if let Some(sidr) = inner.sidr {
            self.sidr_requests.remove(&sidr);
        }
    }

    /// Removes all handles: ferroced was restarted, and its handles are new. `generation` is
    /// the number of the new connection.
    pub(crate) fn clear_handles(&mut self, generation: u64) {
        self.generation = generation;
        self.ports.clear();
        self.connections.clear();
        self.sidr_requests.clear();
    }

    /// Assigns a connection to an id.
    pub(crate) fn add_connection(&mut self, conn: CmId<ConnId>, id: &Arc<Shared>) {
        self.connections.insert(conn, Arc::clone(id));
    }

    /// Removes a connection.
    pub(crate) fn remove_connection(&mut self, conn: CmId<ConnId>) {
        self.connections.remove(&conn);
    }

    /// Assigns the object in an answer to an id. Returns false if the id was destroyed, or
    /// its channel closed: the caller returns the object to ferroced.
    pub(crate) fn learn(&mut self, id: &Arc<Shared>, answer: &CmAnswer) -> bool {
        let mut inner = id.inner();
        // While the table is locked, no id is removed from it.
        if inner.is_released() {
            return false;
        }
        match *answer {
            CmAnswer::Bound { port, number } => {
                self.ports.insert(port, Arc::clone(id));
                // A port that is restored keeps its addresses.
                let restored = inner.port.map(|port| Binding {
                    source: port.source,
                    destination: port.destination,
                });
                inner.port = inner.binding.take().or(restored).map(|binding| Port {
                    handle: port,
                    generation: self.generation,
                    number,
                    source: binding.source,
                    destination: binding.destination,
                    borrowed: false,
                });
            }
            CmAnswer::Connection { conn } => {
                self.connections.insert(conn, Arc::clone(id));
                inner.conn = Some(conn);
            }
            CmAnswer::SidrRequested { sidr } => {
                self.sidr_requests.insert(sidr, Arc::clone(id));
                inner.sidr = Some(sidr);
            }
            CmAnswer::Done | CmAnswer::Established { .. } => {}
        }
        true
    }

    /// Queues an event on the channel of the id that the event concerns.
    pub(crate) fn dispatch(&mut self, event: Box<CmEvent>) {
        let link = event.link;
        let conn = event.event.conn().map(|id| CmId { link, id });
        let sidr = event.event.sidr().map(|id| CmId { link, id });
        let id = match &event.event {
            Event::Request(_) | Event::SidrRequest(_) => {
                event.port.and_then(|port| self.ports.get(&port))
            }
            _ => conn
                .and_then(|conn| self.connections.get(&conn))
                .or_else(|| sidr.and_then(|sidr| self.sidr_requests.get(&sidr))),
        };
        let Some(id) = id.map(Arc::clone) else {
            tracing::debug!("no id for event {:?}", event.event);
            return;
        };
        if matches!(event.event, Event::Request(_) | Event::SidrRequest(_)) {
            return incoming::queue(&id, event, self.generation);
        }
        let over = match &event.event {
            Event::Rejected { timewait, .. } => !timewait,
            Event::Unreachable { .. } | Event::TimewaitExit { .. } => true,
            _ => false,
        };
        {
            let mut inner = id.inner();
            match &event.event {
                Event::Established { .. } => {
                    inner.snapshot = event.snapshot;
                    inner.established = true;
                }
                Event::Disconnected { .. } | Event::Rejected { .. } => {
                    inner.snapshot = None;
                    inner.established = false;
                    inner.closed = true;
                }
                Event::SidrReply { .. } | Event::SidrUnreachable { .. } => inner.sidr = None,
                _ => {}
            }
            inner.ended |= over;
        }
        if let Some(conn) = conn.filter(|_| over) {
            self.connections.remove(&conn);
        }
        if let Some(sidr) = sidr {
            self.sidr_requests.remove(&sidr);
        }
        id.post(ChannelEvent::Cm(event, self.generation));
    }

    /// Reports the removal of a link to all ids on it.
    pub(crate) fn remove_link(&mut self, link: u32) {
        let on_link = |id: &&Arc<Shared>| {
            let inner = id.inner();
            inner.device.as_ref().is_some_and(|d| d.index() == link)
        };
        for id in self.ids.values().filter(on_link) {
            id.post(ChannelEvent::DeviceRemoved);
        }
    }
}
