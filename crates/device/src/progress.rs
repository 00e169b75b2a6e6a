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
use crate::manners::Manners;
use crate::shard::{RECEIVE_BUDGET, Shard};
use crate::signals;

/// How soon to look again when somebody else is at work.
const TAKEN_NS: u64 = 20_000;

/// So many datagrams in a turn are a stream of which more is to come.
const STREAM: usize = 16;
/// How long to look out for it: to fall asleep and be woken up would take as long.
const LINGER_NS: u64 = 20_000;

/// Starts the thread.
pub(crate) fn start(shard: Arc<Shard>, number: u8) -> std::io::Result<JoinHandle<()>> {
    let sockets = shard.sockets()?;
    let _blocked = signals::block_all();
    #[allow(clippy::disallowed_methods)] // this is the runtime: threads live here
    std::thread::Builder::new()
        .name(format!("ferroce-{number}"))
        .spawn(move || run(&shard, &sockets))
}

fn run(shard: &Shard, sockets: &[OwnedFd]) {
    let mut manners = Manners::new();
    while !shard.is_stopped() {
        let now = clock::now();
        let standby = shard.standby_ns(now);
        manners.yield_to_others(standby.is_some());
        if let Some(left) = standby {
            let due = Some(now.after_nanos(left));
            shard.sleeps_until(due);
            sleep(shard, &[], due);
            continue;
        }
        match shard.progress() {
            Some((due, received)) => {
                let more = received >= RECEIVE_BUDGET;
                if !more && (received < STREAM || !linger(shard, sockets)) {
                    sleep(shard, sockets, due);
                }
            }
            None => {
                let due = Some(now.after_nanos(TAKEN_NS));
                shard.sleeps_until(due);
                sleep(shard, &[], due);
            }
        }
    }
}

/// Looks out for the bell, or for packets in `sockets`, without sleep. False if nothing
/// has come for a while.
fn linger(shard: &Shard, sockets: &[OwnedFd]) -> bool {
    let mut fds = signs(shard, sockets);
    let until = clock::now().after_nanos(LINGER_NS);
    while clock::now() < until {
        if poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            return true;
        }
    }
    false
}

/// Waits for the bell, for packets in `sockets`, or until `due`.
fn sleep(shard: &Shard, sockets: &[OwnedFd], due: Option<Time>) {
    let mut fds = signs(shard, sockets);
    let timeout = due.map(|due| {
        let left = due.nanos_since(clock::now());
        Timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as i64,
        }
    });
    if poll(&mut fds, timeout.as_ref()).is_ok_and(|ready| ready > 0) {
        let mut count = [0; 8];
        let _empty_is_as_good = rustix::io::read(shard.bell(), &mut count);
    }
    // Awake: nobody need ring.
    shard.sleeps_until(Some(Time::ZERO));
}

fn signs<'a>(shard: &'a Shard, sockets: &'a [OwnedFd]) -> Vec<PollFd<'a>> {
    let sockets = sockets.iter().map(AsFd::as_fd);
    std::iter::once(shard.bell())
        .chain(sockets)
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect()
}
