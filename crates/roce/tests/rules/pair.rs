//! Test harness: two engines, a wire between them, and a virtual clock.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ferroce_roce::{
    Access, AddressVector, AttrMask, Batch, Config, Counter, Counters, Cq, Datagram, Engine, Event,
    IpId, MemRef, Mr, Pd, QpAttr, QpCap, QpInit, QpState, QpType, Received, RecvWr, Regions,
    SendData, SendFlags, SendOp, SendWr, Sge, Srq, Time, Wc,
};
use ferroce_wire::{Mtu, Packet, Psn};

pub use crate::ram::{BASE, Ram, SIZE};
pub use ferroce_roce::Path;

/// One end of the wire: an engine with its memory and one queue pair.
pub struct Host {
    pub engine: Engine,
    pub ram: Ram,
    pub regions: Arc<Regions>,
    pub counters: Arc<Counters>,
    pub address: IpAddr,
    pub pd: Arc<Pd>,
    pub mr: Arc<Mr>,
    pub cq: Arc<Cq>,
    pub srq: Option<Arc<Srq>>,
    pub qpn: u32,
    pub events: Vec<Event>,
}

/// A packet on the wire.
#[derive(Clone, Debug)]
pub struct Sent {
    pub from: usize,
    pub path: Path,
    pub ip_id: u16,
    pub bytes: Vec<u8>,
}

impl Sent {
    pub fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes).unwrap()
    }

    fn datagram(&self) -> Datagram<'_> {
        Datagram {
            source: self.path.flow.source,
            destination: self.path.flow.destination,
            source_port: self.path.flow.source_port,
            traffic_class: self.path.traffic_class,
            hop_limit: self.path.hop_limit,
            ip_id: match self.path.in_memory {
                true => IpId::InMemory,
                false => IpId::UNSEEN,
            },
            payload: &self.bytes,
        }
    }
}

/// Two hosts, the wire between them, and the time.
pub struct Pair {
    pub now: Time,
    pub hosts: [Host; 2],
    /// Packets sent and not yet delivered.
    pub wire: VecDeque<Sent>,
    /// All packets sent since the last [`Pair::trace`].
    pub log: Vec<Sent>,
}

/// Parameters of a [`Pair`].
#[derive(Clone)]
pub struct Knobs {
    pub qp_type: QpType,
    pub config: Config,
    pub attr: QpAttr,
    pub sig_all: bool,
    pub cap: QpCap,
    pub cqe: u32,
    pub srq: Option<fn(&Host) -> Arc<Srq>>,
}

impl Default for Knobs {
    fn default() -> Knobs {
        Knobs {
            qp_type: QpType::Rc,
            config: Config::default(),
            attr: QpAttr {
                access: Access::REMOTE_WRITE
                    | Access::REMOTE_READ
                    | Access::REMOTE_ATOMIC
                    | Access::FLUSH_GLOBAL
                    | Access::FLUSH_PERSISTENT,
                path_mtu: Mtu::Mtu1024,
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                rq_psn: Psn::new(1000),
                sq_psn: Psn::new(1000),
                max_rd_atomic: 16,
                max_dest_rd_atomic: 16,
                min_rnr_timer: 12,
                qkey: 0x1111,
                ..QpAttr::default()
            },
            sig_all: true,
            cap: QpCap {
                max_send_wr: 256,
                max_recv_wr: 256,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            cqe: 1023,
            srq: None,
        }
    }
}

pub const INIT: AttrMask = AttrMask::STATE
    .union(AttrMask::PKEY_INDEX)
    .union(AttrMask::PORT)
    .union(AttrMask::ACCESS_FLAGS);
pub const RTR: AttrMask = AttrMask::STATE
    .union(AttrMask::AV)
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::DEST_QPN)
    .union(AttrMask::RQ_PSN);
pub const RTS: AttrMask = AttrMask::STATE.union(AttrMask::SQ_PSN);
pub const RC_RTR: AttrMask = RTR
    .union(AttrMask::MAX_DEST_RD_ATOMIC)
    .union(AttrMask::MIN_RNR_TIMER);
pub const RC_RTS: AttrMask = RTS
    .union(AttrMask::TIMEOUT)
    .union(AttrMask::RETRY_CNT)
    .union(AttrMask::RNR_RETRY)
    .union(AttrMask::MAX_QP_RD_ATOMIC);
pub const UD_INIT: AttrMask = AttrMask::STATE
    .union(AttrMask::PKEY_INDEX)
    .union(AttrMask::PORT)
    .union(AttrMask::QKEY);

pub fn all_access() -> Access {
    Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::MW_BIND
        | Access::FLUSH_GLOBAL
        | Access::FLUSH_PERSISTENT
}

impl Host {
    fn new(number: u8, knobs: &Knobs) -> Host {
        let regions = Arc::new(Regions::new([number; 32]));
        let counters = Arc::new(Counters::default());
        let pd = regions.alloc_pd();
        let mr = regions
            .register(&pd, MemRef::host(BASE), SIZE as u64, BASE, all_access())
            .unwrap();
        let engine = Engine::new(knobs.config.clone(), regions.clone(), counters.clone());
        let mut host = Host {
            engine,
            ram: Ram::new(number),
            counters,
            address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, number)),
            pd,
            mr,
            cq: Cq::new(u32::from(number), knobs.cqe).unwrap(),
            srq: None,
            qpn: 0,
            events: Vec::new(),
            regions,
        };
        host.srq = knobs.srq.map(|make| make(&host));
        let init = host.qp_init(knobs);
        host.qpn = host.engine.create_qp(&init).unwrap().0;
        host
    }

    /// Returns the parameters of the host's queue pair, to create more like it.
    pub fn qp_init(&self, knobs: &Knobs) -> QpInit {
        QpInit {
            qp_type: knobs.qp_type,
            pd: Some(self.pd.clone()),
            send_cq: Some(self.cq.clone()),
            recv_cq: Some(self.cq.clone()),
            srq: self.srq.clone(),
            xrcd: None,
            cap: knobs.cap,
            sq_sig_all: knobs.sig_all,
        }
    }

    pub fn count(&self, counter: Counter) -> u64 {
        self.counters.get(counter)
    }

    pub fn completions(&self) -> Vec<Wc> {
        let mut all = Vec::new();
        self.cq.poll(usize::MAX, |wc| all.push(wc));
        all
    }

    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge {
            addr: BASE + offset,
            length,
            lkey: self.mr.lkey(),
        }
    }

    pub fn state(&self) -> QpState {
        self.engine.query_qp(self.qpn).unwrap().attr.state
    }
}

/// Returns an address vector for packets from `source` to `destination`.
pub fn av(source: IpAddr, destination: IpAddr) -> AddressVector {
    AddressVector {
        source,
        destination,
        sgid_index: 1,
        flow_label: 0,
        hop_limit: 64,
        traffic_class: 0,
        sl: 0,
        port: 1,
    }
}

pub fn wr(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendWr<'_> {
    SendWr {
        wr_id,
        op,
        flags: SendFlags::empty(),
        data: SendData::Sges(sges),
        ud: None,
        xrc_srq: 0,
    }
}

impl Pair {
    /// Returns two hosts with connected queue pairs.
    pub fn new(knobs: &Knobs) -> Pair {
        let mut pair = Pair::unconnected(knobs);
        pair.connect(knobs);
        pair
    }

    /// Returns two hosts with connected RC queue pairs and default parameters.
    pub fn rc() -> Pair {
        Pair::new(&Knobs::default())
    }

    pub fn unconnected(knobs: &Knobs) -> Pair {
        Pair {
            now: Time::from_nanos(1_000_000),
            hosts: [Host::new(1, knobs), Host::new(2, knobs)],
            wire: VecDeque::new(),
            log: Vec::new(),
        }
    }

    pub fn connect(&mut self, knobs: &Knobs) {
        for side in 0..2 {
            self.bring_to_rtr(side, knobs);
            self.bring_to_rts(side, knobs);
        }
    }

    pub fn bring_to_rtr(&mut self, side: usize, knobs: &Knobs) {
        let (init, rtr) = match knobs.qp_type {
            QpType::Rc => (INIT, RC_RTR),
            QpType::Uc => (INIT, RTR),
            QpType::Gsi => (UD_INIT - AttrMask::PORT, AttrMask::STATE),
            _ => (UD_INIT, AttrMask::STATE),
        };
        let mut attr = knobs.attr;
        attr.av = Some(av(self.hosts[side].address, self.hosts[1 - side].address));
        attr.dest_qpn = self.hosts[1 - side].qpn;
        attr.state = QpState::Init;
        self.modify(side, &attr, init);
        attr.state = QpState::Rtr;
        self.modify(side, &attr, rtr);
    }

    pub fn bring_to_rts(&mut self, side: usize, knobs: &Knobs) {
        let rts = match knobs.qp_type {
            QpType::Rc => RC_RTS,
            _ => RTS,
        };
        let attr = QpAttr {
            state: QpState::Rts,
            ..knobs.attr
        };
        self.modify(side, &attr, rts);
    }

    pub fn modify(&mut self, side: usize, attr: &QpAttr, mask: AttrMask) {
        let host = &mut self.hosts[side];
        host.engine
            .modify_qp(self.now, host.qpn, attr, mask)
            .unwrap();
    }

    pub fn post(&mut self, side: usize, wr: SendWr<'_>) {
        let host = &mut self.hosts[side];
        host.engine.post_send(self.now, host.qpn, wr).unwrap();
    }

    pub fn post_recv(&mut self, side: usize, wr_id: u64, sges: &[Sge]) {
        let host = &mut self.hosts[side];
        host.engine
            .post_recv(self.now, host.qpn, &RecvWr { wr_id, sges })
            .unwrap();
    }

    /// Puts all packets that a host has to send onto the wire.
    pub fn flush(&mut self, side: usize) {
        while self.flush_some(side, 64) {}
    }

    /// Puts up to `limit` packets of a host onto the wire; returns true if there may be more.
    pub fn flush_some(&mut self, side: usize, limit: usize) -> bool {
        let host = &mut self.hosts[side];
        let mut batch = Batch::new(limit, ferroce_roce::RunLimits::NONE);
        host.engine.poll_transmit(self.now, &mut batch);
        let more = !batch.is_empty();
        for run in batch.runs().to_vec() {
            for (id, index) in run.packets.clone().enumerate() {
                let mut bytes = vec![0; batch.packet(index).wire_len()];
                match batch.assemble(index, &run.path, id as u16, &host.ram, &mut bytes) {
                    Ok(length) => {
                        assert_eq!(length, bytes.len());
                        let sent = Sent {
                            from: side,
                            path: run.path,
                            ip_id: id as u16,
                            bytes,
                        };
                        self.log.push(sent.clone());
                        self.wire.push_back(sent);
                    }
                    Err(fault) => batch.fault(index, fault),
                }
            }
        }
        host.engine.finish_transmit(self.now, &mut batch);
        while let Some(event) = host.engine.poll_event() {
            host.events.push(event);
        }
        more
    }

    /// Delivers a packet to the other host, by the fast path if the packet is predicted.
    pub fn deliver(&mut self, sent: &Sent) -> Received {
        match self.deliver_predicted(sent, sent.bytes.len()) {
            0 => self.deliver_slow_path(sent),
            _ => Received::Accepted,
        }
    }

    /// Delivers a packet to the other host by the slow path.
    pub fn deliver_slow_path(&mut self, sent: &Sent) -> Received {
        let host = &mut self.hosts[1 - sent.from];
        host.engine.receive(self.now, &host.ram, &sent.datagram())
    }

    /// Delivers a merged run of packets of `segment` bytes by the fast path (header
    /// prediction); returns the number of packets taken.
    pub fn deliver_predicted(&mut self, sent: &Sent, segment: usize) -> usize {
        let host = &mut self.hosts[1 - sent.from];
        let (run, memory) = (sent.datagram(), &host.ram);
        host.engine
            .receive_predicted(self.now, memory, &run, segment)
    }

    /// Delivers packets until neither host has more to send, but drops those for which
    /// `lose` is true.
    pub fn run_losing(&mut self, mut lose: impl FnMut(&Sent) -> bool) {
        loop {
            self.flush(0);
            self.flush(1);
            let Some(sent) = self.wire.pop_front() else {
                return;
            };
            if !lose(&sent) {
                self.deliver(&sent);
            }
        }
    }

    /// Delivers packets until neither host has more to send. No time passes.
    pub fn run(&mut self) {
        self.run_losing(|_| false);
    }

    /// Moves the time to the next timer of either host and fires it; false if there is none.
    pub fn fire_next_timer(&mut self) -> bool {
        let next = self
            .hosts
            .iter()
            .filter_map(|h| h.engine.next_timeout())
            .min();
        let Some(next) = next else {
            return false;
        };
        self.now = self.now.max(next);
        for host in &mut self.hosts {
            host.engine.handle_timeout(self.now);
        }
        true
    }

    /// Delivers packets and fires timers until no packet and no timer is left.
    pub fn run_until_idle(&mut self) {
        for _ in 0..10_000 {
            self.run();
            if !self.fire_next_timer() {
                return;
            }
        }
        panic!("still packets or timers after 10000 rounds");
    }
}
