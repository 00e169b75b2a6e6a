//! One side of the engine benchmark: an engine, its memory, and the packets it sent.

use core::net::{IpAddr, Ipv4Addr};
use core::ops::Range;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use ferroce_net::RUN_LIMITS;
use ferroce_roce::{
    Access, AddressVector, AttrMask, Batch, Config, Counters, Cq, Datagram, Engine, Fault, IpId,
    MemRef, Memory, Mr, Pd, QpAttr, QpCap, QpInit, QpState, QpType, Received, RecvWr, Regions,
    SendData, SendFlags, SendOp, SendWr, Sge, Time, Trailer, WcStatus,
};
use ferroce_wire::{Flow, ICRC_LEN, MAX_HEADER_LEN, Mtu, Psn};

use crate::arena::Arena;
use crate::clock::{Stage, Stopwatch};
use crate::traffic::{MESSAGES, Op, Setup, Traffic};

/// Bytes of memory for one message.
pub(crate) const SLOT: usize = 4096;
/// Packets that a side can send before the other side receives them.
const WIRE_PACKETS: usize = 4 * MESSAGES;

/// An engine with its memory, queues and sent packets.
pub struct Side {
    pub(crate) engine: Engine,
    pub(crate) ends: Ends,
    pub(crate) wire: Wire,
    icrc: bool,
    batch: Batch,
}

/// Assembled packets, stored contiguously.
pub(crate) struct Wire {
    pub(crate) bytes: Vec<u8>,
    sent: Vec<Sent>,
    faults: Vec<(usize, Fault)>,
}

/// A run of packets.
struct Sent {
    bytes: Range<usize>,
    segment: usize,
    flow: Flow,
}

/// The memory and the queues of a side.
pub(crate) struct Ends {
    pub(crate) arena: Arena,
    pub(crate) qpns: Vec<u32>,
    mtu: Mtu,
    address: IpAddr,
    pd: Arc<Pd>,
    mr: Arc<Mr>,
    cq: Arc<Cq>,
}

impl Ends {
    /// Creates the memory and the queues of side 0 or 1, without queue pairs. Returns them with
    /// their engine.
    pub(crate) fn new(number: u8, setup: Setup) -> Result<(Ends, Engine)> {
        let regions = Arc::new(Regions::new([number; 32]));
        let config = Config {
            port_mtu: Mtu::Mtu4096,
            check_icrc: setup.icrc,
            // A whole exchange fits the window, so that no time is spent waiting.
            initial_window: 1 << 20,
            ..Config::default()
        };
        let arena = Arena::new((u64::from(number) + 1) << 32, MESSAGES * SLOT);
        let pd = regions.alloc_pd();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let base = arena.base();
        let mr = regions.register(
            &pd,
            MemRef::host(base),
            (MESSAGES * SLOT) as u64,
            base,
            access,
        )?;
        let ends = Ends {
            arena,
            qpns: Vec::new(),
            mtu: setup.mtu,
            address: Ipv4Addr::new(10, 0, 0, number + 1).into(),
            pd,
            mr,
            cq: Cq::new(0, 4 * MESSAGES as u32)?,
        };
        let engine = Engine::new(config, regions, Arc::new(Counters::default()));
        Ok((ends, engine))
    }

    /// Returns the address of a message in memory.
    fn slot(&self, message: usize) -> u64 {
        self.arena.base() + (message * SLOT) as u64
    }

    fn sge(&self, message: usize, size: usize) -> Sge {
        Sge {
            addr: self.slot(message),
            length: size as u32,
            lkey: self.mr.lkey(),
        }
    }

    /// Creates queue pairs, which are not connected yet.
    pub(crate) fn create_qps(
        &mut self,
        engine: &mut Engine,
        count: usize,
        queue: u32,
    ) -> Result<()> {
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: Some(Arc::clone(&self.pd)),
            send_cq: Some(Arc::clone(&self.cq)),
            recv_cq: Some(Arc::clone(&self.cq)),
            srq: None,
            xrcd: None,
            cap: QpCap {
                max_send_wr: queue,
                max_recv_wr: queue,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: false,
        };
        for _ in 0..count {
            let (qpn, _) = engine.create_qp(&init)?;
            self.qpns.push(qpn);
        }
        Ok(())
    }

    /// Connects queue pair `index` to that of the peer.
    pub(crate) fn connect(&self, engine: &mut Engine, index: usize, peer: &Ends) -> Result<()> {
        let qpn = self.qpns[index];
        let attr = QpAttr {
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            av: Some(AddressVector {
                source: self.address,
                destination: peer.address,
                sgid_index: 1,
                flow_label: 0,
                hop_limit: 64,
                traffic_class: 0,
                sl: 0,
                port: 1,
            }),
            path_mtu: self.mtu,
            dest_qpn: peer.qpns[index],
            rq_psn: Psn::new(0x1000),
            sq_psn: Psn::new(0x1000),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        let rtr = AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        let rts = AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::SQ_PSN
            | AttrMask::MAX_QP_RD_ATOMIC;
        for (state, mask) in [
            (QpState::Init, init),
            (QpState::Rtr, rtr),
            (QpState::Rts, rts),
        ] {
            let attr = QpAttr { state, ..attr };
            engine
                .modify_qp(Time::ZERO, qpn, &attr, mask | AttrMask::STATE)
                .with_context(|| format!("cannot move a queue pair to {state:?}"))?;
        }
        Ok(())
    }

    /// Posts a receive for a message.
    #[inline(always)]
    pub(crate) fn post_recv(
        &self,
        engine: &mut Engine,
        now: Time,
        qp: usize,
        message: usize,
    ) -> Result<()> {
        let wr = RecvWr {
            wr_id: message as u64,
            sges: &[self.sge(message, SLOT)],
        };
        Ok(engine.post_recv(now, self.qpns[qp], &wr)?)
    }

    /// Posts a message.
    #[inline(always)]
    pub(crate) fn post_send(
        &self,
        engine: &mut Engine,
        now: Time,
        qp: usize,
        message: usize,
        traffic: Traffic,
        peer: &Ends,
    ) -> Result<()> {
        let (remote_addr, rkey) = (peer.slot(message), peer.mr.rkey());
        let wr = SendWr {
            wr_id: message as u64,
            op: match traffic.op {
                Op::Send => SendOp::Send { imm: None },
                Op::Write => SendOp::Write {
                    remote_addr,
                    rkey,
                    imm: None,
                },
                Op::Read => SendOp::Read { remote_addr, rkey },
            },
            flags: SendFlags::SIGNALED,
            data: SendData::Sges(&[self.sge(message, traffic.size)]),
            ud: None,
            xrc_srq: 0,
        };
        Ok(engine.post_send(now, self.qpns[qp], wr)?)
    }

    /// Polls all completions; returns their number.
    pub(crate) fn poll_cq(&self) -> Result<usize> {
        let mut failed = None;
        let count = self.cq.poll(usize::MAX, |wc| {
            if wc.status != WcStatus::Success {
                failed = Some(wc);
            }
        });
        match failed {
            None => Ok(count),
            Some(wc) => bail!("a work request failed: {wc:?}"),
        }
    }
}

impl Side {
    /// Creates side 0 or 1, without queue pairs.
    pub(crate) fn new(number: u8, setup: Setup) -> Result<Side> {
        let (ends, engine) = Ends::new(number, setup)?;
        Ok(Side {
            engine,
            ends,
            wire: Wire {
                bytes: vec![0; WIRE_PACKETS * (MAX_HEADER_LEN + SLOT + ICRC_LEN)],
                sent: Vec::with_capacity(WIRE_PACKETS),
                faults: Vec::new(),
            },
            icrc: setup.icrc,
            batch: Batch::new(MESSAGES, RUN_LIMITS),
        })
    }

    /// Sends all packets. They stay in `wire` until the other side receives them.
    pub(crate) fn transmit(&mut self, watch: &mut Stopwatch) -> Result<()> {
        let now = watch.now();
        if self.engine.next_timeout().is_some_and(|due| due <= now) {
            self.engine.handle_timeout(now);
        }
        loop {
            let more = self.engine.poll_transmit(now, &mut self.batch);
            watch.stage(Stage::PollTransmit);
            self.wire
                .assemble(&self.batch, self.icrc, &self.ends.arena)?;
            watch.stage(Stage::Assemble);
            self.engine.finish_transmit(now, &mut self.batch);
            watch.stage(Stage::FinishTransmit);
            if !more {
                return Ok(());
            }
        }
    }

    /// Receives all packets that the peer has sent; returns their number.
    pub(crate) fn receive(&mut self, watch: &mut Stopwatch, peer: &mut Side) -> Result<usize> {
        let mut count = 0;
        for sent in &peer.wire.sent {
            let mut run = Datagram {
                source: sent.flow.source,
                destination: sent.flow.destination,
                source_port: sent.flow.source_port,
                traffic_class: 0,
                hop_limit: 64,
                // A UDP socket does not show the IP identification.
                ip_id: IpId::UNSEEN,
                payload: &peer.wire.bytes[sent.bytes.clone()],
            };
            while let Some((datagram, rest)) = run.split_first(sent.segment) {
                let (now, memory) = (watch.now(), &self.ends.arena);
                let predicted = self
                    .engine
                    .receive_predicted(now, memory, &run, sent.segment);
                if predicted > 0 {
                    run.skip(predicted, sent.segment);
                    count += predicted;
                    continue;
                }
                let received = self.engine.receive(now, memory, &datagram);
                ensure!(
                    matches!(received, Received::Accepted),
                    "the engine dropped a packet: {received:?}"
                );
                run = rest;
                count += 1;
            }
        }
        watch.stage(Stage::Receive);
        peer.wire.sent.clear();
        Ok(count)
    }

    /// Polls all completions; returns their number.
    pub(crate) fn poll_cq(&mut self, watch: &mut Stopwatch) -> Result<usize> {
        let count = self.ends.poll_cq()?;
        watch.stage(Stage::PollCq);
        Ok(count)
    }
}

impl Wire {
    #[inline]
    fn assemble(&mut self, batch: &Batch, icrc: bool, memory: &dyn Memory) -> Result<()> {
        let mut end = self.sent.last().map_or(0, |last| last.bytes.end);
        let trailer = match icrc {
            true => Trailer::Numbered,
            false => Trailer::Unset,
        };
        for run in batch.runs() {
            let start = end;
            let out = &mut self.bytes[end..];
            end += batch.assemble_run(run, trailer, memory, out, &mut self.faults);
            if let Some((_, fault)) = self.faults.first() {
                bail!("{fault}");
            }
            self.sent.push(Sent {
                bytes: start..end,
                segment: run.segment,
                flow: run.path.flow,
            });
        }
        Ok(())
    }
}
