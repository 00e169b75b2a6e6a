//! A host: an engine, its memory, and its send and receive buffers.
//!
//! After every call into the engine the host transmits all packets, in batches of
//! random size, and schedules the engine's next timer. In 2% of the cases it
//! finishes a batch only later, as if the socket buffer were full.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use ferroce_transport::{
    Access, Batch, Bug, Config, Counters, Engine, MemRef, Path, Pd, Regions, RunLimits, Time,
};

use crate::arena::Arena;
use crate::network::InFlight;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::zone::{Place, Purpose, Zone};

/// Limits of a run: those of a UDP socket, and the top byte of the QPN as its slot.
const RUN_LIMITS: RunLimits = RunLimits {
    packets: 64,
    bytes: 65_000,
    qpn_mask: 0xff_0000,
};
/// Unregistered bytes between zones.
const GUARD: u64 = 4096;
/// Size of the transmit buffer: more than the longest packet.
const BUFFER: usize = 4096 + 256;

/// A host.
pub(crate) struct Host {
    pub(crate) address: IpAddr,
    pub(crate) engine: Engine,
    pub(crate) regions: Arc<Regions>,
    pub(crate) arena: Arena,
    pub(crate) pd: Arc<Pd>,
    pub(crate) zones: Vec<Zone>,
    /// The receive buffer.
    pub(crate) rx: VecDeque<InFlight>,
    /// An event that processes the receive buffer is scheduled.
    pub(crate) serving: bool,
    pub(crate) paused_until: Time,
    /// Time of the earliest scheduled timer event.
    pub(crate) timer: Option<Time>,
    /// Multicast groups that the host has joined.
    pub(crate) joined: BTreeSet<IpAddr>,
    batches: Vec<Batch>,
    /// The batch that waits for room in the socket buffer. No other batch is sent
    /// before it.
    held: Option<usize>,
    buffer: Vec<u8>,
}

/// A packet that a host sends.
pub(crate) struct Outgoing {
    /// Number of the queue pair that sends the packet.
    pub(crate) qpn: u32,
    pub(crate) path: Path,
    pub(crate) ip_id: u16,
    pub(crate) bytes: Rc<[u8]>,
}

impl Host {
    pub(crate) fn new(id: usize, s: &Scenario, rng: &mut Rng, bug: Option<Bug>) -> Host {
        let mut seed = [0; 32];
        rng.fill(&mut seed);
        let regions = Arc::new(Regions::new(seed));
        let first = rng.range(16..=0x20_0000) as u32;
        let config = Config {
            qpns: first..first + 64,
            skip_qpns: first % 64,
            port_mtu: s.port_mtu,
            check_icrc: true,
            patience_ns: 0,
            initial_window: s.initial_window,
            max_window: s.max_window,
        };
        let counters = Arc::new(Counters::default());
        let mut engine = Engine::new(config, Arc::clone(&regions), counters);
        engine.set_bug(bug);
        let pd = regions.alloc_pd();
        let (arena, zones) = make_memory(id, s, rng, &regions, &pd);
        Host {
            address: address(id, s.ipv6),
            engine,
            regions,
            arena,
            pd,
            zones,
            rx: VecDeque::new(),
            serving: false,
            paused_until: Time::ZERO,
            timer: None,
            joined: BTreeSet::new(),
            batches: [1, 3, 64, 200]
                .map(|limit| Batch::with_run_limits(limit, RUN_LIMITS))
                .into(),
            held: None,
            buffer: vec![0; BUFFER],
        }
    }

    /// Transmits one batch. Returns true if there may be more to send.
    pub(crate) fn transmit(
        &mut self,
        now: Time,
        rng: &mut Rng,
        out: &mut Vec<Outgoing>,
    ) -> Result<bool, String> {
        if let Some(which) = self.held.take() {
            self.engine.finish_transmit(now, &mut self.batches[which]);
        }
        let which = rng.below(self.batches.len() as u64) as usize;
        let batch = &mut self.batches[which];
        let more = self.engine.poll_transmit(now, batch);
        let mut faults = Vec::new();
        for run in batch.runs() {
            if run.packets.len() > RUN_LIMITS.packets {
                return Err(format!("a run of {} packets", run.packets.len()));
            }
            let mut bytes = 0;
            for (ip_id, index) in run.packets.clone().enumerate() {
                let want = batch.packet(index).wire_len();
                let whole = index + 1 < run.packets.end;
                if want > run.segment || whole && want != run.segment {
                    return Err(format!(
                        "a packet of {want} bytes in a run of {}",
                        run.segment
                    ));
                }
                bytes += want;
                let (path, ip_id) = (run.path, ip_id as u16);
                match batch.assemble(index, &path, ip_id, &self.arena, &mut self.buffer) {
                    Ok(len) if len != want => return Err(format!("{len} bytes, not {want}")),
                    Ok(len) => out.push(Outgoing {
                        qpn: batch.packet(index).qpn(),
                        path,
                        ip_id,
                        bytes: self.buffer[..len].into(),
                    }),
                    Err(fault) => faults.push((index, fault)),
                }
            }
            if bytes > RUN_LIMITS.bytes {
                return Err(format!("a run of {bytes} bytes"));
            }
        }
        let sent = !batch.is_empty();
        for (index, fault) in faults {
            batch.fault(index, fault);
        }
        if sent && rng.chance(0.02) {
            self.engine.fail_unreadable(now, batch);
            self.held = Some(which);
            return Ok(false);
        }
        self.engine.finish_transmit(now, batch);
        Ok(sent || more)
    }

    /// Returns true while a batch waits for room in the socket buffer.
    pub(crate) fn is_blocked(&self) -> bool {
        self.held.is_some()
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
