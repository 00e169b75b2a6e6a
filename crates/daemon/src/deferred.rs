//! Replies and events of the connection manager, which are sent together.
//!
//! A program that is woken for each message costs more than ferroced's work for it. One
//! request often causes several messages: the reply to a disconnect, and the events of both
//! ends if both are on this machine. So messages wait until no descriptor is ready.

use ferroce_control::Reply;

use crate::client::{RequestId, Sent};
use crate::server::Server;

/// Rounds of the event loop for which messages wait at most.
const MAX_ROUNDS: u32 = 32;

impl Server {
    /// Queues a reply or event of the connection manager.
    pub(crate) fn defer(&mut self, id: RequestId, reply: &Reply) {
        let Some(client) = self.clients.get_mut(&id.client) else {
            return;
        };
        let is_first = !client.is_behind();
        if !client.queue(id.number, reply, Vec::new()) {
            return self.after_sending(id.client, Sent::Stuck);
        }
        // Otherwise the client is in the list, or the poller reports room in its socket.
        if is_first {
            match id.number {
                // Its program waits for the peer's next step, and the peer for the event.
                Some(_) => self.deferred.push_back(id.client),
                None => self.deferred.push_front(id.client),
            }
        }
    }

    /// Returns true if queued messages wait.
    pub(crate) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Sends the queued messages if no descriptor was ready, or if they have waited long.
    pub(crate) fn send_deferred(&mut self, is_idle: bool) {
        if self.deferred.is_empty() {
            return;
        }
        self.deferred_rounds += 1;
        if is_idle || self.deferred_rounds > MAX_ROUNDS {
            self.deferred_rounds = 0;
            for client in std::mem::take(&mut self.deferred) {
                self.flush(client);
            }
        }
    }
}
