//! The progress thread of a shard.
//!
//! A program need not call Ferroce while a peer READs its memory. So a thread of the shard
//! answers peers while the program is busy elsewhere. It sleeps on the sockets, and wakes up
//! for packets and timers. While the program polls, the thread would only compete for the
//! lock: it leaves the sockets alone, and checks every 80 us whether the program still
//! polls. It checks under SCHED_BATCH, so that it does not preempt the program.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use ferroce_roce::Time;
use ferroce_shard::{Caller, RECEIVE_BUDGET, STANDBY_NS};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock;
use crate::fork::NotForChildren;
use crate::sched_policy::SchedPolicy;
use crate::shard::Shard;
use crate::signals;

/// Time until the next attempt when a thread that posts holds the lock.
const LOCKED_NS: u64 = 20_000;
/// A turn with this many datagrams is part of a stream, of which more will follow.
const STREAM: usize = 8;
/// Time to look for more of a stream without sleep: to sleep and wake up takes as long.
const LINGER_NS: u64 = 20_000;

/// Starts the thread.
pub(crate) fn start(
    shard: Arc<Shard>,
    number: u8,
    not_for_children: &mut NotForChildren,
) -> std::io::Result<JoinHandle<()>> {
    let sockets = shard.sockets()?;
    for socket in &sockets {
        not_for_children.add(socket.as_fd());
    }
    let _blocked = signals::block_all();
    #[allow(clippy::disallowed_methods)] // this is the runtime: threads live here
    std::thread::Builder::new()
        .name(format!("ferroce-{number}"))
        .spawn(move || run(&shard, &sockets))
}

fn run(shard: &Shard, sockets: &[OwnedFd]) {
    let mut sched = SchedPolicy::new();
    let wakeup = PollFd::from_borrowed_fd(shard.wakeup(), PollFlags::IN);
    let watched = sockets.iter().map(AsFd::as_fd);
    let watched = watched.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN));
    // The wakeup descriptor comes first.
    let mut fds: Vec<PollFd<'_>> = core::iter::once(wakeup).chain(watched).collect();
    // A peer on this machine needs the only processor more.
    let may_linger = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    let mut caller = Caller::ProgressThread;
    let mut linger_until = Time::ZERO;
    while !shard.is_stopped() {
        let now = clock::now();
        if let Some(left) = shard.standby_ns(now) {
            sched.set_batch(true);
            stand_by(shard, &mut fds, now.after_nanos(left));
            continue;
        }
        match shard.progress(caller) {
            Some((deadline, received)) => {
                sched.set_batch(false);
                caller = Caller::ProgressThread;
                if received >= STREAM && may_linger {
                    caller = Caller::Stream;
                    linger_until = clock::now().after_nanos(LINGER_NS);
                }
                let more = received >= RECEIVE_BUDGET || caller == Caller::Stream;
                match more || linger(shard, &mut fds, linger_until) {
                    true => shard.set_awake(),
                    false => sleep(shard, &mut fds, deadline),
                }
            }
            None => {
                // A poller can hold the lock for long; a poster never drains the sockets.
                let wait = if shard.is_polled() {
                    STANDBY_NS
                } else {
                    LOCKED_NS
                };
                stand_by(shard, &mut fds, now.after_nanos(wait));
            }
        }
    }
}

/// Sleeps without watching the sockets.
fn stand_by(shard: &Shard, fds: &mut [PollFd<'_>], until: Time) {
    shard.set_sleep(Some(until));
    sleep(shard, &mut fds[..1], Some(until));
}

/// Watches all descriptors without sleep. Returns false if none is ready in time.
fn linger(shard: &Shard, fds: &mut [PollFd<'_>], until: Time) -> bool {
    while clock::now() < until {
        if poll(fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            clear_wakeup(shard, fds);
            return true;
        }
    }
    false
}

/// Sleeps until a descriptor is ready or the deadline has come.
fn sleep(shard: &Shard, fds: &mut [PollFd<'_>], deadline: Option<Time>) {
    let timeout = deadline.map(|deadline| {
        let left = deadline.nanos_since(clock::now());
        Timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as i64,
        }
    });
    if poll(fds, timeout.as_ref()).is_ok_and(|ready| ready > 0) {
        clear_wakeup(shard, fds);
    }
    shard.set_awake();
}

/// Resets the wakeup descriptor, which is the first, if it is ready.
fn clear_wakeup(shard: &Shard, fds: &[PollFd<'_>]) {
    if !fds[0].revents().is_empty() {
        let mut count = [0; 8];
        // The read fails only if another read was first: then it is reset as well.
        let _empty = rustix::io::read(shard.wakeup(), &mut count);
    }
}
