//! Outputs of the connection managers, and the programs that get their events.

use ferroce_cm::{Event, PrivateData, Reason, Time};
use ferroce_control::{CmEvent, CmId};

use super::program::{MAX_CONNECTIONS, MAX_SIDR_REQUESTS};
use super::{Connections, Output, Owned};
use crate::client::ClientId;

impl Connections {
    /// Collects the events and MADs of a link's connection manager.
    pub(super) fn collect(&mut self, now: Time, link: u32) {
        while let Some(event) = self.next_event(link) {
            self.on_event(now, link, event);
        }
        let Some(side) = self.links.get_mut(&link) else {
            return;
        };
        while let Some(transmit) = side.cm.poll_transmit() {
            let netdev = side.netdev_of(transmit.address.local).unwrap_or(0);
            self.out.push_back(Output::Send {
                link,
                netdev,
                transmit,
            });
        }
    }

    fn next_event(&mut self, link: u32) -> Option<Event> {
        self.links.get_mut(&link)?.cm.poll_event()
    }

    fn on_event(&mut self, now: Time, link: u32, event: Event) {
        match &event {
            Event::Request(_) | Event::SidrRequest(_) => self.on_arrival(now, link, event),
            _ => {
                let Some(client) = self.owner_of(link, &event) else {
                    return;
                };
                let event = self.complete(link, event, None);
                if is_last(&event.event) {
                    self.forget_ended(link, &event.event);
                }
                self.out.push_back(Output::Tell { client, event });
            }
        }
    }

    /// Queues a connection request or SIDR request for the program that listens.
    fn on_arrival(&mut self, now: Time, link: u32, event: Event) {
        let Some(side) = self.links.get_mut(&link) else {
            return;
        };
        let listener = match &event {
            Event::Request(incoming) => incoming.listener,
            Event::SidrRequest(incoming) => incoming.listener,
            _ => return,
        };
        let Some((client, port)) = side.listeners.get(&listener).copied() else {
            return;
        };
        let Some(program) = self.programs.get_mut(&client) else {
            return;
        };
        let owned = Owned {
            client,
            waits_at: Some(port),
        };
        match &event {
            Event::Request(incoming) => {
                let id = incoming.conn;
                if program.connections.len() >= MAX_CONNECTIONS {
                    let nothing = PrivateData::EMPTY;
                    let _ = side.cm.reject(now, id, Reason::NO_RESOURCES, &[], nothing);
                    return;
                }
                side.connections.insert(id, owned);
                program.connections.insert(CmId { link, id });
                if let Some(listening) = program.listening(port) {
                    listening.connections.insert(CmId { link, id });
                }
            }
            Event::SidrRequest(incoming) => {
                let id = incoming.sidr;
                if program.sidr_requests.len() >= MAX_SIDR_REQUESTS {
                    let _ = side.cm.sidr_destroy(now, id);
                    return;
                }
                side.sidr_requests.insert(id, owned);
                program.sidr_requests.insert(CmId { link, id });
                if let Some(listening) = program.listening(port) {
                    listening.sidr_requests.insert(CmId { link, id });
                }
            }
            _ => return,
        }
        let event = self.complete(link, event, Some(port));
        self.out.push_back(Output::Tell { client, event });
    }

    fn owner_of(&self, link: u32, event: &Event) -> Option<ClientId> {
        let side = self.links.get(&link)?;
        let owned = match (event.conn(), event.sidr()) {
            (Some(conn), _) => side.connections.get(&conn),
            (_, Some(sidr)) => side.sidr_requests.get(&sidr),
            (None, None) => None,
        };
        owned.map(|owned| owned.client)
    }

    /// Adds the port, the queue pair parameters and the record that belong to an event.
    fn complete(&self, link: u32, event: Event, port: Option<u64>) -> CmEvent {
        let cm = self.links.get(&link).map(|side| &side.cm);
        let about = event.conn().zip(cm);
        let qp = match event {
            Event::Request(_) | Event::Response { .. } => {
                about.and_then(|(conn, cm)| cm.qp_parameters(conn))
            }
            _ => None,
        };
        let snapshot = match event {
            Event::Established { .. } => about.and_then(|(conn, cm)| cm.snapshot(conn)),
            _ => None,
        };
        CmEvent {
            link,
            event,
            port,
            qp,
            snapshot,
        }
    }

    /// Removes the connection or SIDR request that an event ends.
    fn forget_ended(&mut self, link: u32, event: &Event) {
        if let Some(id) = event.conn() {
            self.forget(CmId { link, id });
        }
        if let Some(id) = event.sidr() {
            self.forget(CmId { link, id });
        }
    }
}

fn is_last(event: &Event) -> bool {
    match event {
        Event::Rejected { timewait, .. } => !timewait,
        Event::Unreachable { .. }
        | Event::TimewaitExit { .. }
        | Event::SidrReply { .. }
        | Event::SidrUnreachable { .. } => true,
        Event::Request(_)
        | Event::Response { .. }
        | Event::Established { .. }
        | Event::Disconnected { .. }
        | Event::SidrRequest(_) => false,
    }
}
