//! A shard: one slot of the process, with its core, lock and progress thread.
//!
//! A thread that has work takes the lock and does a turn: it receives, handles timers and
//! sends. A program that posts or polls does so on its own thread. The progress thread takes
//! over when no thread has polled for 80 us, so that peers are served while the program does
//! something else. While the program polls, the progress thread leaves the lock alone. If
//! several shards are busy and processors are free, the progress threads do all turns.

mod this_process;
mod waits;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};

use ferroce_net::local::Doorbell;
use ferroce_net::slot_of_qpn;
use ferroce_roce::Time;
use ferroce_shard::{Caller, Faults, MAX_BATCHES, Process};
use rustix::event::{EventfdFlags, eventfd};

use crate::adapter::Adapter;
use crate::awaited_writes::{AwaitedWrites, search_standby_ns};
use crate::busy_shards::Load;
use crate::clock;
use crate::core::{Core, Sending};
use crate::directory::Directory;
use crate::gpu::GpuCopies;
use crate::late_events::LateEvents;
use crate::local::Channel;
use crate::polls::Polls;
use crate::streams::Addresses;
use this_process::ThisProcess;

/// Polls without a packet or post, after which a program polls a shard only once in so many
/// polls, if it uses others too. Each turn takes a system call.
const QUIET_POLLS: u32 = 8;

/// Polls of memory in a row that do not read the clock. Such a poll takes 20 to 30 ns, and reading the
/// clock 40. So timers, sockets and the progress thread see a program that only polls less than a
/// microsecond late.
const UNTIMED_POLLS: u32 = 16;
/// Time between two polls that read the clock, from which on all do. The program does other work
/// between its polls, and the progress thread must see each of them.
const SPARSE_POLLS_NS: u64 = 4_000;

/// Time of a turn with few packets.
const TURN_NS: u64 = 3_000;
/// Time for which a post waits without sleep for a turn of the progress thread. That thread
/// may lose its processor during a turn. A thread that sleeps meanwhile waits for a tick of
/// the scheduler, up to 4 ms, if other threads use all processors.
const PROGRESS_TURN_NS: u64 = 300_000;

const PANICKED: &str = "a thread panicked in the engine";

/// One slot of the process.
#[derive(Debug)]
pub(crate) struct Shard {
    core: Mutex<Core>,
    /// Copies from and to memory of GPUs. The holder of the lock of the core uses them.
    pub(crate) gpu: GpuCopies,
    /// Notified when a thread has sent its packets, if another waits for that.
    sent: Condvar,
    /// Number of threads that wait for `sent`.
    waits_for_sender: AtomicU32,
    events: Arc<Directory>,
    pub(crate) polls: Polls,
    /// The peer's WRITEs that polls look for.
    awaited: AwaitedWrites,
    /// True while a poller holds the lock.
    polling: AtomicBool,
    /// True while the progress thread holds the lock.
    progressing: AtomicBool,
    /// True while a thread that waits for an event sleeps on the sockets.
    driven: AtomicBool,
    /// Counts how often `driven` was set.
    drives: AtomicU32,
    /// True if the last list of posts waits for more.
    posts_wait: AtomicBool,
    /// Time at which the progress thread wakes up by itself.
    sleeps_until: AtomicU64,
    /// Polls since the last packet or post.
    quiet_polls: AtomicU32,
    /// Polls since the last one that read the clock.
    untimed_polls: AtomicU32,
    /// True while the progress thread does all turns.
    taken_over: AtomicBool,
    /// True while a thread sends without the lock.
    sending: AtomicBool,
    /// True while a thread assembles packets for a progress thread that does all turns.
    assisted: AtomicBool,
    /// True if a program posted, after the last turn of a progress thread that does all.
    posted: AtomicBool,
    pub(crate) load: Load,
    /// Events of the thread that sleeps on the sockets, whose tokens the progress thread supplies.
    pub(crate) late_events: LateEvents,
    stopped: AtomicBool,
    wakeup: OwnedFd,
    /// Duplicates of the wire's descriptors: threads watch them without the lock.
    sockets: Vec<OwnedFd>,
    slot: u8,
    /// The channels to programs of this host, and a descriptor to sleep on.
    doorbell: Arc<Doorbell>,
    channels: Mutex<Vec<Channel>>,
}

/// The result of a turn of the progress thread.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Turn {
    /// Time of the next turn if no packet arrives before.
    pub(crate) deadline: Option<Time>,
    /// Number of datagrams received.
    pub(crate) received: usize,
    /// True if ACKs or posts wait to be sent with others.
    pub(crate) deferred: bool,
    /// True if posts waited before the turn.
    pub(crate) posts_waited: bool,
}

impl Shard {
    pub(crate) fn new(core: Core, events: Arc<Directory>, load: Load) -> std::io::Result<Shard> {
        Ok(Shard {
            sockets: core.descriptors()?,
            slot: core.slot(),
            doorbell: Arc::clone(core.doorbell()),
            channels: Mutex::default(),
            awaited: AwaitedWrites::default(),
            core: Mutex::new(core),
            gpu: GpuCopies::default(),
            sent: Condvar::new(),
            waits_for_sender: AtomicU32::new(0),
            events,
            polls: Polls::default(),
            polling: AtomicBool::new(false),
            progressing: AtomicBool::new(false),
            driven: AtomicBool::new(false),
            drives: AtomicU32::new(0),
            posts_wait: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(0),
            quiet_polls: AtomicU32::new(0),
            untimed_polls: AtomicU32::new(0),
            taken_over: AtomicBool::new(false),
            sending: AtomicBool::new(false),
            assisted: AtomicBool::new(false),
            posted: AtomicBool::new(false),
            load,
            late_events: LateEvents::default(),
            stopped: AtomicBool::new(false),
            wakeup: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Makes a verbs call, and sends the packets that result.
    pub(crate) fn with<T>(&self, work: impl FnOnce(Adapter<'_>, Time) -> T) -> T {
        self.with_core(|core, now, _| work(core.adapter(), now))
    }

    /// As [`Shard::with`], for calls that need more than the engine.
    pub(crate) fn with_core<T>(
        &self,
        work: impl FnOnce(&mut Core, Time, &mut ThisProcess<'_>) -> T,
    ) -> T {
        let now = clock::now();
        let mut core = self.lock_whole();
        let mut process = self.process(now);
        let result = work(&mut core, now, &mut process);
        if !self.is_stopped() {
            core.transmit(now, &mut process);
            self.wake_for_deadline(&core, now);
        }
        result
    }

    /// Posts to the queues of a queue pair. `work` returns true if it posted sends.
    #[inline]
    pub(crate) fn post<T>(&self, qpn: u32, work: impl FnOnce(Adapter<'_>, Time) -> (T, bool)) -> T {
        let now = clock::now();
        let mut end = now;
        self.polls.begin_call();
        let mut core = self.lock_soon();
        let (result, sends) = work(core.adapter(), now);
        self.quiet_polls.store(0, Ordering::Relaxed);
        if sends {
            self.load.count_post();
            self.awaited.note_post();
        }
        if !self.is_stopped() {
            if sends {
                (core, end) = self.send_posted(core, now, qpn);
            } else if core.has_events() {
                // A receive makes no packets and no deadline, only completions in the error state.
                core.report(&mut self.process(now));
            }
            let wait = core.has_deferred();
            self.posts_wait.store(wait, Ordering::Relaxed);
        }
        drop(core);
        self.polls.end_call(now, end);
        result
    }

    /// Sends the work requests that a program posted, or lets them wait. Returns the time after
    /// that.
    #[inline]
    fn send_posted<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        now: Time,
        qpn: u32,
    ) -> (MutexGuard<'a, Core>, Time) {
        let mut end = now;
        let mut process = self.process(now);
        if self.is_taken_over() {
            if core.is_sending() {
                let _the_other_thread_sends = core.begin_transmit(now, &mut process);
            }
            self.posted.store(true, Ordering::Release);
            core.report(&mut process);
        } else {
            let sending = core.posted(now, &mut process, qpn);
            (core, end) = self.send(core, sending, &mut process, now);
        }
        self.wake_for_deadline(&core, now);
        (core, end)
    }

    /// Sends deferred ACKs and waiting posts before a queue pair or the process ends, which
    /// could not send them later. If another thread holds the lock, that thread sends them.
    pub(crate) fn flush_deferred(&self) {
        if let Ok(mut core) = self.core.try_lock()
            && !self.is_stopped()
        {
            let now = clock::now();
            let mut process = self.process(now);
            match self.is_taken_over() {
                true => core.transmit(now, &mut process),
                false => core.flush_deferred(now, &mut process),
            }
        }
    }

    /// Makes a call and sends the packets that result, unless another thread holds the lock.
    pub(crate) fn try_with_core(&self, work: impl FnOnce(&mut Core, Time)) {
        if let Ok(mut core) = self.core.try_lock()
            && !self.is_stopped()
        {
            let now = clock::now();
            work(&mut core, now);
            core.transmit(now, &mut self.process(now));
        }
    }

    /// Returns memory of channels that is not used any more to the kernel, unless another thread holds the lock.
    pub(crate) fn shrink_rings(&self) {
        if let Some(mut core) = self.try_lock()
            && !self.is_stopped()
        {
            let _again_later = core.shrink_rings();
        }
    }

    /// Puts faults in force, or ends them.
    pub(crate) fn set_faults(&self, faults: Option<&Faults>) {
        let now = clock::now();
        let mut core = self.lock_whole();
        core.set_faults(now, faults);
        drop(core);
        // The clock of the faults runs from now on.
        self.wake();
    }

    /// Sends the packets that faults hold back: the process ends. If another thread holds the
    /// lock, they are lost.
    pub(crate) fn send_held(&self) {
        if let Ok(mut core) = self.core.try_lock() {
            core.send_held(clock::now());
        }
    }

    /// Sends packets, without the lock if that takes long. Leaves packets that other threads
    /// post meanwhile to the next turn, if there are too many. Returns the time after that:
    /// reading the clock takes 40 ns, so each time is read once.
    #[inline]
    fn send<'a>(
        &'a self,
        core: MutexGuard<'a, Core>,
        sending: Option<Sending>,
        process: &mut ThisProcess<'_>,
        now: Time,
    ) -> (MutexGuard<'a, Core>, Time) {
        match sending {
            Some(_) => self.send_batches(core, sending, process, now),
            None => (core, now),
        }
    }

    #[inline(never)]
    fn send_batches<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        mut sending: Option<Sending>,
        process: &mut ThisProcess<'_>,
        mut now: Time,
    ) -> (MutexGuard<'a, Core>, Time) {
        let mut batches = 0;
        while let Some(mut packets) = sending {
            if packets.is_long() {
                self.sending.store(true, Ordering::Relaxed);
                drop(core);
                packets.send(now);
                now = clock::now();
                core = self.lock_soon();
                self.sending.store(false, Ordering::Relaxed);
            } else {
                let is_instant = packets.is_instant();
                packets.send(now);
                if !is_instant {
                    now = clock::now();
                }
            }
            batches += 1;
            let continues = batches < MAX_BATCHES && !self.is_stopped();
            process.set_time(now);
            sending = core.end_transmit(now, process, packets, continues);
            if sending.is_none() && self.waits_for_sender.load(Ordering::Relaxed) > 0 {
                self.sent.notify_all();
            }
        }
        (core, now)
    }

    /// Does a turn. Returns the number of datagrams received, and the time after the turn if
    /// it sent packets, otherwise `now`.
    #[inline]
    fn turn<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        now: Time,
        caller: Caller,
    ) -> (MutexGuard<'a, Core>, usize, Time) {
        let mut process = self.process(now);
        let before = core.received_messages();
        let (received, sending) = core.turn(now, &mut process, caller);
        if core.received_messages() != before {
            self.awaited.note_arrival();
        }
        let (core, end) = self.send(core, sending, &mut process, now);
        (core, received, end)
    }

    /// Does a turn for a program that polls, unless another thread holds the lock. A shard that
    /// is not the program's only one does a turn for few polls while no packet arrives. Returns the
    /// number of datagrams received.
    pub(crate) fn poll(&self, is_only: bool) -> usize {
        if self.is_stopped() {
            return 0;
        }
        let mut held = None;
        if is_only && !self.is_taken_over() {
            held = self.try_lock();
            if self.is_memory_quiet(held.as_deref()) {
                return 0;
            }
        }
        let now = clock::now();
        if !self.polls.within(now, SPARSE_POLLS_NS) {
            self.untimed_polls.store(UNTIMED_POLLS, Ordering::Relaxed);
        }
        self.polls.note(now);
        let quiet = self.quiet_polls.load(Ordering::Relaxed).wrapping_add(1);
        self.quiet_polls.store(quiet, Ordering::Relaxed);
        let skips = !is_only && quiet > QUIET_POLLS && !quiet.is_multiple_of(QUIET_POLLS);
        // While the progress thread sends, the program receives ACKs and assembles packets.
        let is_served = self.is_taken_over() && !self.sending.load(Ordering::Relaxed);
        if skips || is_served {
            return 0;
        }
        let Some(mut core) = held.or_else(|| self.try_lock()) else {
            return 0;
        };
        self.polling.store(true, Ordering::Relaxed);
        if core.finds_nothing(now) {
            self.polling.store(false, Ordering::Relaxed);
            return 0;
        }
        self.polls.begin_call();
        let (core, received, end) = self.turn(core, now, Caller::Poller);
        if received > 0 {
            self.quiet_polls.store(0, Ordering::Relaxed);
        }
        self.wake_for_deadline(&core, now);
        self.polling.store(false, Ordering::Relaxed);
        drop(core);
        self.polls.end_call(now, end);
        received
    }

    /// Returns true for most polls of a program that receives through memory, if no packet waits there.
    /// `core` is none if another thread holds the lock.
    #[inline]
    fn is_memory_quiet(&self, core: Option<&Core>) -> bool {
        let polls = self.untimed_polls.load(Ordering::Relaxed);
        let is_quiet = polls < UNTIMED_POLLS && core.is_some_and(Core::is_memory_quiet);
        let polls = if is_quiet { polls + 1 } else { 0 };
        self.untimed_polls.store(polls, Ordering::Relaxed);
        is_quiet
    }

    /// Sends posts that wait for more of them.
    pub(crate) fn flush_posts(&self) {
        if self.posts_wait.swap(false, Ordering::Relaxed) {
            self.flush_deferred();
        }
    }

    /// Notes that the program waits for an event instead of polling: the progress thread
    /// must receive.
    pub(crate) fn stop_relying_on_polls(&self) {
        if self.polls.stop() {
            self.wake();
        }
    }

    /// Returns true while a poller holds the lock.
    pub(crate) fn is_polled(&self) -> bool {
        self.polling.load(Ordering::Relaxed)
    }

    /// Does a turn for the progress thread. Unless `waits`, returns none if another thread
    /// holds the lock: to wait for a lock that a program takes again and again would slow
    /// down every poll.
    pub(crate) fn progress(&self, caller: Caller, waits: bool) -> Option<Turn> {
        let core = match waits {
            true => self.lock(),
            false => self.try_lock()?,
        };
        self.progressing.store(true, Ordering::Relaxed);
        let now = clock::now();
        let posts_waited = core.has_waiting_posts();
        let before = core.received_messages();
        let (core, received, _) = self.turn(core, now, caller);
        let after = core.received_messages();
        if after.writes != before.writes {
            self.awaited
                .note_writes(now, after.receives != before.receives);
        }
        self.progressing.store(false, Ordering::Relaxed);
        let deadline = core.next_deadline(now);
        // Set under the lock: a thread that sets an earlier timer afterwards sees this
        // value and wakes the progress thread.
        self.set_sleep(deadline);
        Some(Turn {
            deadline,
            received,
            deferred: core.has_deferred(),
            posts_waited,
        })
    }

    /// Returns true while the progress thread does all turns.
    #[inline]
    pub(crate) fn is_taken_over(&self) -> bool {
        self.taken_over.load(Ordering::Relaxed)
    }

    /// Begins or ends the time in which the progress thread does all turns. It does one more
    /// after the end: a program may have posted just before.
    pub(crate) fn take_over(&self, begins: bool) {
        let mut core = self.lock();
        core.prepare_batches(begins);
        self.taken_over.store(begins, Ordering::Relaxed);
    }

    /// Returns true while a thread assembles packets for the progress thread.
    pub(crate) fn is_assisted(&self) -> bool {
        self.assisted.load(Ordering::Relaxed)
    }

    /// Begins or ends the time in which a thread assembles packets for the progress thread.
    pub(crate) fn set_assisted(&self, assisted: bool) {
        self.assisted.store(assisted, Ordering::Relaxed);
    }

    /// While the progress thread sends, receives and assembles its next packets.
    pub(crate) fn assist(&self) {
        if self.sending.load(Ordering::Relaxed)
            && let Some(core) = self.try_lock()
            && core.wants_packets()
        {
            let _core = self.turn(core, clock::now(), Caller::Stream);
        }
        core::hint::spin_loop();
    }

    /// Returns true if a program posted since the last call.
    pub(crate) fn take_posted(&self) -> bool {
        self.posted.load(Ordering::Acquire) && self.posted.swap(false, Ordering::Acquire)
    }

    /// Records the time at which the progress thread wakes up by itself.
    pub(crate) fn set_sleep(&self, until: Option<Time>) {
        let until = until.map_or(u64::MAX, Time::as_nanos);
        self.sleeps_until.store(until, Ordering::Relaxed);
    }

    /// Records that the progress thread is awake and does a turn before it sleeps: no thread
    /// needs to wake it.
    pub(crate) fn set_awake(&self) {
        self.sleeps_until.store(0, Ordering::Relaxed);
    }

    /// Stops sending and receiving. The progress thread ends.
    pub(crate) fn stop(&self) {
        self.flush_deferred();
        self.stopped.store(true, Ordering::Release);
        self.wake();
        // A thread that did not see the flag still holds the lock, or sends.
        let mut core = self.lock_whole();
        core.send_held(clock::now());
        // Peers learn now that this end is closed, even if objects of the device are left.
        self.doorbell.close_all();
        core.remove_closed_channels();
        drop(core);
        self.channels().clear();
        // The progress thread may have ended.
        self.late_events.supply_all();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Wakes the progress thread.
    pub(crate) fn wake(&self) {
        // The write fails only if the counter is full: then the thread wakes up as well.
        let _full = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
    }

    /// Returns the descriptor that [`Shard::wake`] makes readable.
    pub(crate) fn wakeup(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    /// Returns the descriptors that are readable when something has arrived.
    pub(crate) fn sockets(&self) -> &[OwnedFd] {
        &self.sockets
    }

    /// Returns the slot.
    pub(crate) fn slot(&self) -> u8 {
        self.slot
    }

    /// Returns the channels to programs of this host.
    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// Adds a channel to a program of this host.
    pub(crate) fn connect(&self, channel: Channel) -> std::io::Result<()> {
        self.forget_closed();
        self.with_core(|core, _, _| match core.wire_halves() {
            Some((wire, sender)) if !self.is_stopped() => wire.connect(sender, &channel.end),
            _ => Err(std::io::ErrorKind::NotConnected.into()),
        })?;
        self.channels().push(channel);
        // The other end may have sent packets.
        self.wake();
        Ok(())
    }

    /// Forgets channels whose other end is closed.
    pub(crate) fn forget_closed(&self) {
        if !self.doorbell.has_closed() {
            return;
        }
        self.with_core(|core, _, _| {
            core.remove_closed_channels();
            if let Core::Roce(core) = core {
                let has_channel = |qpn| self.doorbell.end_to(slot_of_qpn(qpn)).is_some();
                core.engine.forget_datagram_routes(has_channel);
            }
        });
        self.channels().retain(|channel| !channel.end.is_closed());
    }

    /// Takes a channel for a connection that this program has offered. No event follows, so the
    /// caller may hold locks.
    pub(crate) fn introduce_stream(&self, addresses: Addresses, channel: Channel) {
        if let Ok(core) = self.lock().iwarp() {
            core.introduced(addresses, channel);
        }
    }

    /// Prepares to sleep on the descriptors of [`Shard::sockets`]. Returns false if a packet
    /// waits in memory. [`Shard::end_sleep`] must follow.
    #[must_use]
    pub(crate) fn begin_sleep(&self) -> bool {
        self.doorbell.begin_sleep()
    }

    /// Ends a sleep on the descriptors of [`Shard::sockets`].
    pub(crate) fn end_sleep(&self) {
        if self.doorbell.end_sleep() {
            self.forget_closed();
        }
    }

    fn channels(&self) -> MutexGuard<'_, Vec<Channel>> {
        self.channels.lock().expect(PANICKED)
    }

    /// Waits until no thread accesses memory that has just been deregistered.
    pub(crate) fn pass_through(&self) {
        let mut core = self.lock();
        // Copies for a message that has not ended.
        let _reported_with_the_message = self.gpu.complete_writes();
        if let Core::Iwarp(core) = &mut *core {
            let now = clock::now();
            core.pass_through(now, self.process(now).memory());
        }
        drop(core);
    }

    /// Wakes the progress thread if it would sleep past the next deadline.
    #[inline]
    fn wake_for_deadline(&self, core: &Core, now: Time) {
        // While polls look for WRITEs, the thread wakes up soon by itself. An ACK that waits for the
        // answer of the program would wake it for each message.
        let tolerated = match self.awaited.searches() {
            true => search_standby_ns(),
            false => 0,
        };
        if let Some(next) = core.next_deadline(now)
            && next.after_nanos(tolerated).as_nanos() < self.sleeps_until.load(Ordering::Relaxed)
        {
            self.sleeps_until.store(next.as_nanos(), Ordering::Relaxed);
            self.wake();
        }
    }

    #[inline]
    fn process(&self, now: Time) -> ThisProcess<'_> {
        ThisProcess::new(now, &self.gpu, &self.events)
    }

    /// Returns none if another thread holds the lock.
    #[inline]
    fn try_lock(&self) -> Option<MutexGuard<'_, Core>> {
        match self.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("{PANICKED}"),
        }
    }

    /// Takes the lock without sleep, if its holder releases it within the time of a turn. The
    /// progress thread may still hold it when the program answers the data of that turn.
    #[inline]
    fn lock_soon(&self) -> MutexGuard<'_, Core> {
        match self.try_lock() {
            Some(core) => core,
            None => self.lock_after_spinning(),
        }
    }

    #[cold]
    fn lock_after_spinning(&self) -> MutexGuard<'_, Core> {
        let since = clock::now();
        loop {
            core::hint::spin_loop();
            if let Some(core) = self.try_lock() {
                return core;
            }
            // Two threads that share the work of a shard hold the lock for long as well.
            let is_long = self.progressing.load(Ordering::Relaxed) || self.is_taken_over();
            let limit = match is_long {
                true => PROGRESS_TURN_NS,
                false => TURN_NS,
            };
            if clock::now().nanos_since(since) >= limit {
                return self.lock();
            }
        }
    }

    /// Takes the lock when no thread sends: what it has is part of the core again.
    fn lock_whole(&self) -> MutexGuard<'_, Core> {
        let mut core = self.lock();
        if core.is_sending() {
            self.waits_for_sender.fetch_add(1, Ordering::Relaxed);
            core = self
                .sent
                .wait_while(core, |core| core.is_sending())
                .expect(PANICKED);
            self.waits_for_sender.fetch_sub(1, Ordering::Relaxed);
        }
        core
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect(PANICKED)
    }
}
