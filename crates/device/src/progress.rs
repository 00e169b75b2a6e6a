//! The progress thread of a shard.
//!
//! Nobody calls into an adapter to make it answer a READ, so somebody must be
//! there when the program is busy elsewhere. The thread sleeps on the sockets
//! and wakes for packets and timers. While the program polls, it would only be
//! in the way: then it leaves the sockets alone, looks every now and then whether
//! the program still does, and does not push the program aside to look.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use ferroce_transport::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock;
use crate::fork::NotForChildren;
use crate::manners::Manners;
use crate::shard::{RECEIVE_BUDGET, STANDBY_NS, Shard, Visit};
use crate::signals;

/// How soon to look again when a program that does not poll is at work.
const TAKEN_NS: u64 = 20_000;
/// So many datagrams in a turn are a stream of which more is to come.
const STREAM: usize = 8;
/// How long to look out for it: to fall asleep and be woken up would take as long.
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
    let mut manners = Manners::new();
    let bell = PollFd::from_borrowed_fd(shard.bell(), PollFlags::IN);
    let watched = sockets.iter().map(AsFd::as_fd);
    let watched = watched.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN));
    let mut signs: Vec<PollFd<'_>> = core::iter::once(bell).chain(watched).collect();
    // With one processor the peer, if it is here, needs it more.
    let may_linger = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    let mut visit = Visit::Wake;
    let mut linger_until = Time::ZERO;
    while !shard.is_stopped() {
        let now = clock::now();
        if let Some(left) = shard.standby_ns(now) {
            manners.yield_to_others(true);
            stand_by(shard, &mut signs, now.after_nanos(left));
            continue;
        }
        match shard.progress(visit) {
            Some((due, received)) => {
                manners.yield_to_others(false);
                visit = Visit::Wake;
                if received >= STREAM && may_linger {
                    visit = Visit::Stream;
                    linger_until = clock::now().after_nanos(LINGER_NS);
                }
                let more = received >= RECEIVE_BUDGET || visit == Visit::Stream;
                match more || linger(shard, &mut signs, linger_until) {
                    true => shard.stays_awake(),
                    false => sleep(shard, &mut signs, due),
                }
            }
            None => {
                // Who polls may take longer; who posts does not receive.
                let wait = if shard.is_polled() {
                    STANDBY_NS
                } else {
                    TAKEN_NS
                };
                stand_by(shard, &mut signs, now.after_nanos(wait));
            }
        }
    }
}

/// Leaves the sockets alone for a while.
fn stand_by(shard: &Shard, signs: &mut [PollFd<'_>], until: Time) {
    shard.sleeps_until(Some(until));
    sleep(shard, &mut signs[..1], Some(until));
}

/// Looks out for the bell and packets without sleep. False if nothing comes in time.
fn linger(shard: &Shard, signs: &mut [PollFd<'_>], until: Time) -> bool {
    while clock::now() < until {
        if poll(signs, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            silence(shard, signs);
            return true;
        }
    }
    false
}

/// Waits for the bell, for packets, or until `due`.
fn sleep(shard: &Shard, signs: &mut [PollFd<'_>], due: Option<Time>) {
    let timeout = due.map(|due| {
        let left = due.nanos_since(clock::now());
        Timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as i64,
        }
    });
    if poll(signs, timeout.as_ref()).is_ok_and(|ready| ready > 0) {
        silence(shard, signs);
    }
    shard.stays_awake();
}

/// Stops the bell, which is the first of the signs.
fn silence(shard: &Shard, signs: &[PollFd<'_>]) {
    if !signs[0].revents().is_empty() {
        let mut count = [0; 8];
        let _empty_is_as_good = rustix::io::read(shard.bell(), &mut count);
    }
}
