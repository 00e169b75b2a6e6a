//! A shard: one slot, one engine, one lock, one progress thread.
//!
//! Whoever has something to do takes the lock and does a turn of work: takes in
//! what the sockets hold, lets timers act, sends what is to be sent. A program
//! that posts or polls does so on its own thread. The progress thread steps in
//! when nobody has polled for a while, so that peers are served while the
//! program does something else; while somebody polls, it keeps out of the way.

use std::cell::LazyCell;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use ferroce_net::{IncomingRun, Receiver};
use ferroce_transport::{Datagram, Engine, Time};
use rustix::event::{EventfdFlags, eventfd};

use crate::clock;
use crate::early::Early;
use crate::late::Late;
use crate::memory::ProcessMemory;
use crate::notices::Notices;
use crate::pace::{Entries, Intake};
use crate::transmitter::Transmitter;

/// Datagrams taken in before others get the lock, and peers their acknowledgements:
/// no more than a part of what they may have on its way.
pub(crate) const RECEIVE_BUDGET: usize = 128;
/// Turns in which a queue pair that is about to fail receives what has arrived: more than
/// a socket's buffer holds, and an end to it if packets keep coming.
const ARRIVED_TURNS: usize = 64;
/// How often who comes again soon looks at the IP family that has been quiet.
const QUIET_TURN: u32 = 64;
/// Up to so many datagrams are answered a moment later if the program polls.
const DEFERRED: usize = 4;
/// How long the progress thread trusts that a program that polled polls again.
pub(crate) const STANDBY_NS: u64 = 80_000;
/// How soon a send that found no room, or a packet without a receive, is tried again.
const BLOCKED_RETRY_NS: u64 = 200_000;

/// Where from a queue pair sends.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    Only(IpAddr),
    /// Each datagram says, and may go over either IP family.
    Any,
}

/// Who has come to do a turn of work.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Visit {
    /// A program that polls. It comes again soon, and may have answers itself.
    Poll,
    /// The progress thread, which sleeps until something happens.
    Wake,
    /// The progress thread, right after it has received much.
    Stream,
}

/// One slot of the process.
#[derive(Debug)]
pub(crate) struct Shard {
    core: Mutex<Core>,
    notices: Arc<Notices>,
    /// When somebody last polled; zero if nobody is to be relied on.
    polled_at: AtomicU64,
    /// Somebody who polls is at work.
    polled: AtomicBool,
    /// When the progress thread will look by itself.
    sleeps_until: AtomicU64,
    stopped: AtomicBool,
    bell: OwnedFd,
}

/// What the lock protects.
pub(crate) struct Core {
    pub(crate) engine: Engine,
    receiver: Receiver,
    intake: Intake,
    early: Early,
    late: Late,
    transmitter: Transmitter,
    /// Answers to what came in last are not out yet.
    owes: bool,
    turns: u32,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

impl Shard {
    pub(crate) fn new(
        engine: Engine,
        receiver: Receiver,
        ifindex: u32,
        notices: Arc<Notices>,
        board: Entries,
    ) -> std::io::Result<Shard> {
        // Only datagrams show them to programs.
        receiver.show_hop_limits(false)?;
        let intake = Intake::new(Arc::clone(&board), receiver.slot(), receiver.buffer());
        Ok(Shard {
            core: Mutex::new(Core {
                engine,
                receiver,
                intake,
                early: Early::default(),
                late: Late::default(),
                transmitter: Transmitter::new(ifindex, board),
                owes: false,
                turns: 0,
            }),
            notices,
            polled_at: AtomicU64::new(0),
            polled: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Does something with the engine, and sends what comes of it.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Engine, Time) -> T) -> T {
        self.with_core(|core, now| work(&mut core.engine, now))
    }

    /// As [`Shard::with`], for work that takes more than the engine: ports, groups.
    pub(crate) fn with_core<T>(&self, work: impl FnOnce(&mut Core, Time) -> T) -> T {
        let now = clock::now();
        let mut core = self.lock();
        let result = work(&mut core, now);
        if !self.is_stopped() {
            core.transmit(now, &self.notices);
            self.mind_timer(&core, now);
        }
        result
    }

    /// Sends acknowledgements that were put off: whoever waits for them would not
    /// get them from a queue pair, or a process, that is no more. Nothing if another
    /// is at it: it sends them.
    pub(crate) fn pay_debts(&self) {
        if let Ok(mut core) = self.core.try_lock()
            && core.owes
            && !self.is_stopped()
        {
            core.transmit(clock::now(), &self.notices);
        }
    }

    /// Receives every packet that the sockets hold. A queue pair that is about to fail
    /// must first see the ACKs that have arrived: an adapter processes packets on arrival,
    /// so a send that the peer acknowledged before it disconnected is not flushed.
    pub(crate) fn receive_arrived(&self) {
        let mut core = self.lock();
        for _ in 0..ARRIVED_TURNS {
            let now = clock::now();
            if self.is_stopped() || core.turn(now, &self.notices, Visit::Wake) < RECEIVE_BUDGET {
                break;
            }
        }
        self.mind_timer(&core, clock::now());
    }

    /// A turn of work on behalf of somebody who polls; nothing if another is at it.
    pub(crate) fn poll(&self) {
        if self.is_stopped() {
            return;
        }
        let now = clock::now();
        self.polled_at.store(now.as_nanos(), Ordering::Relaxed);
        match self.core.try_lock() {
            Ok(mut core) => {
                self.polled.store(true, Ordering::Relaxed);
                core.turn(now, &self.notices, Visit::Poll);
                self.mind_timer(&core, now);
                self.polled.store(false, Ordering::Relaxed);
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Poisoned(_)) => panic!("a thread panicked in the engine"),
        }
    }

    /// Somebody waits for an event instead of polling: the progress thread is needed.
    pub(crate) fn stop_relying_on_polls(&self) {
        if self.polled_at.swap(0, Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    /// How much longer somebody who polls may be relied on.
    pub(crate) fn standby_ns(&self, now: Time) -> Option<u64> {
        let polled = Time::from_nanos(self.polled_at.load(Ordering::Relaxed));
        STANDBY_NS
            .checked_sub(now.nanos_since(polled))
            .filter(|&left| left > 0)
    }

    /// Whether somebody who polls is at work.
    pub(crate) fn is_polled(&self) -> bool {
        self.polled.load(Ordering::Relaxed)
    }

    /// A turn of work of the progress thread; returns when the next is due by
    /// itself, and how many datagrams came in. Nothing if another is at it: who
    /// waits for a lock that a program takes over and over makes every poll of it slow.
    pub(crate) fn progress(&self, visit: Visit) -> Option<(Option<Time>, usize)> {
        let now = clock::now();
        let mut core = match self.core.try_lock() {
            Ok(core) => core,
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(_)) => panic!("a thread panicked in the engine"),
        };
        let received = core.turn(now, &self.notices, visit);
        let due = core.due(now);
        // Said before anybody else gets the lock: who sets an earlier timer rings.
        self.sleeps_until(due);
        Some((due, received))
    }

    /// Says when the progress thread will look by itself.
    pub(crate) fn sleeps_until(&self, due: Option<Time>) {
        let due = due.map_or(u64::MAX, Time::as_nanos);
        self.sleeps_until.store(due, Ordering::Relaxed);
    }

    /// Says that the progress thread is awake, and looks before it sleeps: nobody need ring.
    pub(crate) fn stays_awake(&self) {
        self.sleeps_until.store(0, Ordering::Relaxed);
    }

    /// Has no packets sent or received any more. The progress thread ends.
    pub(crate) fn stop(&self) {
        self.pay_debts();
        self.stopped.store(true, Ordering::Release);
        self.ring();
        // Whoever did not see it is done.
        self.pass_through();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Wakes the progress thread.
    pub(crate) fn ring(&self) {
        let _full_is_as_good = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Duplicates of the descriptors that say when there is something to receive.
    pub(crate) fn sockets(&self) -> std::io::Result<Vec<OwnedFd>> {
        let sockets = self.lock().receiver.sockets().try_clone()?;
        Ok([Some(sockets.v4), sockets.v6]
            .into_iter()
            .flatten()
            .collect())
    }

    /// Waits until no thread is in the middle of moving bytes of memory that
    /// has just been deregistered.
    pub(crate) fn pass_through(&self) {
        drop(self.lock());
    }

    /// The progress thread must not sleep past a timer that has just been set, nor
    /// while packets wait for room.
    fn mind_timer(&self, core: &Core, now: Time) {
        if let Some(next) = core.due(now)
            && next.as_nanos() < self.sleeps_until.load(Ordering::Relaxed)
        {
            self.sleeps_until.store(next.as_nanos(), Ordering::Relaxed);
            self.ring();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("a thread panicked in the engine")
    }
}

impl Core {
    /// Takes in datagrams, lets timers act, sends; returns how many came in.
    fn turn(&mut self, now: Time, notices: &Notices, visit: Visit) -> usize {
        let engine = &mut self.engine;
        let intake = &mut self.intake;
        intake.begin();
        // Looked at once a turn, and not at all in the many turns without a packet.
        let memory = LazyCell::new(|| ProcessMemory::at(now));
        let mut take_in = |engine: &mut Engine, datagram: &Datagram<'_>| {
            intake.take(datagram.payload);
            engine.receive(now, &*memory, datagram);
        };
        let (early, late) = (&mut self.early, &mut self.late);
        late.release(|datagram| take_in(engine, datagram));
        if !early.is_empty() {
            early.release(now, engine, &mut take_in);
        }
        let take = |run: &IncomingRun<'_>| {
            let mut rest = run.merged.datagram;
            while let Some((datagram, others)) = rest.split_first(run.segment) {
                let predicted = engine.receive_predicted(now, &*memory, &rest, run.segment);
                if predicted > 0 {
                    rest = rest.skip(predicted, run.segment);
                    continue;
                }
                let put_off = visit == Visit::Poll && rest.payload.len() < run.merged.payload.len();
                if !(put_off && late.keep(&datagram) || early.keep(now, engine, &datagram)) {
                    take_in(engine, &datagram);
                }
                rest = others;
            }
        };
        self.turns = self.turns.wrapping_add(1);
        let everywhere = visit == Visit::Wake || self.turns.is_multiple_of(QUIET_TURN);
        let received = match visit {
            _ if everywhere => self.receiver.receive(RECEIVE_BUDGET, take),
            Visit::Poll => self.receiver.receive_busy(RECEIVE_BUDGET, take),
            Visit::Wake | Visit::Stream => self.receiver.receive_more(RECEIVE_BUDGET, take),
        };
        let received = received.unwrap_or_else(|error| {
            tracing::warn!("receiving failed: {error}");
            0
        });
        intake.end(everywhere && received == 0 && early.is_empty());
        if engine.next_timeout().is_some_and(|due| due <= now) {
            engine.handle_timeout(now);
        }
        // A program that polls has waited for what came in, and perhaps answers it
        // itself: our answers leave with its own, or when it polls again.
        let was_owed = core::mem::replace(&mut self.owes, visit == Visit::Poll && received > 0);
        if was_owed || !self.owes || received > DEFERRED {
            self.transmit(now, notices);
        } else {
            self.report(notices);
        }
        received
    }

    /// When there is something to do even if no packet comes.
    fn due(&self, now: Time) -> Option<Time> {
        // Room in a socket is soon there, and so is a receive; no descriptor says when.
        let waits = self.transmitter.is_blocked() || !self.early.is_empty();
        let retry = waits.then_some(now.after_nanos(BLOCKED_RETRY_NS));
        // The program may not come again after all.
        let put_off = self.owes || !self.late.is_empty();
        let owed = put_off.then_some(now.after_nanos(STANDBY_NS));
        let due = self.engine.next_timeout().into_iter();
        due.chain(retry).chain(owed).min()
    }

    fn transmit(&mut self, now: Time, notices: &Notices) {
        self.transmitter.run(&mut self.engine, now);
        self.owes = false;
        self.report(notices);
    }

    fn report(&mut self, notices: &Notices) {
        while let Some(event) = self.engine.poll_event() {
            notices.report(event);
        }
    }

    /// Gives a queue pair a UDP source port that it can send from.
    pub(crate) fn choose_port(
        &mut self,
        qpn: u32,
        want: u16,
        source: Source,
    ) -> std::io::Result<()> {
        let port = match source {
            Source::Only(address) => self.transmitter.bind_from(want, address)?,
            Source::Any => self.transmitter.bind_any(want)?,
        };
        if let Err(error) = self.engine.set_source_port(qpn, port) {
            tracing::debug!("{error}");
        }
        Ok(())
    }

    /// From now on datagrams are received, which come with their hop limit.
    pub(crate) fn expect_datagrams(&self) {
        if let Err(error) = self.receiver.show_hop_limits(true) {
            tracing::warn!("hop limits are not known: {error}");
        }
    }

    pub(crate) fn join(&mut self, group: IpAddr, ifindex: u32, join: bool) -> std::io::Result<()> {
        match join {
            true => self.receiver.join_multicast(group, ifindex),
            false => self.receiver.leave_multicast(group, ifindex),
        }
    }
}
