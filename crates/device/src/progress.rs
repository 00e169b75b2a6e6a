//! The progress thread of a shard.
//!
//! A program need not call Ferroce while a peer READs its memory. So a thread of the shard
//! answers peers while the program is busy elsewhere. It sleeps on the sockets, and wakes up
//! for packets and timers. After a packet it looks for the next one without sleep for a
//! while, if a processor is free: to sleep and wake up takes longer than to answer.
//!
//! While the program polls its completion queues, the thread would only compete for the
//! lock: it leaves the sockets alone, and checks every 80 us whether the program still
//! polls. If it finds that several shards move much data, or that this one sends much, it takes
//! the turns over, so that several threads work. [`ProgressRule`] tells such programs from those that poll memory. It does the same
//! while a thread of the program waits for an event and sleeps on the sockets itself.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use ferroce_roce::Time;
use ferroce_shard::{Caller, ProgressRule, RECEIVE_BUDGET, STANDBY_NS, Woken};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::assistant::Assistant;
use crate::awaited_writes::search_standby_ns;
use crate::busy_shards::LoadMeter;
use crate::clock;
use crate::free_cores::FreeCores;
use crate::sched_policy::SchedPolicy;
use crate::shard::{Shard, Turn};
use crate::slowness::scaled;
use ferroce_control::start_thread;

/// Time until the next attempt when another thread holds the lock.
const LOCKED_NS: u64 = 20_000;
/// Time after a packet in which the thread looks for the next one without sleep. A peer
/// that waits for our response before it sends again needs 10 to 20 us.
const SPIN_NS: u64 = 50_000;
/// Time after a poll in which a program that polls memory may answer a WRITE with a post.
const EXPECT_POST_NS: u64 = 1_000_000;
/// Time from the arrival of data in memory until the program has posted its answer, with
/// which our ACK can leave.
const POST_NS: u64 = 2_000;

/// Looks for packets in shared memory for each look at the sockets.
const LOOKS: u32 = 8;

/// Standbys at whose end the program still polled, after which it is expected to poll on. The first
/// packet that a program misses after that is not held against it.
const STEADY: u32 = 4;

/// Standbys of the thread while the same thread of the program waits for an event: one
/// millisecond. After that it sleeps until it is woken.
const DRIVEN_STANDBYS: u32 = 12;
/// A turn with this many datagrams is part of a stream, of which more will follow. The sender
/// of a stream, if it is on this machine, and this thread need a processor each. On two
/// processors a third thread that is ready to run is mostly the sender's progress thread, at
/// the end of a standby.
const STREAM: usize = 8;

/// Processors that must be free beside the one of a thread that does all turns: for the peer
/// on the same machine, and for other shards.
const PEERS: usize = 3;

/// Time in which a thread that does all turns must find much data. NCCL pauses between its chunks
/// for longer than a packet takes. Small messages are faster without the second thread.
const TAKEN_OVER_NS: u64 = 500_000;

/// Time without polls after which a progress thread that does all turns gets an assistant. The
/// program of a READ's responder makes no call; NCCL pauses for less.
const UNPOLLED_NS: u64 = 1_000_000;

/// Time between two looks for memory of channels that was not used since the look before. To return it and to
/// use it again takes 0.1 to 0.2 ms.
pub(crate) const SHRINK_NS: u64 = 500_000_000;

/// Starts the thread.
pub(crate) fn start(shard: Arc<Shard>, number: u8) -> std::io::Result<JoinHandle<()>> {
    start_thread(format!("ferroce-{number}"), move || run(&shard))
}

fn run(shard: &Arc<Shard>) {
    // The default slack of 50 us would nearly double a standby.
    let _default_slack = rustix::thread::set_current_timer_slack(core::num::NonZero::new(1));
    let wakeup = PollFd::from_borrowed_fd(shard.wakeup(), PollFlags::IN);
    let watched = shard.sockets().iter().map(AsFd::as_fd);
    let watched = watched.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN));
    let mut thread = ProgressThread {
        shard,
        fds: core::iter::once(wakeup).chain(watched).collect(),
        rule: ProgressRule::default(),
        cores: FreeCores::new(),
        woken: Woken::Otherwise,
        streams: false,
        spin_until: Time::ZERO,
        driven: 0,
        standbys: 0,
        polled_on: 0,
        due: None,
        shrink_due: Time::ZERO,
        meter: LoadMeter::default(),
        assistant: Assistant::new(Arc::clone(shard)),
        policy: SchedPolicy::new(),
    };
    while !shard.is_stopped() {
        let now = clock::now();
        shard.late_events.supply_if_due(now);
        thread.shrink_rings(now);
        if thread.shall_take_over(now) {
            thread.take_over(now);
        } else if !thread.leaves_sockets_to_waiter(now) && !thread.leaves_sockets_to_poller(now) {
            thread.receive(now);
        }
    }
}

/// The state of a progress thread.
struct ProgressThread<'a> {
    shard: &'a Shard,
    /// The wakeup descriptor, and the sockets.
    fds: Vec<PollFd<'a>>,
    rule: ProgressRule,
    cores: FreeCores,
    woken: Woken,
    /// True if the last turn was part of a stream.
    streams: bool,
    /// Time until which the thread looks for packets without sleep.
    spin_until: Time,
    /// Number of the last wait for an event, and the standbys during it.
    driven: u32,
    standbys: u32,
    /// Standbys in a row at whose end the program still polled.
    polled_on: u32,
    /// Time of the next turn, even if a thread of the program waits for an event.
    due: Option<Time>,
    /// Time of the next look for memory of channels that is not used.
    shrink_due: Time,
    meter: LoadMeter,
    assistant: Assistant,
    policy: SchedPolicy,
}

impl ProgressThread<'_> {
    /// While a thread of the program waits for an event and sleeps on the sockets, sleeps
    /// until the next timer and returns true.
    fn leaves_sockets_to_waiter(&mut self, now: Time) -> bool {
        let Some(driven) = self.shard.driven() else {
            return false;
        };
        self.standbys = match driven == self.driven {
            true => self.standbys.saturating_add(1),
            false => 0,
        };
        self.driven = driven;
        // The deadline of deferred work lies behind `now` each time: keep the first.
        if self.due.take().is_some_and(|due| due <= now) {
            return false;
        }
        // Short standbys at first: a thread that takes event after event would have to wake
        // this one each time.
        let standby =
            (self.standbys < DRIVEN_STANDBYS).then(|| now.after_nanos(scaled(STANDBY_NS)));
        let latest = standby.into_iter().chain(self.next_shrink()).min();
        self.due = self.shard.sleep_while_driven(now, latest);
        if self.due.is_none_or(|due| due > now) {
            let until = self.due.into_iter().chain(latest).min();
            sleep(self.shard, &mut self.fds[..1], until);
        }
        self.woken = Woken::Otherwise;
        true
    }

    /// Returns memory of channels that is not used any more to the kernel, if it is time to look for it.
    fn shrink_rings(&mut self, now: Time) {
        if now < self.shrink_due {
            return;
        }
        self.shrink_due = now.after_nanos(SHRINK_NS);
        if self.shard.doorbell().has_extended_ring() {
            self.shard.shrink_rings();
        }
    }

    /// Returns the time until which the thread may sleep if channels have memory to return.
    fn next_shrink(&self) -> Option<Time> {
        let is_extended = self.shard.doorbell().has_extended_ring();
        is_extended.then_some(self.shrink_due)
    }

    /// While the program polls its completion queues, stands by and returns true.
    fn leaves_sockets_to_poller(&mut self, now: Time) -> bool {
        self.rule.begin_trial_if_due(now);
        // Polls that look for WRITEs receive what a program that polls memory awaits.
        let searches = self.shard.searches_for_writes();
        if self.rule.polls_memory() && !searches {
            return false;
        }
        let Some(left) = self.shard.polls.standby_ns(now) else {
            return false;
        };
        let polls = &self.shard.polls;
        // The kernel's clock of another thread takes a microsecond of a processor that the poller
        // may need.
        let is_urgent = self.rule.standby_is_urgent(now);
        let watches = (self.polled_on < STEADY || is_urgent) && !searches;
        let before = watches.then(|| polls.poller()).flatten();
        // To preempt the poller for this check would double the latency of its messages. But
        // a waiting packet would wait until the time slice of the poller ends. So would the WRITE
        // of a program that searched for it in vain and now reads memory.
        self.policy.set_batch(!is_urgent && !searches);
        let standby = if searches { search_standby_ns() } else { left };
        self.stand_by(now, standby);
        let end = clock::now();
        if polls.is_in_call(end) || polls.within(end, scaled(STANDBY_NS) / 2) {
            self.polled_on = self.polled_on.saturating_add(1);
            return true;
        }
        self.polled_on = 0;
        if before.is_some_and(|before| is_busy_elsewhere(self.shard, now, before)) {
            self.woken = Woken::ByStandby;
        }
        true
    }

    /// Returns true if this shard sends much, or this one and another move much data, and
    /// processors are free.
    fn shall_take_over(&mut self, now: Time) -> bool {
        let busy = self.meter.measure(&self.shard.load, STANDBY_NS, now);
        busy == Some(true) && self.cores.has_one(now, PEERS)
    }

    /// Does all turns as long as much data moves and processors are free. The program posts, takes
    /// completions, and assembles packets while this thread sends.
    fn take_over(&mut self, now: Time) {
        let shard = self.shard;
        self.policy.set_batch(false);
        shard.set_awake();
        shard.take_over(true);
        self.meter = LoadMeter::begin(&shard.load, now);
        while !shard.is_stopped() {
            let turn = shard.progress(Caller::Stream, true);
            shard.set_awake();
            let now = clock::now();
            shard.late_events.supply_if_due(now);
            let busy = self.meter.goes_on(&shard.load, TAKEN_OVER_NS, now);
            if busy == Some(false) || !self.cores.has_one(now, PEERS - 1) {
                break;
            }
            // The polls of the program assemble packets, too.
            let needs_assistant = self.meter.sends_much() && !shard.polls.within(now, UNPOLLED_NS);
            match shard.is_assisted() {
                true if !needs_assistant => self.assistant.rest(),
                false if needs_assistant && self.cores.has_one(now, PEERS) => self.assistant.work(),
                _ => {}
            }
            if turn.is_none_or(|turn| turn.received == 0) {
                self.await_packet_or_post(self.meter.end_of_window(TAKEN_OVER_NS));
            }
        }
        self.assistant.rest();
        shard.load.note_quiet();
        shard.take_over(false);
        // A program may have posted just before.
        shard.progress(Caller::ProgressThread, true);
        self.meter = LoadMeter::begin(&shard.load, clock::now());
        self.woken = Woken::Otherwise;
    }

    /// Watches the descriptors and the program's posts without sleep.
    fn await_packet_or_post(&mut self, until: Time) {
        while !self.shard.take_posted() && clock::now() < until {
            if self.packet_in_memory() {
                return;
            }
            if poll(&mut self.fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                ready(self.shard, &self.fds);
                return;
            }
        }
    }

    /// Does a turn, and waits for the next one.
    fn receive(&mut self, now: Time) {
        self.policy.set_batch(false);
        let (shard, polls_memory) = (self.shard, self.rule.polls_memory());
        let caller = match self.streams {
            true => Caller::Stream,
            _ if polls_memory && shard.polls.within(now, EXPECT_POST_NS) => Caller::ExpectsPost,
            false => Caller::ProgressThread,
        };
        // A program that polls memory needs the packet now, unless it is polling just now and
        // takes the packet itself.
        let turn = match polls_memory && shard.polls.go_on(now) {
            true => None,
            false => shard.progress(caller, polls_memory),
        };
        let Some(turn) = turn else {
            self.rule.note(now, self.woken, 0);
            // A poller can hold the lock for long; a poster never drains the sockets.
            let polled = shard.is_polled() && !polls_memory;
            self.stand_by(now, scaled(if polled { STANDBY_NS } else { LOCKED_NS }));
            return;
        };
        self.rule.note(now, self.woken, turn.received);
        self.woken = Woken::Otherwise;
        if shard.driven().is_some() && turn.received < RECEIVE_BUDGET {
            // A thread of the program waits for an event and receives. If this one slept on
            // the same descriptors, each packet would wake both, and they would compete.
            self.streams = false;
            return;
        }
        if turn.received > 0 {
            // A program that polls memory needs a processor even if it waits for the lock.
            let polls_memory = self.rule.polls_memory();
            let spins = self.cores.has_one(now, usize::from(polls_memory))
                || turn.received >= STREAM && !polls_memory && self.cores.are_several();
            if spins {
                self.spin_until = now.after_nanos(scaled(SPIN_NS));
            } else if polls_memory {
                self.spin_until = Time::ZERO;
            }
            // Otherwise the time since the last turn with many datagrams counts: the first packet of a
            // message often arrives alone, and to sleep between two messages costs the sender a wakeup each.
        }
        let spins = now < self.spin_until;
        self.streams = turn.received >= STREAM && spins;
        if self.streams || turn.received >= RECEIVE_BUDGET {
            shard.set_awake();
        } else if spins {
            self.spin(now, &turn);
        } else {
            // Each post of a program that polls memory, or of a burst of datagrams, sets a
            // timer. To wake this thread for it would cost more than the post.
            let sets_timers = caller == Caller::ExpectsPost || turn.posts_waited;
            let latest = sets_timers.then(|| now.after_nanos(scaled(STANDBY_NS)));
            let until = turn.deadline.into_iter().chain(latest);
            let until = until.chain(self.next_shrink()).min();
            shard.set_sleep(until);
            self.woken = match shard.begin_sleep() {
                true => sleep(shard, &mut self.fds, until),
                false => Woken::ByPacket,
            };
            shard.end_sleep();
        }
    }

    /// Watches all descriptors without sleep.
    fn spin(&mut self, now: Time, turn: &Turn) {
        self.shard.set_awake();
        let until = match turn.deferred {
            true => now.after_nanos(POST_NS),
            false => self
                .spin_until
                .min(turn.deadline.unwrap_or(self.spin_until)),
        };
        // A program that begins to poll, or to wait for an event, receives itself.
        let leaves = || {
            let is_polled = !self.rule.polls_memory() && self.shard.polls.standby_ns(now).is_some();
            is_polled || self.shard.driven().is_some()
        };
        while clock::now() < until && !leaves() {
            if self.packet_in_memory() {
                self.woken = Woken::ByPacket;
                return;
            }
            if poll(&mut self.fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                self.woken = ready(self.shard, &self.fds);
                return;
            }
        }
    }

    /// Looks for packets in shared memory, several times if there are channels: such a look takes
    /// a tenth of the time of a look at the sockets.
    fn packet_in_memory(&self) -> bool {
        let doorbell = self.shard.doorbell();
        doorbell.has_ends()
            && (0..LOOKS).any(|_| {
                core::hint::spin_loop();
                doorbell.has_packet()
            })
    }

    /// Sleeps for a time without watching the sockets.
    fn stand_by(&mut self, now: Time, ns: u64) {
        let until = Some(now.after_nanos(ns));
        self.shard.set_sleep(until);
        sleep(self.shard, &mut self.fds[..1], until);
        self.woken = Woken::Otherwise;
    }
}

/// Returns true if the thread that polled last has used the processor after its last poll, for
/// most of a standby. `before` is its state at the time `since`, before the standby.
fn is_busy_elsewhere(shard: &Shard, since: Time, before: (i32, u64, Time)) -> bool {
    let Some((thread, used, polled)) = shard.polls.poller() else {
        return false;
    };
    // Of the CPU time, so much may be from before the last poll.
    let polling = polled.nanos_since(since);
    thread == before.0 && used.saturating_sub(before.1) >= polling + scaled(STANDBY_NS) / 2
}

/// Sleeps until a descriptor is ready or the deadline has come, for a standby if events have no token. The
/// caller has recorded the deadline.
fn sleep(shard: &Shard, fds: &mut [PollFd<'_>], deadline: Option<Time>) -> Woken {
    let now = clock::now();
    let late = shard.late_events.is_used();
    let late = late.then(|| now.after_nanos(scaled(STANDBY_NS)));
    let timeout = deadline.into_iter().chain(late).min().map(|deadline| {
        let left = deadline.nanos_since(now);
        Timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as i64,
        }
    });
    let woken = match poll(fds, timeout.as_ref()) {
        Ok(1..) => ready(shard, fds),
        _ => Woken::Otherwise,
    };
    shard.set_awake();
    woken
}

/// Resets the wakeup descriptor, which is the first, if it is ready. Returns which kind of
/// descriptor was ready.
fn ready(shard: &Shard, fds: &[PollFd<'_>]) -> Woken {
    if fds[0].revents().is_empty() {
        return Woken::ByPacket;
    }
    let mut count = [0; 8];
    // The read fails only if another read was first: then it is reset as well.
    let _empty = rustix::io::read(shard.wakeup(), &mut count);
    Woken::Otherwise
}
