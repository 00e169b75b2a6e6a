//! The two ends of a channel between two hosts, and the packets in it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use ferroce_net::local::Endpoint;

use super::memory::{CAPACITY, SimProcess, SimRing, ring};
use crate::network::InFlight;
use crate::rng::Rng;

/// The state of a channel that the kernel has, and that of the oracle.
#[derive(Default)]
pub(crate) struct Channel {
    /// One end is closed, or its process has died.
    is_hung_up: Cell<bool>,
    /// True if a process has written what no correct process writes.
    pub(crate) is_sabotaged: Cell<bool>,
    sides: [SideState; 2],
}

#[derive(Default)]
struct SideState {
    /// A byte waits in the socket of this side.
    is_woken: Cell<bool>,
    /// Packets in the ring that this side reads.
    packets: RefCell<VecDeque<InFlight>>,
    /// True once this side has stopped to read the ring.
    is_deaf: Cell<bool>,
}

/// One end of a channel.
pub(crate) struct SimEnd {
    pub(crate) channel: Rc<Channel>,
    side: usize,
    /// The side of the other end: the same one if a host sends to itself.
    other: usize,
    peer: u8,
    /// True if the other end is that of an intruder.
    is_hostile: Cell<bool>,
    outgoing: SimRing,
    incoming: SimRing,
    process: Rc<SimProcess>,
    is_closed: Cell<bool>,
    /// True once the threads of this end do not watch the socket any more.
    is_forgotten: Cell<bool>,
    /// Bytes that the oracle has seen as published.
    seen: Cell<u64>,
    /// Position of the reader when a run found no room.
    full_at: Cell<Option<u64>>,
    /// Bytes published since the reader at the other end published a wrong position.
    since_forged_head: Cell<Option<u64>>,
    must_close: Cell<bool>,
}

impl SimEnd {
    /// Creates a channel between two slots. If a host is an intruder, the records that the other
    /// one reads change while they are read.
    pub(crate) fn pair(
        slots: [u8; 2],
        processes: [&Rc<SimProcess>; 2],
        scribblers: [Option<Rng>; 2],
    ) -> [Rc<SimEnd>; 2] {
        let channel = Rc::new(Channel::default());
        let hostile = [scribblers[0].is_some(), scribblers[1].is_some()];
        let [first, second] = scribblers;
        let [out0, in1] = ring(processes, [None, second]);
        let [in0, out1] = ring(processes, [first, None]);
        [(0, out0, in0), (1, out1, in1)].map(|(side, outgoing, incoming)| {
            let end = SimEnd::new(&channel, [side, 1 - side], slots[1 - side], outgoing);
            end.is_hostile.set(hostile[side]);
            Rc::new(SimEnd {
                incoming,
                process: Rc::clone(processes[side]),
                ..end
            })
        })
    }

    pub(crate) fn is_hostile(&self) -> bool {
        self.is_hostile.get()
    }

    /// Creates a channel from a slot to itself.
    pub(crate) fn to_itself(slot: u8, process: &Rc<SimProcess>) -> Rc<SimEnd> {
        let [ring, _] = ring([process, process], [None, None]);
        let end = SimEnd::new(&Rc::default(), [0, 0], slot, ring);
        Rc::new(SimEnd {
            process: Rc::clone(process),
            ..end
        })
    }

    fn new(channel: &Rc<Channel>, [side, other]: [usize; 2], peer: u8, ring: SimRing) -> SimEnd {
        SimEnd {
            channel: Rc::clone(channel),
            side,
            other,
            peer,
            is_hostile: Cell::new(false),
            outgoing: ring.clone(),
            incoming: ring,
            process: Rc::default(),
            is_closed: Cell::new(false),
            is_forgotten: Cell::new(false),
            seen: Cell::new(0),
            full_at: Cell::new(None),
            since_forged_head: Cell::new(None),
            must_close: Cell::new(false),
        }
    }

    /// Returns true if a byte waits in the socket, or if the other end is closed.
    pub(crate) fn is_readable(&self) -> bool {
        let readable =
            self.channel.is_hung_up.get() || self.channel.sides[self.side].is_woken.get();
        readable && !self.is_forgotten.get()
    }

    /// Ends the watch of the socket.
    pub(crate) fn forget(&self) {
        self.is_forgotten.set(true);
    }

    /// Takes the wakeups. Returns true if the channel is closed, and not forgotten yet.
    pub(crate) fn take_wakeups(&self) -> bool {
        self.channel.sides[self.side].is_woken.set(false);
        if self.channel.is_hung_up.get() {
            self.is_closed.set(true);
        }
        self.is_closed.get() && !self.is_forgotten.get()
    }

    /// Ends the process at this end, as the kernel does.
    pub(crate) fn hang_up(&self) {
        self.channel.is_hung_up.set(true);
    }

    /// Returns true if others can see a record that they could not see before.
    pub(crate) fn takes_publication(&self) -> bool {
        let published = self.outgoing.published();
        let new = self.seen.replace(published) != published;
        self.full_at.set(None);
        new && !self.channel.sides[self.other].is_deaf.get()
    }

    /// Notes packets that the other end must receive.
    pub(crate) fn put(&self, packet: InFlight) {
        let to = &self.channel.sides[self.other];
        to.packets.borrow_mut().push_back(packet);
    }

    /// Counts bytes that were written. Returns their number since the reader published a wrong
    /// position, which the writer has not noticed.
    pub(crate) fn count_written(&self, bytes: usize) -> u64 {
        let Some(before) = self.since_forged_head.get() else {
            return 0;
        };
        self.since_forged_head.set(Some(before + bytes as u64));
        before + bytes as u64
    }

    /// Takes the packet with these bytes out of the incoming ring.
    pub(crate) fn take(&self, bytes: &[u8]) -> Option<InFlight> {
        let packets = &mut *self.channel.sides[self.side].packets.borrow_mut();
        // The channel is first in, first out.
        let is_next = packets
            .front()
            .is_some_and(|packet| *packet.bytes == *bytes);
        is_next.then(|| packets.pop_front()).flatten()
    }

    /// Returns the packets that this end has not received.
    pub(crate) fn unread(&self) -> Vec<InFlight> {
        let packets = self.channel.sides[self.side].packets.borrow();
        packets.iter().cloned().collect()
    }

    pub(crate) fn has_unread(&self) -> bool {
        !self.channel.sides[self.side].packets.borrow().is_empty()
    }

    /// Ends reading at this end. Later packets are lost.
    pub(crate) fn stop_reading(&self) {
        self.channel.sides[self.side].is_deaf.set(true);
        self.channel.sides[self.side].packets.borrow_mut().clear();
    }

    /// Returns true if this end reads no more.
    pub(crate) fn is_deaf(&self) -> bool {
        self.channel.sides[self.side].is_deaf.get()
    }

    /// Notes that this end must notice a wrong position, and close the channel.
    pub(crate) fn must_close(&self) {
        self.must_close.set(true);
    }

    /// Returns true if this end should have closed the channel.
    pub(crate) fn is_overdue(&self) -> bool {
        self.must_close.get() && !self.is_closed.get()
    }

    /// Notes that a run found no room.
    pub(crate) fn note_full(&self) {
        self.full_at.set(Some(self.outgoing.freed()));
    }

    /// Forgets that a run found no room.
    pub(crate) fn end_wait(&self) {
        self.full_at.set(None);
    }

    /// Returns true if a run waits for room.
    pub(crate) fn is_full(&self) -> bool {
        self.full_at.get().is_some()
    }

    /// Returns true if the reader has moved since a run found no room.
    pub(crate) fn has_new_room(&self) -> bool {
        let freed = self.outgoing.freed();
        self.full_at.get().is_some_and(|full_at| full_at != freed)
    }

    /// Publishes a position that no correct process publishes, from now on. Returns true if it is
    /// that of the writer.
    pub(crate) fn sabotage(&self, other: &SimEnd, rng: &mut Rng) -> bool {
        self.channel.is_sabotaged.set(true);
        let is_tail = rng.chance(0.5);
        let beyond = 64 * rng.range(1..=9);
        if is_tail {
            let wrong = match rng.below(3) {
                0 => rng.range(1..=63),
                // Behind all records that a writer could have published after a return to the start.
                1 => 3 * CAPACITY as u64 + beyond,
                _ => 1 << 40,
            };
            self.outgoing.forge_tail(self.outgoing.published() + wrong);
        } else {
            other.since_forged_head.set(Some(0));
            self.incoming
                .forge_head(self.incoming.published() + CAPACITY as u64 + beyond);
        }
        is_tail
    }
}

impl Endpoint for SimEnd {
    type Ring = SimRing;

    fn peer(&self) -> u8 {
        self.peer
    }

    fn outgoing(&self) -> &SimRing {
        &self.outgoing
    }

    fn incoming(&self) -> &SimRing {
        &self.incoming
    }

    fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    fn close(&self) {
        self.is_closed.set(true);
        if !self.process.is_dead() {
            self.channel.is_hung_up.set(true);
        }
    }

    fn is_gone(&self) -> bool {
        self.is_closed.get() || self.channel.is_hung_up.get()
    }

    fn wake(&self) {
        if !self.process.is_dead() {
            self.channel.sides[self.other].is_woken.set(true);
        }
    }

    fn note_read(&self, _: u64) {}
}
