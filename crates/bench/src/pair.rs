//! Two connected engines.

use core::ops::Range;

use anyhow::{Result, ensure};

use crate::clock::{Stage, Stages, Stopwatch};
use crate::instructions::{receiver_work, sender_work};
use crate::side::{SLOT, Side};
use crate::traffic::{Cost, MESSAGES, Op, Setup, Traffic};

/// Two engines that exchange packets in memory.
pub struct Pair {
    /// The side that posts the operations.
    pub sender: Side,
    /// The side that responds.
    pub receiver: Side,
    watch: Stopwatch,
    next_qp: usize,
    turn: [usize; MESSAGES],
}

impl Pair {
    /// Creates two engines with connected RC queue pairs.
    pub fn new(setup: Setup) -> Result<Pair> {
        let mut pair = Pair {
            sender: Side::new(0, setup)?,
            receiver: Side::new(1, setup)?,
            watch: Stopwatch::start(),
            next_qp: 0,
            turn: [0; MESSAGES],
        };
        pair.add_qps(setup.qps, setup.queue)?;
        Ok(pair)
    }

    /// Gives the engines a clock that advances by fixed steps, so that every run is the same.
    pub(crate) fn use_steps(&mut self) {
        self.watch.use_steps();
    }

    /// Adds connected queue pairs.
    pub(crate) fn add_qps(&mut self, count: usize, queue: u32) -> Result<()> {
        let (a, b) = (&mut self.sender, &mut self.receiver);
        let first = a.ends.qpns.len();
        a.ends.create_qps(&mut a.engine, count, queue)?;
        b.ends.create_qps(&mut b.engine, count, queue)?;
        for index in first..first + count {
            a.ends.connect(&mut a.engine, index, &b.ends)?;
            b.ends.connect(&mut b.engine, index, &a.ends)?;
        }
        Ok(())
    }

    /// Posts all messages of an exchange at once, and runs both engines until they complete.
    pub fn exchange(&mut self, traffic: Traffic) -> Result<Cost> {
        self.choose_qps(traffic.burst);
        self.pass(traffic, 0..messages(traffic))
    }

    /// Runs an exchange burst by burst: each completes before the next is posted. Only the
    /// sum of both sides is measured; it is returned as the sender's cost.
    pub fn exchange_by_bursts(&mut self, traffic: Traffic) -> Result<Cost> {
        self.choose_qps(traffic.burst);
        self.watch.lap();
        self.watch.paused = true;
        for first in (0..MESSAGES).step_by(traffic.burst) {
            self.pass(traffic, first..first + traffic.burst)?;
        }
        self.watch.paused = false;
        Ok(Cost {
            sender: self.watch.lap(),
            receiver: 0,
        })
    }

    /// Posts some messages of an exchange and runs both engines until they complete.
    fn pass(&mut self, traffic: Traffic, messages: Range<usize>) -> Result<Cost> {
        let Pair {
            sender,
            receiver,
            watch,
            turn,
            ..
        } = self;
        let turn = messages.clone().zip(&turn[messages.clone()]);

        let mut cost = Cost::default();
        watch.lap();
        if traffic.op == Op::Send {
            watch.side = 1;
            receiver_work(|| {
                for (message, &qp) in turn.clone() {
                    let (ends, engine) = (&receiver.ends, &mut receiver.engine);
                    ends.post_recv(engine, watch.now(), qp, message)?;
                }
                Ok::<_, anyhow::Error>(())
            })?;
            watch.stage(Stage::Post);
            cost.receiver += watch.lap();
        }
        watch.side = 0;
        sender_work(|| {
            for (message, &qp) in turn {
                let (ends, engine) = (&sender.ends, &mut sender.engine);
                ends.post_send(engine, watch.now(), qp, message, traffic, &receiver.ends)?;
            }
            Ok::<_, anyhow::Error>(())
        })?;
        watch.stage(Stage::Post);

        let count = messages.len();
        let received = if traffic.op == Op::Send { count } else { 0 };
        let mut missing = (count, received);
        while missing != (0, 0) {
            sender_work(|| sender.transmit(watch))?;
            cost.sender += watch.lap();

            watch.side = 1;
            let (requests, completed) = receiver_work(|| {
                let requests = receiver.receive(watch, sender)?;
                receiver.transmit(watch)?;
                Ok::<_, anyhow::Error>((requests, receiver.poll_cq(watch)?))
            })?;
            missing.1 -= completed;
            cost.receiver += watch.lap();

            watch.side = 0;
            let (answers, completed) = sender_work(|| {
                let answers = sender.receive(watch, receiver)?;
                Ok::<_, anyhow::Error>((answers, sender.poll_cq(watch)?))
            })?;
            missing.0 -= completed;
            cost.sender += watch.lap();

            ensure!(
                requests + answers + completed > 0,
                "the engines make no progress, with {missing:?} completions missing"
            );
        }
        Ok(cost)
    }

    /// Assigns a queue pair to each message, before the measurement starts.
    fn choose_qps(&mut self, burst: usize) {
        let qps = self.sender.ends.qpns.len();
        for (message, qp) in self.turn.iter_mut().enumerate() {
            *qp = (self.next_qp + message / burst) % qps;
        }
        self.next_qp = (self.next_qp + MESSAGES / burst) % qps;
    }

    /// Runs [`Pair::exchange`] and returns the time of each stage on both sides.
    pub(crate) fn stages(&mut self, traffic: Traffic) -> Result<Stages> {
        self.watch.detailed = true;
        self.watch.stages = Stages::default();
        self.exchange(traffic)?;
        self.watch.detailed = false;
        Ok(self.watch.stages)
    }

    /// Returns true if each message of the last exchange has arrived.
    pub fn arrived(&self, traffic: Traffic) -> bool {
        let (a, b) = (
            self.sender.ends.arena.bytes(),
            self.receiver.ends.arena.bytes(),
        );
        (0..messages(traffic))
            .map(|message| message * SLOT..message * SLOT + traffic.size)
            .all(|slot| a[slot.clone()] == b[slot])
    }

    /// Inverts the destination memory, so that it differs from the source.
    pub fn spoil(&mut self, traffic: Traffic) {
        let side = match traffic.op {
            Op::Send | Op::Write => &self.receiver,
            Op::Read => &self.sender,
        };
        side.ends
            .arena
            .bytes_mut()
            .iter_mut()
            .for_each(|b| *b = !*b);
    }
}

/// Returns the number of messages in an exchange.
fn messages(traffic: Traffic) -> usize {
    if traffic.size > SLOT { 1 } else { MESSAGES }
}
