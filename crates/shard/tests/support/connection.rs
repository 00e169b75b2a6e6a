//! Two shards in one thread, connected by an RC queue pair each, in virtual time.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;

use ferroce_net::{Source, Wire};
use ferroce_roce::{
    Access, AddressHandle, AddressVector, AttrMask, Config, Counters, Cq, Engine, Event, Fault,
    MemRef, Memory, Mr, Pd, QpAttr, QpCap, QpInit, QpState, QpType, RecvWr, Regions, SendData,
    SendFlags, SendOp, SendWr, Sge, Time, UdTarget, WcStatus,
};
use ferroce_shard::{Caller, Core, CreditPage, Process, Sending};
use ferroce_wire::{Mtu, Psn};

/// Address of an end's memory.
const BASE: u64 = 0x10_0000;
/// Bytes of an end's memory, and of the WRITE.
const SIZE: usize = 256 << 10;
/// Virtual time of one step.
const STEP_NS: u64 = 10_000;
/// Most steps until the WRITE must have completed: ten seconds. A wire may drop the same packet
/// several times, and each ACK timeout takes 268 ms.
const STEPS: u64 = 1_000_000;

/// One end of the connection.
pub(crate) struct End<W: Wire> {
    pub(crate) core: Core<W, Arc<CreditPage>>,
    memory: Ram,
    mr: Arc<Mr>,
    pub(crate) cq: Arc<Cq>,
    /// The queue of receives, which is `cq` by default.
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) qpn: u32,
    kind: QpType,
    pd: Arc<Pd>,
    /// RNR retries of the queue pair; 7 for no limit.
    pub(crate) rnr_retry: u8,
}

/// Memory that holds bytes from [`BASE`] on; the process of an end.
struct Ram(RefCell<Vec<u8>>);

impl Ram {
    fn start(&self, at: MemRef, length: usize) -> Result<usize, Fault> {
        let start = at.addr().checked_sub(BASE).map(|start| start as usize);
        start
            .filter(|start| start + length <= SIZE)
            .ok_or(Fault::host(at.addr()))
    }
}

impl Memory for Ram {
    fn read(&self, at: MemRef, into: &mut [u8]) -> Result<(), Fault> {
        let start = self.start(at, into.len())?;
        into.copy_from_slice(&self.0.borrow()[start..start + into.len()]);
        Ok(())
    }

    fn write(&self, at: MemRef, data: &[u8]) -> Result<(), Fault> {
        let start = self.start(at, data.len())?;
        self.0.borrow_mut()[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn compare_swap(&self, at: MemRef, _: u64, _: u64) -> Result<u64, Fault> {
        Err(Fault::host(at.addr()))
    }

    fn fetch_add(&self, at: MemRef, _: u64) -> Result<u64, Fault> {
        Err(Fault::host(at.addr()))
    }

    fn store_release(&self, at: MemRef, _: [u8; 8]) -> Result<(), Fault> {
        Err(Fault::host(at.addr()))
    }

    fn flush(&self, at: MemRef, _: u64, _: bool) -> Result<(), Fault> {
        Err(Fault::host(at.addr()))
    }
}

/// A process that ignores events.
struct Quiet<'a>(&'a Ram);

impl Process for Quiet<'_> {
    fn memory(&self) -> &dyn Memory {
        self.0
    }

    fn report(&mut self, _: Event) {}
}

impl<W: Wire> End<W> {
    pub(crate) fn new(wire: W, page: &Arc<CreditPage>, kind: QpType, fill: u8) -> End<W> {
        let cq = Cq::new(1, 16).expect("a completion queue");
        End::with_queues(wire, page, kind, fill, [Arc::clone(&cq), cq])
    }

    /// Creates an end whose sends and receives complete in these queues.
    pub(crate) fn with_queues(
        wire: W,
        page: &Arc<CreditPage>,
        kind: QpType,
        fill: u8,
        [cq, recv_cq]: [Arc<Cq>; 2],
    ) -> End<W> {
        let slot = wire.properties().slot;
        let regions = Arc::new(Regions::new([slot; 32]));
        let pd = regions.alloc_pd();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = regions.register(&pd, MemRef::host(BASE), SIZE as u64, BASE, access);
        let first = u32::from(slot) << 16;
        let config = Config {
            qpns: first + 16..first + 32,
            ..Config::default()
        };
        let engine = Engine::new(config, Arc::clone(&regions), Arc::new(Counters::default()));
        let core = Core::new(engine, wire, Arc::clone(page));
        let mut core = core.expect("a wire that can be set up");
        let init = QpInit {
            qp_type: kind,
            pd: Some(Arc::clone(&pd)),
            send_cq: Some(Arc::clone(&cq)),
            recv_cq: Some(Arc::clone(&recv_cq)),
            srq: None,
            xrcd: None,
            cap: QpCap {
                max_send_wr: 4,
                max_recv_wr: 4,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: true,
        };
        let (qpn, _) = core.engine.create_qp(&init).expect("a queue pair");
        let bytes = (0..SIZE).map(|n| (n % 251) as u8 ^ fill).collect();
        End {
            core,
            memory: Ram(RefCell::new(bytes)),
            mr: mr.expect("a region"),
            cq,
            recv_cq,
            qpn,
            kind,
            pd,
            rnr_retry: 7,
        }
    }

    /// Moves the queue pair to RTS, with this peer.
    pub(crate) fn connect(&mut self, peer: u32, source: IpAddr, destination: IpAddr) {
        use AttrMask as M;
        let (mut rtr, mut rts) = (M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN, M::SQ_PSN);
        if self.kind == QpType::Rc {
            rtr |= M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
            rts |= M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        }
        let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
        let mut attr = QpAttr {
            access: Access::REMOTE_WRITE,
            path_mtu: Mtu::Mtu1024,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: self.rnr_retry,
            rq_psn: Psn::new(1000),
            sq_psn: Psn::new(1000),
            min_rnr_timer: 12,
            dest_qpn: peer,
            av: Some(AddressVector {
                source,
                destination,
                sgid_index: 0,
                flow_label: 0,
                hop_limit: 64,
                traffic_class: 0,
                sl: 0,
                port: 1,
            }),
            ..QpAttr::default()
        };
        for (state, mask) in [
            (QpState::Init, init),
            (QpState::Rtr, rtr),
            (QpState::Rts, rts),
        ] {
            attr.state = state;
            self.modify(&attr, M::STATE | mask);
        }
        let port = self
            .core
            .choose_port(self.qpn, 0xc123, Source::Address(source));
        let _port = port.expect("a source port");
    }

    /// Moves a UD queue pair to RTS.
    pub(crate) fn prepare_datagrams(&mut self) {
        use AttrMask as M;
        let init = M::PKEY_INDEX | M::PORT | M::QKEY;
        for (state, mask) in [
            (QpState::Init, init),
            (QpState::Rtr, M::STATE),
            (QpState::Rts, M::SQ_PSN),
        ] {
            let attr = QpAttr {
                state,
                ..QpAttr::default()
            };
            self.modify(&attr, M::STATE | mask);
        }
    }

    pub(crate) fn modify(&mut self, attr: &QpAttr, mask: AttrMask) {
        let mut process = Quiet(&self.memory);
        let modified = self
            .core
            .modify_qp(Time::ZERO, &mut process, self.qpn, attr, mask);
        modified.expect("a permitted change");
    }

    pub(crate) fn destroy(&mut self) {
        let mut process = Quiet(&self.memory);
        let destroyed = self.core.destroy_qp(Time::ZERO, &mut process, self.qpn);
        destroyed.expect("a queue pair without multicast groups");
    }

    /// Returns the first `length` bytes of the end's memory.
    pub(crate) fn sge(&self, length: u32) -> Sge {
        Sge {
            addr: BASE,
            length,
            lkey: self.mr.lkey(),
        }
    }

    /// Posts a WRITE of 64 bytes to the end's own memory, as a program does.
    pub(crate) fn post_write(&mut self, now: Time, wr_id: u64) {
        let sending = self.begin_write(now, wr_id);
        self.core.complete(now, &mut Quiet(&self.memory), sending);
    }

    /// Posts a WRITE of 64 bytes to the end's own memory. Returns the packets that the posting
    /// thread sends.
    pub(crate) fn begin_write(
        &mut self,
        now: Time,
        wr_id: u64,
    ) -> Option<Sending<W, Arc<CreditPage>>> {
        self.begin_write_of(now, wr_id, 64)
    }

    /// As [`End::begin_write`], with this number of bytes.
    pub(crate) fn begin_write_of(
        &mut self,
        now: Time,
        wr_id: u64,
        length: u32,
    ) -> Option<Sending<W, Arc<CreditPage>>> {
        let sges = [self.sge(length)];
        let wr = SendWr {
            wr_id,
            op: SendOp::Write {
                remote_addr: BASE,
                rkey: self.mr.rkey(),
                imm: None,
            },
            flags: SendFlags::SIGNALED,
            data: SendData::Sges(&sges),
            ud: None,
            xrc_srq: 0,
        };
        let posted = self.core.engine.post_send(now, self.qpn, wr);
        posted.expect("room");
        self.core.posted(now, &mut Quiet(&self.memory), self.qpn)
    }

    /// Posts a receive of 64 bytes.
    pub(crate) fn post_receive(&mut self, now: Time, wr_id: u64) {
        let sges = [self.sge(64)];
        let receive = RecvWr { wr_id, sges: &sges };
        let posted = self.core.engine.post_recv(now, self.qpn, &receive);
        posted.expect("room");
    }

    /// Posts a SEND of 64 bytes and a receive for it.
    pub(crate) fn post_send(&mut self, now: Time, wr_id: u64) {
        self.post_receive(now, wr_id);
        let sges = [self.sge(64)];
        let engine = &mut self.core.engine;
        let wr = SendWr {
            wr_id,
            op: SendOp::Send { imm: None },
            flags: SendFlags::SIGNALED,
            data: SendData::Sges(&sges),
            ud: None,
            xrc_srq: 0,
        };
        engine.post_send(now, self.qpn, wr).expect("room");
        let mut process = Quiet(&self.memory);
        let sending = self.core.posted(now, &mut process, self.qpn);
        self.core.complete(now, &mut process, sending);
    }

    /// Posts a datagram of 64 bytes to the end itself, at this address.
    pub(crate) fn post_datagram(&mut self, now: Time, address: IpAddr) {
        let sges = [self.sge(64)];
        let av = AddressVector {
            source: address,
            destination: address,
            sgid_index: 0,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
            sl: 0,
            port: 1,
        };
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Send { imm: None },
            flags: SendFlags::SIGNALED,
            data: SendData::Sges(&sges),
            ud: Some(UdTarget {
                ah: AddressHandle::new(Arc::clone(&self.pd), av),
                remote_qpn: self.qpn,
                remote_qkey: 0,
            }),
            xrc_srq: 0,
        };
        let posted = self.core.engine.post_send(now, self.qpn, wr);
        posted.expect("room");
        let mut process = Quiet(&self.memory);
        let sending = self.core.posted(now, &mut process, self.qpn);
        self.core.complete(now, &mut process, sending);
    }

    /// Sends packets outside the core, and returns the next ones.
    pub(crate) fn send(
        &mut self,
        now: Time,
        mut packets: Sending<W, Arc<CreditPage>>,
        continues: bool,
    ) -> Option<Sending<W, Arc<CreditPage>>> {
        packets.send(now);
        let mut process = Quiet(&self.memory);
        self.core
            .end_transmit(now, &mut process, packets, continues)
    }

    /// Sends deferred ACKs and posts that wait.
    pub(crate) fn flush(&mut self, now: Time) {
        self.core.flush_deferred(now, &mut Quiet(&self.memory));
    }

    pub(crate) fn turn(&mut self, now: Time, caller: Caller) {
        let mut process = Quiet(&self.memory);
        let (_, sending) = self.core.turn(now, &mut process, caller);
        self.core.complete(now, &mut process, sending);
    }
}

impl<W: Wire> End<W> {
    /// Returns the first `length` bytes of the end's memory.
    pub(crate) fn bytes(&self, length: usize) -> Vec<u8> {
        self.memory.0.borrow()[..length].to_vec()
    }
}

/// Connects two wires at these addresses, WRITEs 256 KiB from the first end to the second,
/// and checks that all bytes arrive and one completion reports success. `carry` runs after
/// each step, for wires that need help to move packets.
pub(crate) fn write_arrives<W: Wire>(
    wires: [W; 2],
    addresses: [IpAddr; 2],
    mut carry: impl FnMut(&mut [End<W>; 2], Time),
) -> [End<W>; 2] {
    let page = Arc::default();
    let [one, other] = wires;
    let mut ends = [
        End::new(one, &page, QpType::Rc, 0),
        End::new(other, &page, QpType::Rc, 0xff),
    ];
    let [a, b] = [ends[0].qpn, ends[1].qpn];
    ends[0].connect(b, addresses[0], addresses[1]);
    ends[1].connect(a, addresses[1], addresses[0]);
    let sges = [ends[0].sge(SIZE as u32)];
    let wr = SendWr {
        wr_id: 7,
        op: SendOp::Write {
            remote_addr: BASE,
            rkey: ends[1].mr.rkey(),
            imm: None,
        },
        flags: SendFlags::SIGNALED,
        data: SendData::Sges(&sges),
        ud: None,
        xrc_srq: 0,
    };
    let posted = ends[0].core.engine.post_send(Time::ZERO, a, wr);
    posted.expect("a WRITE");
    let mut completed = None;
    for step in 0..STEPS {
        let now = Time::from_nanos(step * STEP_NS);
        let caller = match step % 3 {
            0 => Caller::ProgressThread,
            1 => Caller::Poller,
            _ => Caller::Stream,
        };
        ends[0].turn(now, caller);
        carry(&mut ends, now);
        ends[1].turn(now, caller);
        carry(&mut ends, now);
        ends[0].cq.poll(1, |wc| completed = Some(wc));
        if completed.is_some() {
            break;
        }
    }
    let completed = completed.expect("the WRITE completes within ten seconds of virtual time");
    assert_eq!(completed.status, WcStatus::Success);
    assert!(ends[0].memory.0 == ends[1].memory.0, "all bytes arrive");
    ends
}
