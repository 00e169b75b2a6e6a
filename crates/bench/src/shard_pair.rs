//! Two connected shards without a network: the engines, and the decisions about their packets.
//!
//! Their process has the taps of a program: captures, and the flight recorder. The counts of the
//! same workload without taps, with taps that are off, and with the recorder show the costs.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use ferroce_net::{
    Incoming, IncomingRun, IpIds, Properties, RUN_LIMITS, Scope, SendError, Source, Wire,
    WireSender,
};
use ferroce_roce::{
    Batch, Datagram, Decision, Event, Fault, IpId, Memory, Path, Received, Run, Time,
};
use ferroce_shard::{Caller, Core, CreditPage, Process, Recorder};
use ferroce_trace::{JournalFile, JournalReader, JournalWriter, STORY};

use crate::arena::Arena;
use crate::clock::Stopwatch;
use crate::instructions::{receiver_work, sender_work};
use crate::side::{Ends, SLOT};
use crate::traffic::{MESSAGES, Op, Setup, Traffic};

/// Two shards that exchange packets in memory. Without `TAPS`, the compiler removes the taps.
pub(crate) struct ShardPair<const TAPS: bool> {
    sender: ShardSide<TAPS>,
    receiver: ShardSide<TAPS>,
    watch: Stopwatch,
}

struct ShardSide<const TAPS: bool> {
    core: Core<Channel, Arc<CreditPage>>,
    ends: Ends,
    file: JournalFile,
    journal: JournalWriter,
    records: bool,
}

/// The process of a shard.
struct BenchProcess<'a, const TAPS: bool> {
    memory: &'a Arena,
    recorder: Option<Recorder<'a>>,
}

impl<const TAPS: bool> Process for BenchProcess<'_, TAPS> {
    fn memory(&self) -> &dyn Memory {
        self.memory
    }

    fn report(&mut self, _: Event) {}

    #[inline]
    fn observes(&self) -> bool {
        TAPS && self.recorder.is_some()
    }

    #[inline]
    fn received(&mut self, datagram: &Datagram<'_>, _: Received, _: &[(u32, Decision)]) {
        if let Some(recorder) = &mut self.recorder {
            recorder.received(datagram, |_| true);
        }
    }

    #[inline]
    fn predicted(&mut self, run: &Datagram<'_>, segment: usize, packets: usize) {
        if let Some(recorder) = &mut self.recorder {
            recorder.predicted(run, segment, packets);
        }
    }

    #[inline]
    fn assembled(
        &mut self,
        batch: &Batch,
        run: &Run,
        bytes: &[u8],
        _: &[(usize, Fault)],
        _: &[(usize, String)],
    ) {
        if let Some(recorder) = &self.recorder {
            recorder.assembled(batch, run, bytes);
        }
    }
}

impl<const TAPS: bool> ShardPair<TAPS> {
    pub(crate) fn new(setup: Setup, records: bool) -> Result<ShardPair<TAPS>> {
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
            let file = JournalFile::new().context("journal")?;
            let mut core = Core::new(engine, wire, Arc::clone(&page))?;
            core.observe(records);
            Ok(ShardSide {
                core,
                ends,
                journal: JournalWriter::new(&file).context("journal")?,
                file,
                records,
            })
        };
        let (mut a, mut b) = (side(0)?, side(1)?);
        for index in 0..setup.qps {
            a.ends.connect(&mut a.core.engine, index, &b.ends)?;
            b.ends.connect(&mut b.core.engine, index, &a.ends)?;
        }
        let mut watch = Stopwatch::start();
        watch.use_steps();
        Ok(ShardPair {
            sender: a,
            receiver: b,
            watch,
        })
    }

    /// Posts all messages of an exchange, and runs both shards until they complete.
    pub(crate) fn exchange(&mut self, traffic: Traffic) -> Result<()> {
        let ShardPair {
            sender,
            receiver,
            watch,
        } = self;
        let count = match traffic.size > SLOT {
            true => 1,
            false => MESSAGES,
        };
        let mut missing = (count, 0);
        if traffic.op == Op::Send {
            missing.1 = count;
            receiver_work(|| {
                let engine = &mut receiver.core.engine;
                let mut messages = 0..count;
                messages.try_for_each(|m| receiver.ends.post_recv(engine, watch.now(), 0, m))
            })?;
        }
        sender_work(|| {
            let mut messages = 0..count;
            messages.try_for_each(|m| sender.post(watch.now(), m, traffic, &receiver.ends))
        })?;
        for turn in 0.. {
            if missing == (0, 0) {
                break;
            }
            ensure!(turn < 10_000, "{missing:?} completions are missing");
            missing.1 -= receiver_work(|| receiver.poll(watch.now()))?;
            missing.0 -= sender_work(|| sender.poll(watch.now()))?;
        }
        Ok(())
    }

    /// Returns true if each message of the last exchange has arrived.
    pub(crate) fn arrived(&self, traffic: Traffic) -> bool {
        let (a, b) = (&self.sender.ends.arena, &self.receiver.ends.arena);
        let (a, b) = (a.bytes(), b.bytes());
        let count = if traffic.size > SLOT { 1 } else { MESSAGES };
        let mut slots = (0..count).map(|m| m * SLOT..m * SLOT + traffic.size);
        slots.all(|slot| a[slot.clone()] == b[slot])
    }

    /// Returns true if the packets are in the journals of both sides, or none is without the
    /// recorder.
    pub(crate) fn is_recorded(&self) -> Result<bool> {
        let sides = [&self.sender, &self.receiver];
        let mut counts: Vec<usize> = Vec::new();
        for side in sides {
            let stories = JournalReader::new(&side.file)?.stories();
            counts.push(stories.iter().map(|story| story.records().count()).sum());
        }
        Ok(match self.sender.records {
            true => counts == [STORY, STORY],
            false => counts == [0, 0],
        })
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
        let journal = &self.journal;
        let process = BenchProcess {
            memory: &self.ends.arena,
            recorder: self.records.then(|| Recorder::new(journal, now, false)),
        };
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
