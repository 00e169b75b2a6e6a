//! The progress thread of a shard.
//!
//! A program need not call Ferroce while a peer READs its memory. So a thread of the shard
//! answers peers while the program is busy elsewhere. It sleeps on the sockets, and wakes up
//! for packets and timers. After a packet it looks for the next one without sleep for a
//! while, if a processor is free: to sleep and wake up takes longer than to answer.
//!
//! While the program polls its completion queues, the thread would only compete for the
//! lock: it leaves the sockets alone, and checks every 80 us whether the program still
//! polls. [`ProgressRule`] tells such programs from those that poll memory. It does the same
//! while a thread of the program waits for an event and sleeps on the sockets itself.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use ferroce_roce::Time;
use ferroce_shard::{Caller, ProgressRule, RECEIVE_BUDGET, STANDBY_NS, Woken};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock;
use crate::fork::NotForChildren;
use crate::free_cores::FreeCores;
use crate::shard::Shard;
use ferroce_control::block_all;

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

/// Standbys of the thread while the same thread of the program waits for an event: one
/// millisecond. After that it sleeps until it is woken.
const DRIVEN_STANDBYS: u32 = 12;
/// A turn with this many datagrams is part of a stream, of which more will follow.
const STREAM: usize = 8;

/// Starts the thread.
pub(crate) fn start(
    shard: Arc<Shard>,
    number: u8,
    not_for_children: &mut NotForChildren,
) -> std::io::Result<JoinHandle<()>> {
    for socket in shard.sockets() {
        not_for_children.add(socket.as_fd());
    }
    let _blocked = block_all();
    #[allow(clippy::disallowed_methods)] // this is the runtime: threads live here
    std::thread::Builder::new()
        .name(format!("ferroce-{number}"))
        .spawn(move || run(&shard))
}

fn run(shard: &Shard) {
    // The default slack of 50 us would nearly double a standby.
    let _default_slack = rustix::thread::set_current_timer_slack(core::num::NonZero::new(1));
    let wakeup = PollFd::from_borrowed_fd(shard.wakeup(), PollFlags::IN);
    let watched = shard.sockets().iter().map(AsFd::as_fd);
    let watched = watched.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN));
    // The wakeup descriptor comes first.
    let mut fds: Vec<PollFd<'_>> = core::iter::once(wakeup).chain(watched).collect();
    let mut rule = ProgressRule::default();
    let mut cores = FreeCores::new();
    let mut streams = false;
    let mut woken = Woken::Otherwise;
    let mut spin_until = Time::ZERO;
    let (mut driven_before, mut standbys) = (0, 0);
    while !shard.is_stopped() {
        let now = clock::now();
        if let Some(driven) = shard.driven() {
            standbys = if driven == driven_before {
                standbys + 1
            } else {
                0
            };
            driven_before = driven;
            // A short standby at first: a thread that takes event after event would have to
            // wake this one each time.
            let standby = (standbys < DRIVEN_STANDBYS).then(|| now.after_nanos(STANDBY_NS));
            let due = shard.sleep_while_driven(now, standby);
            if due.is_none_or(|due| due > now) {
                sleep(shard, &mut fds[..1], due);
                woken = Woken::Otherwise;
                continue;
            }
        }
        if !rule.polls_memory()
            && let Some(left) = shard.standby_ns(now)
        {
            let before = shard.poller();
            stand_by(shard, &mut fds, now.after_nanos(left));
            woken = match before.is_some_and(|before| is_busy_elsewhere(shard, now, before)) {
                true => Woken::ByStandby,
                false => Woken::Otherwise,
            };
            continue;
        }
        let caller = match streams {
            true => Caller::Stream,
            _ if rule.polls_memory() && shard.polled_within(now, EXPECT_POST_NS) => {
                Caller::ExpectsPost
            }
            false => Caller::ProgressThread,
        };
        // A program that polls memory needs the packet now, unless it is polling just now and
        // takes the packet itself.
        let polls_on = rule.polls_memory() && shard.polls_on(now);
        let turn = match polls_on {
            true => None,
            false => shard.progress(caller, rule.polls_memory()),
        };
        let Some(turn) = turn else {
            rule.note(woken, 0);
            let ns = match shard.is_polled() && !rule.polls_memory() {
                true => STANDBY_NS,
                false => LOCKED_NS,
            };
            stand_by(shard, &mut fds, now.after_nanos(ns));
            woken = Woken::Otherwise;
            continue;
        };
        rule.note(woken, turn.received);
        if turn.received > 0 {
            // A program that polls memory needs a processor even if it waits for the lock.
            let others = usize::from(rule.polls_memory());
            spin_until = match cores.has_one(now, others) {
                true => now.after_nanos(SPIN_NS),
                false => Time::ZERO,
            };
        }
        let spins = now < spin_until;
        woken = Woken::Otherwise;
        streams = turn.received >= STREAM && spins;
        if streams || turn.received >= RECEIVE_BUDGET {
            shard.set_awake();
        } else if spins {
            shard.set_awake();
            let until = match turn.deferred {
                true => now.after_nanos(POST_NS),
                false => turn.deadline.map_or(spin_until, |due| due.min(spin_until)),
            };
            let goes_on = || rule.polls_memory() || shard.standby_ns(now).is_none();
            woken = spin(shard, &mut fds, until, goes_on);
        } else {
            let latest = match caller {
                // Each post sets a timer. To wake this thread for it would cost more than the
                // post.
                Caller::ExpectsPost => Some(now.after_nanos(STANDBY_NS)),
                _ => None,
            };
            let until = turn.deadline.into_iter().chain(latest).min();
            shard.set_sleep(until);
            woken = sleep(shard, &mut fds, until);
        }
    }
}

/// Returns true if the thread that polled last has used the processor after its last poll, for
/// most of a standby. `before` is its state at the time `since`, before the standby.
fn is_busy_elsewhere(shard: &Shard, since: Time, before: (i32, u64, Time)) -> bool {
    let Some((thread, used, polled)) = shard.poller() else {
        return false;
    };
    // Of the CPU time, so much may be from before the last poll.
    let polling = polled.nanos_since(since);
    thread == before.0 && used.saturating_sub(before.1) >= polling + STANDBY_NS / 2
}

/// Sleeps without watching the sockets.
fn stand_by(shard: &Shard, fds: &mut [PollFd<'_>], until: Time) {
    shard.set_sleep(Some(until));
    sleep(shard, &mut fds[..1], Some(until));
}

/// Watches all descriptors without sleep, until one is ready, the time is over, or `goes_on`
/// returns false.
fn spin(shard: &Shard, fds: &mut [PollFd<'_>], until: Time, goes_on: impl Fn() -> bool) -> Woken {
    while clock::now() < until && goes_on() {
        if poll(fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            return ready(shard, fds);
        }
    }
    Woken::Otherwise
}

/// Sleeps until a descriptor is ready or the deadline has come.
fn sleep(shard: &Shard, fds: &mut [PollFd<'_>], deadline: Option<Time>) -> Woken {
    let timeout = deadline.map(|deadline| {
        let left = deadline.nanos_since(clock::now());
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
