//! Two connected shards without a network: the engines, and the decisions about their packets.
//!
//! Their process has the seams of a program: captures, the flight recorder and faults. The same
//! workload with each of them off and on shows the costs.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Result, ensure};
use ferroce_net::{
    Incoming, IncomingRun, IpIds, Properties, RUN_LIMITS, Scope, SendError, Source, Wire,
    WireSender,
};
use ferroce_roce::{Datagram, IpId, Path, Time};
use ferroce_shard::{Caller, Core, CreditPage};

use crate::clock::Stopwatch;
use crate::instructions::{receiver_work, sender_work};
use crate::seams::{BenchProcess, Seam, Seams};
use crate::side::{Ends, SLOT};
use crate::traffic::{Cost, MESSAGES, Op, Setup, Traffic};

/// Two shards that exchange packets in memory. Without `TAPS`, the compiler removes captures and
/// recorder.
pub(crate) struct ShardPair<const TAPS: bool> {
    sender: ShardSide<TAPS>,
    receiver: ShardSide<TAPS>,
    watch: Stopwatch,
}

struct ShardSide<const TAPS: bool> {
    core: Core<Channel, Arc<CreditPage>>,
    ends: Ends,
    seams: Seams,
}

impl<const TAPS: bool> ShardPair<TAPS> {
    pub(crate) fn new(setup: Setup, seam: Seam) -> Result<ShardPair<TAPS>> {
        let runs = [Runs::default(), Runs::default()];
        let page = Arc::<CreditPage>::default();
        let side = |number: u8| -> Result<ShardSide<TAPS>> {
            let (mut ends, mut engine) = Ends::new(number, setup)?;
            ends.create_qps(&mut engine, setup.qps, setup.queue)?;
            let wire = Channel {
                slot: number,
                received: Rc::clone(&runs[usize::from(1 - number)]),
                sent: Rc::clone(&runs[usize::from(number)]),
            };
            let mut core = Core::new(engine, wire, Arc::clone(&page))?;
            let seams = Seams::new(seam)?;
            core.observe(seams.observes());
            core.set_faults(Time::ZERO, seams.faults()?.as_ref());
            Ok(ShardSide { core, ends, seams })
        };
        let (mut a, mut b) = (side(0)?, side(1)?);
        for index in 0..setup.qps {
            a.ends.connect(&mut a.core.engine, index, &b.ends)?;
            b.ends.connect(&mut b.core.engine, index, &a.ends)?;
        }
        Ok(ShardPair {
            sender: a,
            receiver: b,
            watch: Stopwatch::start(),
        })
    }

    /// Counts steps instead of real time from now on.
    pub(crate) fn use_steps(&mut self) {
        self.watch.use_steps();
    }

    /// Posts all messages of an exchange, and runs both shards until they complete.
    pub(crate) fn exchange(&mut self, traffic: Traffic) -> Result<Cost> {
        let ShardPair {
            sender,
            receiver,
            watch,
        } = self;
        let count = match traffic.size > SLOT {
            true => 1,
            false => MESSAGES,
        };
        let (mut missing, mut cost) = ((count, 0), Cost::default());
        watch.lap();
        if traffic.op == Op::Send {
            missing.1 = count;
            receiver_work(|| {
                let engine = &mut receiver.core.engine;
                let mut messages = 0..count;
                messages.try_for_each(|m| receiver.ends.post_recv(engine, watch.now(), 0, m))
            })?;
            cost.receiver += watch.lap();
        }
        sender_work(|| {
            let mut messages = 0..count;
            messages.try_for_each(|m| sender.post(watch.now(), m, traffic, &receiver.ends))
        })?;
        cost.sender += watch.lap();
        for turn in 0.. {
            if missing == (0, 0) {
                break;
            }
            ensure!(turn < 10_000, "{missing:?} completions are missing");
            missing.1 -= receiver_work(|| receiver.poll(watch.now()))?;
            cost.receiver += watch.lap();
            missing.0 -= sender_work(|| sender.poll(watch.now()))?;
            cost.sender += watch.lap();
        }
        // Another process would do this.
        sender.seams.drain();
        receiver.seams.drain();
        Ok(cost)
    }

    /// Returns true if each message of the last exchange has arrived.
    pub(crate) fn arrived(&self, traffic: Traffic) -> bool {
        let (a, b) = (&self.sender.ends.arena, &self.receiver.ends.arena);
        let (a, b) = (a.bytes(), b.bytes());
        let count = if traffic.size > SLOT { 1 } else { MESSAGES };
        let mut slots = (0..count).map(|m| m * SLOT..m * SLOT + traffic.size);
        slots.all(|slot| a[slot.clone()] == b[slot])
    }

    /// Checks that packets were recorded and captured exactly if they should be.
    pub(crate) fn check_seams(&self) -> Result<()> {
        self.sender.seams.check()?;
        self.receiver.seams.check()
    }
}

impl<const TAPS: bool> ShardSide<TAPS> {
    /// Posts a message, as a call of `ibv_post_send` does.
    fn post(&mut self, now: Time, message: usize, traffic: Traffic, peer: &Ends) -> Result<()> {
        let engine = &mut self.core.engine;
        let ends = &self.ends;
        ends.post_send(engine, now, 0, message, traffic, peer)?;
        let qpn = ends.qpns[0];
        let (core, mut process) = self.parts(now);
        let sending = core.posted(now, &mut process, qpn);
        core.complete(now, &mut process, sending);
        Ok(())
    }

    /// Does a turn, and polls the completion queue.
    fn poll(&mut self, now: Time) -> Result<usize> {
        let (core, mut process) = self.parts(now);
        let (_, sending) = core.turn(now, &mut process, Caller::Poller);
        core.complete(now, &mut process, sending);
        self.ends.poll_cq()
    }

    fn parts(
        &mut self,
        now: Time,
    ) -> (&mut Core<Channel, Arc<CreditPage>>, BenchProcess<'_, TAPS>) {
        let process = self.seams.process(&self.ends.arena, now);
        (&mut self.core, process)
    }
}

/// Runs on their way to a side.
type Runs = Rc<RefCell<VecDeque<SentRun>>>;

/// Path, bytes of each packet, and the packets.
type SentRun = (Path, usize, Vec<u8>);

/// One end of a channel in memory.
#[derive(Clone)]
struct Channel {
    slot: u8,
    received: Runs,
    sent: Runs,
}

impl Wire for Channel {
    type Sender = Channel;

    fn take_sender(&mut self) -> Channel {
        self.clone()
    }

    fn receive(
        &mut self,
        _: Scope,
        _: usize,
        mut each: impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize> {
        let mut count = 0;
        for (path, segment, bytes) in self.received.take() {
            let datagram = Datagram {
                source: path.flow.source,
                destination: path.flow.destination,
                source_port: path.flow.source_port,
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                // A UDP socket does not show the IP identification.
                ip_id: IpId::UNSEEN,
                payload: &bytes,
            };
            let merged = Incoming {
                datagram,
                ifindex: 1,
            };
            each(&IncomingRun { merged, segment });
            count += bytes.len().div_ceil(segment);
        }
        Ok(count)
    }

    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(Vec::new())
    }

    fn join_multicast(&mut self, _: IpAddr) -> io::Result<()> {
        Ok(())
    }

    fn leave_multicast(&mut self, _: IpAddr) -> io::Result<()> {
        Ok(())
    }

    fn report_hop_limits(&mut self, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn properties(&self) -> Properties {
        Properties {
            slot: self.slot,
            receive_buffer: 1 << 20,
            ip_ids: IpIds::Numbered,
            run_limits: RUN_LIMITS,
        }
    }
}

impl WireSender for Channel {
    fn send(&mut self, path: &Path, segment: usize, bytes: &[u8]) -> Result<(), SendError> {
        let run = (*path, segment, bytes.to_vec());
        self.sent.borrow_mut().push_back(run);
        Ok(())
    }

    fn bind(&mut self, want: u16, _: Source) -> io::Result<u16> {
        Ok(want)
    }
}
