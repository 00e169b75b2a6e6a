//! Completion channels, and the thread that waits for an event of one.
//!
//! A thread that waits in `ibv_get_cq_event` sleeps on the sockets of the shards as well, and
//! receives packets itself. If only the progress thread did so, each event would take two
//! wakeups: one of the progress thread, and one of the waiting thread. A program that waits
//! by `poll` or `epoll` on the descriptor is served by the progress thread.
//!
//! An event that such a thread receives and takes itself is never in the pipe. If one packet makes several
//! events, the others get their tokens late ([`LateEvents`](crate::late_events::LateEvents)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ferroce_control::{Handlers, handlers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::channel::Channel;
use crate::clock;
use crate::event_spin::{EventSpin, Pause, Search};
use crate::fork;
use crate::shard::Shard;
use crate::shards::Shards;

/// A queue of events of completion queues, with a descriptor.
#[derive(Debug)]
pub struct CompletionChannel {
    records: Arc<Channel<u64>>,
    /// All shards of the link.
    shards: Arc<Shards>,
    /// Bit mask of the shards whose completions make events here.
    used: AtomicU64,
    /// True if the last thread that waited here received packets itself.
    driven: AtomicBool,
    spin: EventSpin,
    /// Forks before this process created the channel.
    forks: u32,
}

impl CompletionChannel {
    pub(crate) fn new(shards: Arc<Shards>) -> io::Result<CompletionChannel> {
        Ok(CompletionChannel::with(Channel::new()?, shards))
    }

    /// Creates a channel that mostly stays without events.
    pub(crate) fn new_lazy(shards: Arc<Shards>) -> io::Result<CompletionChannel> {
        Ok(CompletionChannel::with(Channel::new_lazy()?, shards))
    }

    fn with(records: Channel<u64>, shards: Arc<Shards>) -> CompletionChannel {
        CompletionChannel {
            records: Arc::new(records),
            shards,
            used: AtomicU64::new(0),
            driven: AtomicBool::new(false),
            spin: EventSpin::default(),
            forks: fork::count(),
        }
    }

    /// Creates the descriptors that events need, before the first event is requested.
    ///
    /// # Errors
    /// `EMFILE` and others of `pipe`.
    pub fn prepare(&self) -> io::Result<()> {
        self.records.prepare()
    }

    /// Returns the descriptor that is readable while an event waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.records.fd()
    }

    /// Takes the oldest event; waits for one unless the descriptor is non-blocking.
    ///
    /// # Errors
    /// `WouldBlock` if the descriptor is non-blocking and no event waits; `Interrupted` after
    /// a signal whose handler does not restart system calls.
    pub fn take(&self) -> io::Result<u64> {
        self.take_with(|record| record)
    }

    /// Takes the oldest event as [`CompletionChannel::take`] does, and looks at it before a
    /// completion queue can take it back.
    ///
    /// # Errors
    /// As [`CompletionChannel::take`].
    pub fn take_with<U>(&self, look: impl FnOnce(u64) -> U) -> io::Result<U> {
        // To ask whether the descriptor is non-blocking takes a system call. After a wait that blocked, look for
        // an event first.
        let mut is_blocking = !self.is_driven();
        let plain = self.records.has_record() || is_blocking && self.records.is_nonblocking();
        let shards = match plain {
            true => Vec::new(),
            false => self.begin_driving(),
        };
        if shards.is_empty() {
            return self.records.take_with(look);
        }
        let driving = Driving(&shards);
        self.driven.store(true, Ordering::Relaxed);
        let mut fds = Vec::new();
        let mut look = Some(look);
        let begin = clock::now();
        let mut search = self.spin.begin(begin);
        let mut slept = false;
        loop {
            let turns = || shards.iter().for_each(|shard| shard.drive());
            let may_be_late = || shards[0].keeps_late_events(&self.records);
            let taken = self.records.take_after(turns, &mut look, may_be_late);
            if let Some(taken) = taken {
                let waited = clock::now().nanos_since(begin);
                self.spin.note_event(waited, slept);
                return Ok(taken);
            }
            if shards.iter().any(|shard| shard.is_stopped()) {
                // The device was closed. Its sockets may have another owner.
                drop(driving);
                let look = look.take().expect("no event was taken");
                return self.records.take_with(look);
            }
            if !is_blocking && self.records.is_nonblocking() {
                // The progress thread receives for this program from now on.
                self.driven.store(false, Ordering::Relaxed);
                drop(driving);
                shards
                    .iter()
                    .for_each(|shard| shard.stop_relying_on_polls());
                let look = look.take().expect("no event was taken");
                return self.records.take_with(look);
            }
            is_blocking = true;
            match search.pause() {
                Pause::Over if !self.records.has_record() => continue,
                // An event that another thread has put is in the pipe.
                Pause::Over => search = Search::default(),
                pause => self.spin.note_vain(pause),
            }
            if !slept {
                let sockets = shards.iter().flat_map(|shard| shard.sockets());
                let watched = core::iter::once(self.fd()).chain(sockets.map(AsFd::as_fd));
                let watched = watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
                fds.extend(watched);
            }
            slept = true;
            let mut may_sleep = true;
            shards
                .iter()
                .for_each(|shard| may_sleep &= shard.begin_sleep());
            shards.iter().for_each(|shard| shard.watch_rings());
            let at_once = (!may_sleep).then(Timespec::default);
            let polled = poll(&mut fds, at_once.as_ref());
            shards.iter().for_each(|shard| shard.end_sleep());
            match polled {
                Err(Errno::INTR) if handlers() != Handlers::Restart => {
                    return Err(Errno::INTR.into());
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) if !fds[0].revents().is_empty() => {
                    drop(driving);
                    let look = look.take().expect("no event was taken");
                    return self.records.take_with(look);
                }
                Ok(_) => {}
            }
        }
    }

    /// Returns true if threads that wait here receive packets themselves.
    pub(crate) fn is_driven(&self) -> bool {
        self.driven.load(Ordering::Relaxed)
    }

    /// Notes that completions of a shard make events here.
    pub(crate) fn serve(&self, shard: usize) {
        self.used.fetch_or(1 << shard, Ordering::AcqRel);
    }

    /// Adds an event.
    pub(crate) fn put(&self, record: u64) {
        self.records.put(record);
    }

    /// Takes back all events that equal `record` and that no thread has taken.
    pub(crate) fn purge(&self, record: u64) {
        self.records.purge(record);
    }

    /// Returns the shards that the current thread shall drive: all that are used, or none if
    /// another thread drives one of them.
    fn begin_driving(&self) -> Vec<&Shard> {
        let mut driven = Vec::new();
        let mut used = self.used.load(Ordering::Acquire);
        // A forked child has the channel, but not the sockets.
        if fork::count() != self.forks {
            return driven;
        }
        while used != 0 {
            let shard = &**self.shards.get(used.trailing_zeros() as usize);
            if !shard.begin_driving() {
                drop(Driving(&driven));
                return Vec::new();
            }
            driven.push(shard);
            used &= used - 1;
        }
        driven
    }
}

/// Shards that a thread drives until this is dropped.
struct Driving<'a>(&'a [&'a Shard]);

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        for shard in self.0 {
            shard.end_driving();
        }
    }
}
