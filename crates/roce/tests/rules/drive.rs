//! Fuzz driver: turns arbitrary bytes into packets for a host with queue pairs of all types.
//! A proptest and the fuzz target `transport_receive` use it.
//!
//! The packets pass as many checks as possible: each goes to an existing queue pair, with a
//! PSN near the expected one, a valid key and a valid ICRC. The driver checks that no access
//! leaves registered memory, that the queues keep their limits, and that sending ends.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ferroce_roce::{
    Access, AddressVector, AttrMask, Batch, Config, Counters, Cq, Datagram, Engine, Fault, IpId,
    MemRef, Memory, MemorySpace, Mr, QpAttr, QpCap, QpInit, QpState, QpType, RecvWr, Regions,
    SendData, SendFlags, SendOp, SendWr, Sge, Srq, SrqInit, Time, Xrcd,
};
use ferroce_wire::{Flow, Mtu, Opcode, Psn, icrc};

const KINDS: [QpType; 5] = [
    QpType::Rc,
    QpType::Uc,
    QpType::Ud,
    QpType::XrcTarget,
    QpType::XrcInitiator,
];
const US: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const FLOW: Flow = Flow {
    source: PEER,
    destination: US,
    source_port: 0xc000,
};
/// Size of the memory, 17 bits of addresses. The middle half is registered.
const SIZE: usize = 0x2_0000;
const START: u64 = 0x8000;
const LENGTH: u64 = 0x1_0000;
const XRC_SRQ: u32 = 7;

struct Ram(RefCell<Vec<u8>>);

impl Ram {
    /// Returns the indices of a range; panics if it is not registered.
    fn range(at: MemRef, length: usize) -> std::ops::Range<usize> {
        assert_eq!(at.space(), MemorySpace::Host);
        let address = at.addr();
        let end = address + length as u64;
        assert!(
            START <= address && end <= START + LENGTH,
            "{address:#x}+{length}"
        );
        address as usize..end as usize
    }
}

impl Memory for Ram {
    fn read(&self, at: MemRef, into: &mut [u8]) -> Result<(), Fault> {
        into.copy_from_slice(&self.0.borrow()[Ram::range(at, into.len())]);
        Ok(())
    }

    fn write(&self, at: MemRef, data: &[u8]) -> Result<(), Fault> {
        self.0.borrow_mut()[Ram::range(at, data.len())].copy_from_slice(data);
        Ok(())
    }

    fn compare_swap(&self, at: MemRef, _: u64, new: u64) -> Result<u64, Fault> {
        assert_eq!(at.addr() % 8, 0);
        self.write(at, &new.to_ne_bytes()).map(|()| 0)
    }

    fn fetch_add(&self, at: MemRef, add: u64) -> Result<u64, Fault> {
        self.compare_swap(at, 0, add)
    }

    fn store_release(&self, at: MemRef, bytes: [u8; 8]) -> Result<(), Fault> {
        assert_eq!(at.addr() % 8, 0);
        self.write(at, &bytes)
    }

    fn flush(&self, at: MemRef, length: u64, _: bool) -> Result<(), Fault> {
        Ram::range(at, length as usize);
        Ok(())
    }
}

/// A host with one queue pair of each type.
struct Host {
    now: Time,
    engine: Engine,
    ram: Ram,
    mr: Arc<Mr>,
    /// Keeps the XRC shared receive queue alive.
    _srq: Arc<Srq>,
}

/// Delivers the packets in `data`.
pub fn drive(mut data: &[u8]) {
    let mut host = Host::new();
    while let [how, length, rest @ ..] = data {
        let (body, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        data = rest;
        host.packet(*how, body);
        if how & 0x10 != 0 {
            host.transmit();
        }
        if how & 0x20 != 0 {
            host.now = host.now.after_nanos(500_000);
            host.engine.handle_timeout(host.now);
        }
        while host.engine.poll_event().is_some() {}
    }
    host.transmit();
    for n in 0..KINDS.len() {
        let query = host.engine.query_qp(16 + n as u32).unwrap();
        assert!(query.sends <= 8 && query.receives <= 8);
    }
}

impl Host {
    fn new() -> Host {
        let regions = Arc::new(Regions::new([0; 32]));
        let pd = regions.alloc_pd();
        let access = Access::from_bits_truncate(0x31f & !Access::MW_BIND.bits());
        let mr = regions
            .register(&pd, MemRef::host(START), LENGTH, START, access)
            .unwrap();
        let config = Config {
            port_mtu: Mtu::Mtu256,
            ..Config::default()
        };
        let mut engine = Engine::new(config, regions, Arc::new(Counters::default()));
        let cq = Cq::new(1, 1000).unwrap();
        let xrcd = Xrcd::new();
        let srq_init = SrqInit {
            max_wr: 8,
            max_sge: 1,
            xrc: Some((xrcd.clone(), cq.clone())),
        };
        let srq = Srq::new(XRC_SRQ, pd.clone(), srq_init).unwrap();
        for kind in KINDS {
            let init = QpInit {
                qp_type: kind,
                pd: Some(pd.clone()),
                send_cq: Some(cq.clone()),
                recv_cq: Some(cq.clone()),
                srq: None,
                xrcd: Some(xrcd.clone()),
                cap: QpCap {
                    max_send_wr: 8,
                    max_recv_wr: 8,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: 0,
                },
                sq_sig_all: true,
            };
            engine.create_qp(&init).unwrap();
        }
        let mut host = Host {
            now: Time::from_nanos(1),
            engine,
            ram: Ram(RefCell::new(vec![0; SIZE])),
            mr,
            _srq: srq,
        };
        for (qpn, kind) in (16..).zip(KINDS) {
            host.connect(qpn, kind);
            host.post(qpn, kind);
        }
        host
    }

    fn connect(&mut self, qpn: u32, kind: QpType) {
        use AttrMask as M;
        let connected = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let responder = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        let requester = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        let first = M::PKEY_INDEX | M::PORT;
        let (init, rtr, rts) = match kind {
            QpType::Ud => (first | M::QKEY, M::empty(), M::SQ_PSN),
            QpType::Uc => (first | M::ACCESS_FLAGS, connected, M::SQ_PSN),
            QpType::XrcTarget => (
                first | M::ACCESS_FLAGS,
                connected | responder,
                M::SQ_PSN | M::TIMEOUT,
            ),
            QpType::XrcInitiator => (first | M::ACCESS_FLAGS, connected, M::SQ_PSN | requester),
            _ => (
                first | M::ACCESS_FLAGS,
                connected | responder,
                M::SQ_PSN | requester,
            ),
        };
        let mut attr = QpAttr {
            access: Access::from_bits_truncate(0x30e),
            path_mtu: Mtu::Mtu256,
            timeout: 6,
            retry_cnt: 7,
            rnr_retry: 7,
            rq_psn: Psn::new(0xff_fffe),
            sq_psn: Psn::new(0xff_fffe),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            dest_qpn: 99,
            qkey: 0x1111,
            av: Some(AddressVector {
                source: US,
                destination: PEER,
                sgid_index: 0,
                flow_label: 0,
                hop_limit: 1,
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
            let mask = mask | AttrMask::STATE;
            self.engine.modify_qp(self.now, qpn, &attr, mask).unwrap();
        }
    }

    /// Posts receives, and sends to which packets in `data` may be responses.
    fn post(&mut self, qpn: u32, kind: QpType) {
        let sges = [Sge {
            addr: START + 0x1000,
            length: 700,
            lkey: self.mr.lkey(),
        }];
        for wr_id in 0..8 {
            let wr = RecvWr { wr_id, sges: &sges };
            match kind {
                QpType::XrcTarget => self._srq.post(&wr).unwrap(),
                QpType::XrcInitiator => {}
                _ => self.engine.post_recv(self.now, qpn, &wr).unwrap(),
            }
        }
        if !matches!(kind, QpType::Rc | QpType::XrcInitiator) {
            return;
        }
        let (remote_addr, rkey) = (0, 1);
        for op in [
            SendOp::Send { imm: None },
            SendOp::Read { remote_addr, rkey },
            SendOp::FetchAdd {
                remote_addr,
                rkey,
                add: 1,
            },
            SendOp::Write {
                remote_addr,
                rkey,
                imm: None,
            },
            SendOp::Read { remote_addr, rkey },
        ] {
            let wr = SendWr {
                wr_id: 9,
                op,
                flags: SendFlags::empty(),
                data: SendData::Sges(&sges),
                ud: None,
                xrc_srq: 0,
            };
            self.engine.post_send(self.now, qpn, wr).unwrap();
        }
    }

    /// Makes a packet from some bytes and delivers it.
    fn packet(&mut self, how: u8, body: &[u8]) {
        let [opcode, flags, delta, body @ ..] = body else {
            return;
        };
        let kind = usize::from(how & 7) % KINDS.len();
        let qpn = 16 + kind as u32;
        let transport = [0x00, 0x20, 0x60, 0xa0, 0xa0][kind];
        let opcode = if how & 8 == 0 {
            transport | opcode & 0x1f
        } else {
            *opcode
        };
        let Some(known) = Opcode::from_byte(opcode) else {
            return;
        };
        let attr = self.engine.query_qp(qpn).unwrap().attr;
        let psn = match known.is_response() {
            true => attr.sq_psn.sub(u32::from(*delta)),
            false => attr
                .rq_psn
                .add(u32::from(*delta & 7))
                .sub(u32::from(*delta >> 5)),
        };
        let [_, psn @ ..] = psn.value().to_be_bytes();
        let [_, to @ ..] = qpn.to_be_bytes();
        let mut bytes = vec![opcode, flags & 0xf0, 0xff, 0xff, 0, to[0], to[1], to[2]];
        bytes.extend([flags & 0x80, psn[0], psn[1], psn[2]]);
        bytes.extend_from_slice(body);
        if flags & 1 != 0 {
            bytes.resize(known.header_len() + 256, 1); // FIRST and MIDDLE have one MTU of payload
        }
        self.make_plausible(known, *flags, &mut bytes);
        bytes.extend(icrc::compute(&FLOW, 0, &bytes));
        let datagram = Datagram {
            source: PEER,
            destination: US,
            source_port: FLOW.source_port,
            traffic_class: flags & 3,
            hop_limit: 1,
            ip_id: match flags & 4 {
                0 => IpId::Seen(0),
                _ => IpId::UNSEEN,
            },
            payload: &bytes,
        };
        let (now, memory) = (self.now, &self.ram);
        let predicted = self
            .engine
            .receive_predicted(now, memory, &datagram, bytes.len());
        if predicted == 0 {
            self.engine.receive(now, memory, &datagram);
        }
    }

    /// Writes valid keys, addresses and Q_Keys into headers that the engine would drop at
    /// once otherwise.
    fn make_plausible(&self, opcode: Opcode, flags: u8, bytes: &mut [u8]) {
        if bytes.len() < opcode.header_len() || flags & 2 != 0 {
            return;
        }
        let mut at = 12;
        if opcode.has_deth() {
            bytes[at..at + 4].copy_from_slice(&0x1111u32.to_be_bytes());
        }
        if opcode.has_xrceth() {
            bytes[at..at + 4].copy_from_slice(&XRC_SRQ.to_be_bytes());
            at += 4;
        }
        if opcode.has_feth() {
            bytes[at..at + 3].fill(0);
            at += 4;
        }
        if opcode.has_reth() || opcode.has_atomic_eth() {
            bytes[at..at + 5].fill(0);
            bytes[at + 8..at + 12].copy_from_slice(&self.mr.rkey().to_be_bytes());
        }
        if opcode.has_reth() && flags & 4 != 0 {
            bytes[at + 12..at + 14].fill(0);
        }
    }

    /// Sends all packets that the engine has to send.
    fn transmit(&mut self) {
        let mut bytes = [0; 400];
        for _ in 0..1000 {
            let mut batch = Batch::new(64, ferroce_roce::RunLimits::NONE);
            self.engine.poll_transmit(self.now, &mut batch);
            if batch.is_empty() {
                return;
            }
            for run in batch.runs() {
                for index in run.packets.clone() {
                    let sent = batch.assemble(index, &run.path, 0, &self.ram, &mut bytes);
                    assert_eq!(sent, Ok(batch.packet(index).wire_len()));
                }
            }
            self.engine.finish_transmit(self.now, &mut batch);
        }
        panic!("the engine still has packets to send after 1000 batches");
    }
}
