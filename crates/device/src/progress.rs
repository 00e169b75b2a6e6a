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
use crate::shard::Shard;
use crate::signals;

/// How soon to look again when somebody else is at work.
const TAKEN_NS: u64 = 20_000;

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
            Some((_, true)) => {}
            Some((due, false)) => sleep(shard, sockets, due),
            None => {
                let due = Some(now.after_nanos(TAKEN_NS));
                shard.sleeps_until(due);
                sleep(shard, &[], due);
            }
        }
    }
}

/// Waits for the bell, for packets in `sockets`, or until `due`.
fn sleep(shard: &Shard, sockets: &[OwnedFd], due: Option<Time>) {
    let mut fds = vec![PollFd::from_borrowed_fd(shard.bell(), PollFlags::IN)];
    for socket in sockets {
        fds.push(PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
    }
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
