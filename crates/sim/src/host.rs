//! A host: a shard with its engine, its memory and its receive buffer.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use ferroce_net::local::Injected;
use ferroce_net::{RUN_LIMITS, qpns_of_slot, slot_of_qpn};
use ferroce_roce::{Access, Config, Counters, Engine, MemRef, Path, Pd, Regions, Time};
use ferroce_shard::{Core, CreditPage, Sending};

use crate::arena::Arena;
use crate::bug::Bug;
use crate::credit_check::Ledger;
use crate::local::SimProcess;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::sim_wire::{Inbox, SimWire, WireSetup};
use crate::zone::{Place, Purpose, Zone};

/// Unregistered bytes between zones.
const GUARD: u64 = 4096;

/// The shard of a host.
pub(crate) type SimCore = Core<SimWire, Arc<CreditPage>>;

/// The transmitter of a host.
pub(crate) type SimSending = Sending<SimWire, Arc<CreditPage>>;

/// A host.
pub(crate) struct Host {
    pub(crate) address: IpAddr,
    /// Number of the slot: the top byte of its queue pair numbers.
    pub(crate) slot: u8,
    /// The process of the host, which may die at an access to shared memory.
    pub(crate) process: Rc<SimProcess>,
    /// True once the process has died.
    pub(crate) is_dead: bool,
    /// The shard; none while a call into it is in progress.
    pub(crate) core: Option<SimCore>,
    /// The packets of a thread that sends outside the shard.
    pub(crate) sending: Option<SimSending>,
    pub(crate) regions: Arc<Regions>,
    pub(crate) arena: Rc<Arena>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) zones: Vec<Zone>,
    pub(crate) counters: Arc<Counters>,
    /// Packets that have reached the host, shared with its wire.
    pub(crate) inbox: Rc<RefCell<Inbox>>,
    /// Packets that the shard has assembled but not sent, in order.
    pub(crate) assembled: VecDeque<Assembled>,
    /// Credits of the machine.
    pub(crate) credits: Arc<CreditPage>,
    pub(crate) ledger: Ledger,
    /// Probability that the program, not the progress thread, does a turn.
    pub(crate) polls: f64,
    /// The last turn received many datagrams.
    pub(crate) streams: bool,
    /// The queue pair that moves to ERR when the next packet arrives.
    pub(crate) kill_on_arrival: Option<usize>,
    /// An event that processes the receive buffer is scheduled.
    pub(crate) serving: bool,
    /// Runs waited for room when the last call into the shard ended.
    pub(crate) blocked: bool,
    /// Time since which runs have waited for room.
    pub(crate) blocked_since: Option<Time>,
    /// Time since which packets have waited for a receive.
    pub(crate) unmatched_since: Option<Time>,
    pub(crate) paused_until: Time,
    pub(crate) program_stopped_until: Time,
    /// Time of the earliest scheduled timer event.
    pub(crate) timer: Option<Time>,
}

/// A packet that a host has assembled.
pub(crate) struct Outgoing {
    /// Number of the queue pair that sends the packet.
    pub(crate) qpn: u32,
    pub(crate) path: Path,
    pub(crate) bytes: Rc<[u8]>,
}

/// A packet that a shard has assembled but not sent.
pub(crate) struct Assembled {
    /// Number of the queue pair that sends the packet.
    pub(crate) qpn: u32,
    pub(crate) bytes: Rc<[u8]>,
    /// True if its UC queue pair has been reset or destroyed: the shard drops the packet, unless it
    /// shares a run with packets of others.
    pub(crate) may_be_dropped: bool,
}

impl Host {
    pub(crate) fn new(
        id: usize,
        (seed, s): (u64, &Scenario),
        rng: &mut Rng,
        credits: Arc<CreditPage>,
        bug: Option<Bug>,
        packets: &Rc<Cell<u64>>,
    ) -> Host {
        let mut keys = [0; 32];
        rng.fill(&mut keys);
        let regions = Arc::new(Regions::new(keys));
        let slot = id as u8 + 1;
        let first = qpns_of_slot(slot).start + rng.range(16..=0xff00) as u32;
        let config = Config {
            qpns: first..first + 64,
            skip_qpns: first % 64,
            port_mtu: s.port_mtu,
            check_icrc: s.check_icrc,
            patience_ns: 0,
            initial_window: s.initial_window,
            max_window: s.max_window,
            memory_window: s.local.map_or(64 << 10, |local| local.window),
        };
        let counters = Arc::new(Counters::default());
        let mut engine = Engine::new(config, Arc::clone(&regions), Arc::clone(&counters));
        engine.set_bug(bug.and_then(Bug::of_engine));
        let process = Rc::new(SimProcess::default());
        let around = WireSetup {
            slot,
            address: address(s.machines[id], s.ipv6),
            receive_buffer: s.receive_buffer,
            run_limits: s.local.map_or(RUN_LIMITS, |local| local.run_limits()),
            process: Rc::clone(&process),
            counters: Arc::clone(&counters),
            packets: Rc::clone(packets),
            injected: Injected::new(bug.and_then(Bug::of_wire)),
        };
        let wire = SimWire::new(seed, around);
        let inbox = Rc::clone(&wire.inbox);
        let batch = rng.pick(&[1, 3, 64, 256]);
        let core = Core::with_batch(engine, wire, Arc::clone(&credits), batch);
        let mut core = core.expect("a simulated wire has no errors");
        core.set_bug(bug.and_then(Bug::of_shard));
        // Half of the hosts: their threads share the work of sending.
        core.prepare_batches(first.is_multiple_of(2));
        core.observe(true);
        let pd = regions.alloc_pd();
        let (arena, zones) = make_memory(id, s, rng, &regions, &pd);
        Host {
            address: address(s.machines[id], s.ipv6),
            slot,
            process,
            is_dead: false,
            core: Some(core),
            sending: None,
            regions,
            arena: Rc::new(arena),
            pd,
            zones,
            counters,
            inbox,
            assembled: VecDeque::new(),
            credits,
            ledger: Ledger::default(),
            polls: rng.pick(&[0.0, 0.5, 0.95]),
            streams: false,
            kill_on_arrival: None,
            serving: false,
            blocked: false,
            blocked_since: None,
            unmatched_since: None,
            paused_until: Time::ZERO,
            program_stopped_until: Time::ZERO,
            timer: None,
        }
    }

    /// Returns the shard. No call into it is in progress.
    pub(crate) fn core(&self) -> &SimCore {
        self.core.as_ref().expect("no call is in progress")
    }

    /// Returns the shard, to change it. No call into it is in progress.
    pub(crate) fn core_mut(&mut self) -> &mut SimCore {
        self.core.as_mut().expect("no call is in progress")
    }

    /// Returns the engine of the shard.
    pub(crate) fn engine(&self) -> &Engine {
        &self.core().engine
    }

    /// Returns the engine of the shard, to change it.
    pub(crate) fn engine_mut(&mut self) -> &mut Engine {
        &mut self.core_mut().engine
    }

    /// True if the wire delivers packets of an address and queue pair number to this host.
    pub(crate) fn takes(&self, destination: IpAddr, qpn: Option<u32>) -> bool {
        if self.is_dead {
            return false;
        }
        if destination.is_multicast() {
            return self.core().wire().joined.contains(&destination);
        }
        // Queue pair 1 has no slot; only one host of a machine has it.
        let slot = qpn.map(slot_of_qpn).filter(|&slot| slot != 0);
        self.address == destination && slot.is_none_or(|slot| slot == self.slot)
    }

    /// Notes that a UC queue pair has been reset or destroyed. Returns true if packets of it have
    /// been assembled but not sent.
    pub(crate) fn end_uc_connection(&mut self, qpn: u32) -> bool {
        let mut found = false;
        for packet in self.assembled.iter_mut().filter(|packet| packet.qpn == qpn) {
            packet.may_be_dropped = true;
            found = true;
        }
        found
    }

    /// Forgets the packets that the shard may have dropped, up to the one that it sends next.
    pub(crate) fn forget_dropped(&mut self, is_next: impl Fn(&Assembled) -> bool) {
        let dropped = |packet: &Assembled| packet.may_be_dropped && !is_next(packet);
        while self.assembled.front().is_some_and(dropped) {
            self.assembled.pop_front();
        }
    }

    /// True if runs wait for room in the socket buffer or at the receiver.
    pub(crate) fn has_waiting_runs(&self) -> bool {
        self.blocked
            || self
                .sending
                .as_ref()
                .is_some_and(|sending| sending.is_blocked())
    }

    /// True if packets of the engine have to wait: for room in the socket buffer or at the
    /// receiver, or for a thread that sends others.
    pub(crate) fn cannot_send(&self) -> bool {
        self.blocked || self.sending.is_some()
    }

    /// True if no packet waits here.
    pub(crate) fn is_idle(&self) -> bool {
        let idle = self.core().is_idle() && self.sending.is_none();
        self.is_dead || idle && self.inbox.borrow().waiting.is_empty()
    }

    /// Allocates memory in a registered zone of this purpose.
    pub(crate) fn alloc(
        &mut self,
        rng: &mut Rng,
        purpose: Purpose,
        len: u64,
        align: u64,
    ) -> Option<Place> {
        let fits = |zone: &Zone| zone.purpose == purpose && zone.registered;
        let index = self.zones.iter().position(fits)?;
        let va = self.zones[index].alloc(rng, len, align)?;
        let zone = index;
        Some(Place { zone, va, len })
    }

    /// Frees memory.
    pub(crate) fn release(&mut self, place: Place) {
        self.zones[place.zone].release(place.va, place.len);
    }

    /// Returns the remote address and rkey of a piece of memory.
    pub(crate) fn remote(&self, place: Place) -> (u64, u32) {
        let zone = &self.zones[place.zone];
        (zone.key_address(place.va), zone.mr.rkey())
    }
}

/// Creates the zones, each surrounded by unregistered memory.
fn make_memory(
    id: usize,
    s: &Scenario,
    rng: &mut Rng,
    regions: &Regions,
    pd: &Arc<Pd>,
) -> (Arena, Vec<Zone>) {
    let base = 0x7000_0000_0000 + ((id as u64) << 32);
    let mut sizes: Vec<(Purpose, u64)> = Vec::new();
    for purpose in Purpose::ALL {
        sizes.push((purpose, zone_size(purpose, s)));
    }
    let total: u64 = sizes.iter().map(|(_, size)| size + GUARD).sum::<u64>() + GUARD;
    let arena = Arena::new(base, total);
    let other = regions.alloc_pd();
    let mut zones = Vec::new();
    let mut start = base + GUARD;
    for (purpose, len) in sizes {
        let domain = match purpose {
            Purpose::OtherDomain => &other,
            _ => pd,
        };
        let (iova, zero_based) = match rng.below(3) {
            0 => (start, Access::empty()),
            1 => (rng.below(1 << 40) & !7, Access::empty()),
            _ => (0, Access::ZERO_BASED),
        };
        let mr = regions
            .register(
                domain,
                MemRef::host(start),
                len,
                iova,
                purpose.access() | zero_based,
            )
            .expect("the region is valid");
        arena.set_registered(start..start + len);
        if purpose.is_local() {
            arena.set_private(start..start + len);
        }
        if matches!(purpose, Purpose::GoneLocal | Purpose::GoneRemote) {
            arena.unmap(start..start + len);
        }
        zones.push(Zone::new(purpose, mr, start, len));
        start += len + GUARD;
    }
    (arena, zones)
}

fn zone_size(purpose: Purpose, s: &Scenario) -> u64 {
    let message = s.longest.max(4096 + 64);
    let users = 2 * s.pairs.len() as u64 + s.datagrams.len() as u64;
    match purpose {
        Purpose::Local => (512 << 10) + users * 10 * message,
        Purpose::Remote => (256 << 10) + users * 6 * message,
        Purpose::Windows | Purpose::DoomedLocal | Purpose::DoomedRemote => 8 * message,
        Purpose::Counters => 4096,
        _ => 2 * message,
    }
    .next_multiple_of(4096)
}

pub(crate) fn address(id: usize, ipv6: bool) -> IpAddr {
    match ipv6 {
        true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, id as u16 + 1).into(),
        false => Ipv4Addr::new(10, 0, 0, id as u8 + 1).into(),
    }
}

/// Returns the address of a multicast group.
pub(crate) fn group_address(group: u8, ipv6: bool) -> IpAddr {
    match ipv6 {
        true => Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 0x100 + u16::from(group)).into(),
        false => Ipv4Addr::new(239, 1, 2, group).into(),
    }
}
