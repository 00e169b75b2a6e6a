//! Streams through shared memory: reads their rings, and looks at their sockets now and then.

use std::sync::Arc;

use ferroce_roce::{Counter, Time};
use ferroce_shard::RECEIVE_BUDGET;

use super::wire::{Addresses, MemoryStream, Wire};
use super::{Observer, StreamCore};
use crate::local::Channel;
use crate::slowness::scaled;

/// Time between two looks at the sockets of streams that are all in memory. These sockets only
/// report the end of a connection. A thread that sleeps wakes up for it.
const SOCKETS_WAIT_NS: u64 = 50_000;
/// Most streams of a shard in memory. A thread that sleeps looks at all of their rings before.
pub(super) const MOST_IN_MEMORY: usize = 64;

impl StreamCore {
    /// Returns true if a further stream may use memory.
    pub(crate) fn takes_channels(&self) -> bool {
        self.in_memory.len() < MOST_IN_MEMORY
    }

    /// Takes a channel for a connection that this program has offered. A channel that is not
    /// needed any more is closed.
    pub(crate) fn introduced(&mut self, addresses: Addresses, channel: Channel) {
        // The connection uses TCP if the initiator finds the channel closed.
        let takes_channels = self.takes_channels();
        let offered = self.streams.iter_mut().find(|(_, stream)| {
            takes_channels && matches!(stream.wire, Wire::Offered(offered) if offered == addresses)
        });
        let Some((&qpn, stream)) = offered else {
            tracing::debug!("a channel for {addresses:?} comes too late, or is one too many");
            return;
        };
        let end = Arc::clone(&channel.end);
        if stream.wire.introduce(MemoryStream::new(channel)) {
            self.in_memory.push(qpn);
            if let Err(error) = self.doorbell.add(&end) {
                tracing::warn!("no thread is woken for queue pair {qpn:#x}: {error}");
            }
        }
    }

    /// Watches the ring of a new stream in memory.
    pub(super) fn add_ring(&mut self, qpn: u32, wire: &Wire) -> std::io::Result<()> {
        if let Some(memory) = wire.memory() {
            self.doorbell.add(memory.end())?;
            self.in_memory.push(qpn);
        }
        Ok(())
    }

    /// Forgets the ring of a stream.
    pub(super) fn remove_ring(&mut self, qpn: u32, wire: &Wire) {
        if let Some(memory) = wire.memory() {
            memory.end().close();
        }
        let count = self.in_memory.len();
        self.in_memory.retain(|in_memory| *in_memory != qpn);
        if self.in_memory.len() < count {
            self.doorbell.remove_closed();
        }
    }

    /// Returns memory of rings that is not used any more to the kernel. Returns true if some is left.
    pub(crate) fn shrink_rings(&mut self) -> bool {
        let mut left = false;
        for qpn in &self.in_memory {
            if let Some(stream) = self.streams.get_mut(qpn) {
                left |= stream.wire.shrink();
            }
        }
        left
    }

    /// Returns the wire of a queue pair, for `rdma resource`.
    pub(crate) fn wire_of(&self, qpn: u32) -> &'static str {
        let stream = self.streams.get(&qpn);
        match stream.is_some_and(|stream| stream.wire.is_memory()) {
            true => "local",
            false => "tcp",
        }
    }

    /// Ends the receipt of bytes: a peer that waits for room is woken. Sends what waited for the
    /// initiator's choice of the wire.
    pub(super) fn end_receive(&mut self, now: Time, process: &mut impl Observer, qpn: u32) {
        let Some(stream) = self.streams.get_mut(&qpn) else {
            return;
        };
        let waits_for_choice = match &mut stream.wire {
            Wire::Memory(memory) => {
                memory.end_receive(&self.doorbell);
                stream.is_blocked && !memory.is_full()
            }
            Wire::Tcp => stream.is_blocked && !stream.awaits_room,
            Wire::Offered(_) | Wire::Either(_) => false,
        };
        if !stream.wire.is_memory() && self.in_memory.contains(&qpn) {
            // The initiator has chosen TCP.
            self.in_memory.retain(|in_memory| *in_memory != qpn);
            self.doorbell.remove_closed();
        }
        if waits_for_choice {
            self.unblock(now, process, qpn);
        }
    }

    /// Lets a responder send before the initiator has sent: the queue pair or the process ends.
    /// Returns true if it had waited.
    pub(super) fn end_wait(&mut self, now: Time, qpn: u32) -> bool {
        let is_held = self.engine.end_hold(now, qpn);
        let Some(stream) = self.streams.get_mut(&qpn) else {
            return is_held;
        };
        let waited = stream.wire.end_wait();
        stream.is_blocked &= !waited;
        is_held || waited
    }

    /// Receives what waits in rings, and sends to rings that have room again.
    pub(super) fn receive_in_memory(&mut self, now: Time, process: &mut impl Observer) -> usize {
        let mut received = 0;
        let mut index = 0;
        while let Some(&qpn) = self.in_memory.get(index) {
            index += 1;
            let Some(memory) = self.streams.get(&qpn).and_then(|s| s.wire.memory()) else {
                continue;
            };
            let (has_bytes, has_room) = (memory.has_bytes(), memory.has_made_room());
            if has_bytes {
                received += self.receive(now, process, qpn);
            }
            if has_room {
                self.unblock(now, process, qpn);
            }
        }
        received.min(RECEIVE_BUDGET)
    }

    /// Counts bytes that one call has received.
    pub(super) fn count_received(&self, is_memory: bool, bytes: usize) {
        self.counters.count(Counter::RcvdPkts);
        self.counters.add(Counter::RcvdBytes, bytes as u64);
        if is_memory {
            self.counters.count(Counter::LocalRcvdPkts);
            self.counters.add(Counter::LocalRcvdBytes, bytes as u64);
        }
    }

    /// Counts bytes that one call has sent.
    pub(super) fn count_sent(&self, is_memory: bool, bytes: usize) {
        self.counters.count(Counter::SentPkts);
        self.counters.add(Counter::SentBytes, bytes as u64);
        if is_memory {
            self.counters.count(Counter::LocalSentPkts);
            self.counters.add(Counter::LocalSentBytes, bytes as u64);
        }
    }

    /// Receives from the socket of a queue pair. With memory, the socket reports only the end.
    pub(super) fn receive_from_socket(
        &mut self,
        now: Time,
        process: &mut impl Observer,
        qpn: u32,
    ) -> usize {
        if let Some(stream) = self.streams.get_mut(&qpn)
            && let Wire::Memory(memory) = &mut stream.wire
        {
            memory.look_at(&stream.socket);
        }
        self.receive(now, process, qpn)
    }

    /// Returns true if a turn looks at the sockets: only now and then while all streams use
    /// memory.
    pub(super) fn looks_at_sockets(&mut self, now: Time) -> bool {
        if now < self.sockets_due && self.are_all_in_memory() {
            return false;
        }
        self.sockets_due = now.after_nanos(scaled(SOCKETS_WAIT_NS));
        true
    }

    fn are_all_in_memory(&self) -> bool {
        self.in_memory.len() == self.streams.len()
            && self.streams.values().all(|stream| stream.wire.is_memory())
    }

    /// Returns true if all streams use memory, and nothing waits there. Sockets and timers are
    /// not looked at.
    #[inline]
    pub(crate) fn is_memory_quiet(&self) -> bool {
        !self.in_memory.is_empty()
            && self.faults.is_none()
            && !self.has_ready
            && self.are_all_in_memory()
            && self.streams.values().all(|stream| {
                let memory = stream.wire.memory();
                memory.is_some_and(|m| !m.has_bytes() && !m.has_made_room())
            })
    }

    /// Returns true if a turn of a poller has nothing to do.
    #[inline]
    pub(crate) fn finds_nothing(&self, now: Time) -> bool {
        now < self.sockets_due
            && self.is_memory_quiet()
            && self.engine.next_timeout().is_none_or(|due| due > now)
    }
}
