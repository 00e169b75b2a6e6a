//! Streams whose socket or ring is full: they wait for room, and then send again.

use ferroce_roce::Time;
use rustix::event::epoll;

use super::{Observer, StreamCore};

impl StreamCore {
    /// Waits until a socket has room.
    pub(super) fn block(&mut self, qpn: u32) {
        if let Some(stream) = self.streams.get_mut(&qpn) {
            stream.is_blocked = true;
            // The reader of a ring wakes this end.
            let is_tcp = stream.wire.memory().is_none();
            if is_tcp && !core::mem::replace(&mut stream.awaits_room, true) {
                self.watch(qpn, epoll::EventFlags::IN | epoll::EventFlags::OUT);
            }
        }
    }

    /// Tries to send to a socket that was full.
    pub(super) fn unblock(&mut self, now: Time, process: &mut impl Observer, qpn: u32) {
        let Some(stream) = self.streams.get_mut(&qpn) else {
            return;
        };
        stream.is_blocked = false;
        self.send(now, process, qpn);
        let Some(stream) = self.streams.get_mut(&qpn) else {
            return;
        };
        if stream.is_blocked {
            return;
        }
        if let Some(memory) = stream.wire.memory() {
            // The output may have been discarded meanwhile.
            memory.stop_waiting();
        }
        if core::mem::replace(&mut stream.awaits_room, false) {
            self.watch(qpn, epoll::EventFlags::IN);
        }
    }

    fn watch(&self, qpn: u32, events: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(qpn.into());
        if let Some(stream) = self.streams.get(&qpn)
            && let Err(error) = epoll::modify(&self.epoll, &stream.socket, data, events)
        {
            tracing::warn!("connection of queue pair {qpn:#x}: epoll: {error}");
        }
    }
}
