//! The wire of a simulated host: a receive buffer, runs on their way to the network, and channels
//! in memory to hosts of the same machine.
//!
//! Received packets of one flow are merged into runs, as the kernel does with UDP_GRO. The
//! seed decides where a run ends early. Now and then a send finds no room, as with a full
//! socket buffer.

use core::net::IpAddr;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use ferroce_net::local::ring::record_size;
use ferroce_net::local::{Endpoint, HostLookup, Inbound, Injected, Outbound, is_enough};
use ferroce_net::{
    Incoming, IncomingRun, IpIds, Properties, RUN_LIMITS, Scope, SendError, Source, Wire,
    WireSender, slot_of_qpn,
};
use ferroce_roce::{Counters, Datagram, IpId, Path, RunLimits, Time};

use crate::local::memory::CAPACITY;
use crate::local::{SimEnd, SimProcess};
use crate::network::{Flaw, INTRUDER, InFlight};
use crate::rng::{Rng, Stream};
use crate::wire_check;

/// Longest time that a socket buffer stays full: too short for the peers' timers
/// to expire.
const LONGEST_BLOCK_NS: u64 = 5_000;
/// Most runs that a host sends in one call. More are reported as a livelock.
const MOST_RUNS: usize = 100_000;

/// Packets that have reached a host.
#[derive(Default)]
pub(crate) struct Inbox {
    /// The receive buffer.
    pub(crate) waiting: VecDeque<InFlight>,
    /// Packets that the shard has received from the wire, but not yet passed to the engine.
    pub(crate) undelivered: VecDeque<InFlight>,
    /// A record that no process has written.
    pub(crate) violation: Option<String>,
}

/// A packet that a host sends.
pub(crate) struct SentPacket {
    pub(crate) path: Path,
    pub(crate) ip_id: u16,
    pub(crate) bytes: Rc<[u8]>,
    pub(crate) delivery: Delivery,
}

/// The way that a sent packet took: a wire, or the reason why it was dropped.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    Network,
    /// It is in a ring, with this number.
    Memory(u64),
    /// The wire has dropped it, because its receiver has ended or takes nothing out.
    Dropped,
    /// The wire has dropped a whole run that had waited too long.
    GivenUp,
}

/// The addresses of a machine.
pub(crate) struct MachineAddress(pub(crate) IpAddr);

impl HostLookup for MachineAddress {
    fn is_here(&self, address: IpAddr) -> bool {
        self.0 == address
    }
}

/// The parts of a host that its wire needs.
pub(crate) struct WireSetup {
    pub(crate) slot: u8,
    pub(crate) address: IpAddr,
    pub(crate) receive_buffer: usize,
    pub(crate) run_limits: RunLimits,
    pub(crate) process: Rc<SimProcess>,
    pub(crate) counters: Arc<Counters>,
    /// Number of packets sent so far, by all hosts.
    pub(crate) packets: Rc<Cell<u64>>,
    pub(crate) injected: Injected,
}

/// The wire of one host.
pub(crate) struct SimWire {
    pub(crate) inbox: Rc<RefCell<Inbox>>,
    pub(crate) outbox: Rc<RefCell<Outbox>>,
    /// Channels to hosts of the same machine.
    pub(crate) local: Inbound<Rc<SimEnd>, MachineAddress>,
    is_memory_busy: bool,
    /// Multicast groups that the host has joined.
    pub(crate) joined: BTreeSet<IpAddr>,
    /// Most packets that the next call receives.
    pub(crate) budget: usize,
    rng: Rng,
    properties: Properties,
    merged: Vec<u8>,
}

/// The sending half of the wire of one host, which the world sees too.
pub(crate) struct Outbox {
    /// Packets sent since the world last took them.
    pub(crate) sent: Vec<SentPacket>,
    /// End of the time in which the socket buffer is full.
    pub(crate) blocked_until: Time,
    now: Time,
    rng: Rng,
    ip_ids: IpIds,
    /// Number of UDP source ports; queue pairs share them.
    ports: u16,
    runs: usize,
    pub(crate) local: Outbound<Rc<SimEnd>>,
    process: Rc<SimProcess>,
    packets: Rc<Cell<u64>>,
    slot: u8,
    /// The sender has written more than a ring can hold.
    pub(crate) violation: Option<String>,
}

/// The sending half of the wire of one host.
pub(crate) struct SimSender(Rc<RefCell<Outbox>>);

impl SimWire {
    pub(crate) fn new(seed: u64, around: WireSetup) -> SimWire {
        let slot = around.slot;
        let seed = seed ^ u64::from(slot) << 56;
        let mut rng = Rng::new(seed, Stream::Wire);
        let ip_ids = match rng.chance(0.8) {
            true => IpIds::Numbered,
            false => IpIds::Zero,
        };
        let mut local = Inbound::new(Arc::clone(&around.counters), MachineAddress(around.address));
        local.inject(around.injected);
        let mut outgoing = Outbound::new(around.counters);
        outgoing.inject(around.injected);
        let outbox = Outbox {
            sent: Vec::new(),
            blocked_until: Time::ZERO,
            now: Time::ZERO,
            ip_ids,
            ports: rng.pick(&[1, 2, 0x4000]),
            rng: Rng::new(seed, Stream::Sender),
            runs: 0,
            local: outgoing,
            process: around.process,
            packets: around.packets,
            slot,
            violation: None,
        };
        SimWire {
            inbox: Rc::default(),
            outbox: Rc::new(RefCell::new(outbox)),
            local,
            is_memory_busy: false,
            joined: BTreeSet::new(),
            budget: 0,
            properties: Properties {
                slot,
                receive_buffer: around.receive_buffer,
                ip_ids,
                run_limits: around.run_limits,
            },
            rng,
            merged: Vec::new(),
        }
    }

    /// Begins a call into the shard.
    pub(crate) fn begin(&mut self, now: Time) {
        let mut outbox = self.outbox.borrow_mut();
        outbox.now = now;
        outbox.runs = 0;
    }

    /// Moves packets of the receive buffer that form a run to the merged buffer. Returns the
    /// first of them, and the length of each but the last.
    fn merge(&mut self) -> Option<(InFlight, usize)> {
        let mut inbox = self.inbox.borrow_mut();
        let first = inbox.waiting.pop_front()?;
        let segment = first.bytes.len();
        self.merged.clear();
        self.merged.extend_from_slice(&first.bytes);
        inbox.undelivered.push_back(first.clone());
        let mut packets = 1;
        let mergeable = first.is_mergeable() && segment > 0;
        while let Some(next) = inbox.waiting.front()
            && mergeable
            && next.is_mergeable()
            && next.path == first.path
            && (1..=segment).contains(&next.bytes.len())
            && packets < RUN_LIMITS.packets
            && self.merged.len() + next.bytes.len() <= RUN_LIMITS.bytes
            && self.merged.len() == packets * segment
            && packets < self.budget
            && self.rng.chance(0.9)
        {
            self.merged.extend_from_slice(&next.bytes);
            packets += 1;
            let next = inbox.waiting.pop_front().expect("it is the front");
            inbox.undelivered.push_back(next);
        }
        self.budget = self.budget.saturating_sub(packets);
        Some((first, segment))
    }
}

impl InFlight {
    /// True if the packet may be one of a merged run. A corrupted packet over IPv4 is sure
    /// to be detected only if the receiver knows its IP identification, and that of merged
    /// packets is unknown.
    fn is_mergeable(&self) -> bool {
        self.flaw != Some(Flaw::Corrupted) || !self.path.flow.is_ipv4()
    }
}

impl Wire for SimWire {
    type Sender = SimSender;

    fn take_sender(&mut self) -> SimSender {
        SimSender(Rc::clone(&self.outbox))
    }

    fn look(&mut self, _scope: Scope) -> io::Result<bool> {
        Ok(!self.local.is_empty() || !self.inbox.borrow().waiting.is_empty())
    }

    fn receive(
        &mut self,
        scope: Scope,
        max: usize,
        mut each: impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize> {
        let mut count = 0;
        if !self.local.is_empty() {
            let ends: Vec<Rc<SimEnd>> = self.local.ends().cloned().collect();
            let inbox = Rc::clone(&self.inbox);
            count = self.local.receive(max.min(self.budget), &mut |run| {
                note_record(&ends, &mut inbox.borrow_mut(), run);
                each(run);
            });
            self.budget = self.budget.saturating_sub(count);
            self.is_memory_busy |= count > 0;
            if is_enough(scope, count) {
                return Ok(count);
            }
        }
        let in_memory = count;
        while count < max
            && self.budget > 0
            && let Some((first, segment)) = self.merge()
        {
            let flow = first.path.flow;
            let packets = self.merged.len().div_ceil(segment.max(1)).max(1);
            let single = packets == 1 && flow.is_ipv4();
            let knows_id = single && (!first.is_mergeable() || self.rng.chance(0.3));
            let datagram = Datagram {
                source: flow.source,
                destination: flow.destination,
                source_port: flow.source_port,
                traffic_class: first.path.traffic_class,
                hop_limit: first.path.hop_limit,
                ip_id: match knows_id {
                    true => IpId::Seen(first.ip_id),
                    false => IpId::UNSEEN,
                },
                payload: &self.merged,
            };
            let merged = Incoming {
                datagram,
                ifindex: 1,
            };
            each(&IncomingRun { merged, segment });
            count += packets;
            if scope == Scope::OneMessage {
                break;
            }
        }
        if count > in_memory {
            self.is_memory_busy = false;
        }
        Ok(count)
    }

    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(Vec::new())
    }

    fn join_multicast(&mut self, group: IpAddr) -> io::Result<()> {
        self.joined.insert(group);
        Ok(())
    }

    fn leave_multicast(&mut self, group: IpAddr) -> io::Result<()> {
        self.joined.remove(&group);
        Ok(())
    }

    fn report_hop_limits(&mut self, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn is_memory_busy(&self) -> bool {
        self.is_memory_busy
    }

    fn has_packet_in_memory(&self) -> bool {
        self.local.has_packet()
    }

    fn properties(&self) -> Properties {
        self.properties
    }
}

impl Outbox {
    fn note_sent(&mut self, path: &Path, segment: usize, bytes: &[u8], delivery: Delivery) {
        for (number, packet) in bytes.chunks(segment).enumerate() {
            let numbered = self.ip_ids == IpIds::Numbered;
            self.sent.push(SentPacket {
                path: *path,
                ip_id: if numbered { number as u16 } else { 0 },
                bytes: packet.into(),
                delivery,
            });
        }
    }

    /// Writes a run into a ring.
    fn send_in_memory(
        &mut self,
        path: &Path,
        segment: usize,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let slot = slot_of(bytes);
        let end = self.local.end_to(slot).cloned();
        match (self.local.send(path, segment, bytes), end) {
            (Ok(()), Some(end)) if end.takes_publication() => {
                if end.count_written(record_size(bytes.len())) > CAPACITY as u64 {
                    let what = "writes on, although the reader's position is impossible";
                    self.violation = Some(what.into());
                }
                let first = self.sent.len();
                self.note_sent(path, segment, bytes, Delivery::Dropped);
                for sent in &mut self.sent[first..] {
                    let number = self.packets.get();
                    self.packets.set(number + 1);
                    sent.delivery = Delivery::Memory(number);
                    let mut path = sent.path;
                    path.flow.source_port = self.slot.into();
                    end.put(InFlight {
                        number,
                        from: usize::from(self.slot - 1),
                        path,
                        ip_id: sent.ip_id,
                        bytes: Rc::clone(&sent.bytes),
                        flaw: None,
                        protected: false,
                    });
                }
                Ok(())
            }
            (Err(SendError::WouldBlock), Some(end)) => {
                end.note_full();
                Err(SendError::WouldBlock)
            }
            (result, end) => {
                if let Some(end) = end {
                    end.end_wait();
                }
                self.note_sent(path, segment, bytes, Delivery::Dropped);
                result
            }
        }
    }
}

/// Returns the slot of a packet's destination.
fn slot_of(bytes: &[u8]) -> u8 {
    wire_check::destination(bytes).map_or(0, slot_of_qpn)
}

/// Takes the packets of a record from those that were written into rings.
fn note_record(ends: &[Rc<SimEnd>], inbox: &mut Inbox, run: &IncomingRun<'_>) {
    let datagram = &run.merged.datagram;
    let from = |end: &&Rc<SimEnd>| u16::from(end.peer()) == datagram.source_port;
    for packet in datagram.payload.chunks(run.segment) {
        let mut ends = ends.iter().filter(from);
        if let Some(packet) = ends.clone().find_map(|end| end.take(packet)) {
            inbox.undelivered.push_back(packet);
            continue;
        }
        let hostile = ends.any(|end| end.is_hostile());
        if !hostile {
            let text = wire_check::describe(packet);
            inbox.violation = Some(format!("received a record that was not written: {text}"));
        }
        // Every process of the machine that knows the Q_Key may send datagrams.
        let may = datagram.source == datagram.destination && wire_check::is_datagram(packet);
        let flow = ferroce_wire::Flow {
            source: datagram.source,
            destination: datagram.destination,
            source_port: datagram.source_port,
        };
        inbox.undelivered.push_back(InFlight {
            number: 0,
            from: INTRUDER,
            path: Path::new(flow, datagram.traffic_class, datagram.hop_limit),
            ip_id: 0,
            bytes: packet.into(),
            flaw: (hostile && !may).then_some(Flaw::Forged),
            protected: false,
        });
    }
}

impl WireSender for SimSender {
    fn send(&mut self, path: &Path, segment: usize, bytes: &[u8]) -> Result<(), SendError> {
        let outbox = &mut *self.0.borrow_mut();
        outbox.runs += 1;
        assert!(outbox.runs < MOST_RUNS, "a host does not stop sending");
        if path.in_memory {
            return outbox.send_in_memory(path, segment, bytes);
        }
        if outbox.now < outbox.blocked_until {
            return Err(SendError::WouldBlock);
        }
        if outbox.rng.chance(0.02) {
            let ns = outbox.rng.range(1..=LONGEST_BLOCK_NS);
            outbox.blocked_until = outbox.now.after_nanos(ns);
            return Err(SendError::WouldBlock);
        }
        let delivery = match outbox.process.is_dead() {
            true => Delivery::Dropped,
            false => Delivery::Network,
        };
        outbox.note_sent(path, segment, bytes, delivery);
        Ok(())
    }

    fn give_up(&mut self, path: &Path, bytes: &[u8]) {
        let outbox = &mut *self.0.borrow_mut();
        outbox.local.give_up(bytes);
        if let Some(end) = outbox.local.end_to(slot_of(bytes)) {
            end.end_wait();
        }
        outbox.note_sent(path, bytes.len(), bytes, Delivery::GivenUp);
    }

    fn bind(&mut self, want: u16, _: Source) -> io::Result<u16> {
        Ok(0xc000 | (want % self.0.borrow().ports))
    }
}

#[cfg(test)]
#[path = "../../shard/tests/support/connection.rs"]
#[allow(dead_code)] // tests of the shard use the rest
mod connection;
#[cfg(test)]
#[path = "../../shard/tests/support/drop_tenth.rs"]
mod drop_tenth;

#[cfg(test)]
mod tests {
    use super::connection::{End, write_arrives};
    use super::drop_tenth::DropTenth;
    use super::*;

    /// Moves sent packets to the receive buffer of the other end.
    fn carry(ends: &mut [End<DropTenth<SimWire>>; 2], now: Time) {
        for (from, to) in [(0, 1), (1, 0)] {
            let wire = &mut ends[from].core.wire_mut().inner;
            wire.begin(now);
            wire.budget = usize::MAX;
            let sent = core::mem::take(&mut wire.outbox.borrow_mut().sent);
            let wire = &mut ends[to].core.wire_mut().inner;
            let mut inbox = wire.inbox.borrow_mut();
            inbox.undelivered.clear();
            inbox
                .waiting
                .extend(sent.into_iter().map(|packet| InFlight {
                    number: 0,
                    from,
                    path: packet.path,
                    ip_id: packet.ip_id,
                    bytes: packet.bytes,
                    flaw: None,
                    protected: false,
                }));
        }
    }

    #[test]
    fn write_arrives_complete_without_every_tenth_packet() {
        let wires = [1, 2].map(|slot| {
            let around = WireSetup {
                slot,
                address: [10, 0, 0, slot].into(),
                receive_buffer: 1 << 20,
                run_limits: RUN_LIMITS,
                process: Rc::default(),
                counters: Arc::default(),
                packets: Rc::default(),
                injected: Injected::default(),
            };
            DropTenth::new(SimWire::new(3, around))
        });
        let addresses = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let ends = write_arrives(wires, addresses, carry);
        let received = ends[1].core.wire().received;
        assert!(
            received > 256,
            "{received} packets, more than the WRITE has"
        );
    }
}
