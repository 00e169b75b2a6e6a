//! A shard: one slot of the process, with its core, lock and progress thread.
//!
//! A thread that has work takes the lock and does a turn: it receives, handles timers and
//! sends. A program that posts or polls does so on its own thread. The progress thread takes
//! over when no thread has polled for 80 us, so that peers are served while the program does
//! something else. While the program polls, the progress thread leaves the lock alone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use ferroce_net::{UdpWire, Wire};
use ferroce_roce::{Adapter, Event, Memory, Time};
use ferroce_shard::{Caller, STANDBY_NS};
use rustix::event::{EventfdFlags, eventfd};

use crate::clock;
use crate::credits::MappedCredits;
use crate::event_queue::EventQueue;
use crate::memory::LazyMemory;

/// The state that a shard's lock protects.
pub(crate) type Core = ferroce_shard::Core<UdpWire, MappedCredits>;

/// One slot of the process.
#[derive(Debug)]
pub(crate) struct Shard {
    core: Mutex<Core>,
    events: Arc<EventQueue>,
    /// Time of the last poll; zero if no further poll is expected.
    polled_at: AtomicU64,
    /// True while a poller holds the lock.
    polling: AtomicBool,
    /// Time at which the progress thread wakes up by itself.
    sleeps_until: AtomicU64,
    stopped: AtomicBool,
    wakeup: OwnedFd,
}

/// The process, for one call into the core.
pub(crate) struct ThisProcess<'a> {
    memory: LazyMemory,
    events: &'a EventQueue,
}

impl ferroce_shard::Process for ThisProcess<'_> {
    fn memory(&self) -> &dyn Memory {
        &self.memory
    }

    fn report(&mut self, event: Event) {
        self.events.report(event);
    }
}

impl Shard {
    pub(crate) fn new(core: Core, events: Arc<EventQueue>) -> std::io::Result<Shard> {
        Ok(Shard {
            core: Mutex::new(core),
            events,
            polled_at: AtomicU64::new(0),
            polling: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(0),
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
        let mut core = self.lock();
        let mut process = self.process(now);
        let result = work(&mut core, now, &mut process);
        if !self.is_stopped() {
            core.transmit(now, &mut process);
            self.wake_for_deadline(&core, now);
        }
        result
    }

    /// Sends deferred ACKs before a queue pair or the process ends, which could not send
    /// them later. If another thread holds the lock, that thread sends them.
    pub(crate) fn flush_deferred_acks(&self) {
        if let Ok(mut core) = self.core.try_lock()
            && !self.is_stopped()
        {
            let now = clock::now();
            core.flush_deferred_acks(now, &mut self.process(now));
        }
    }

    /// Does a turn for a program that polls, unless another thread holds the lock.
    pub(crate) fn poll(&self) {
        if self.is_stopped() {
            return;
        }
        let now = clock::now();
        self.polled_at.store(now.as_nanos(), Ordering::Relaxed);
        match self.core.try_lock() {
            Ok(mut core) => {
                self.polling.store(true, Ordering::Relaxed);
                core.turn(now, &mut self.process(now), Caller::Poller);
                self.wake_for_deadline(&core, now);
                self.polling.store(false, Ordering::Relaxed);
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Poisoned(_)) => panic!("a thread panicked in the engine"),
        }
    }

    /// Notes that the program waits for an event instead of polling: the progress thread
    /// must receive.
    pub(crate) fn stop_relying_on_polls(&self) {
        if self.polled_at.swap(0, Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    /// Returns the time for which a further poll is still expected.
    pub(crate) fn standby_ns(&self, now: Time) -> Option<u64> {
        let polled = Time::from_nanos(self.polled_at.load(Ordering::Relaxed));
        STANDBY_NS
            .checked_sub(now.nanos_since(polled))
            .filter(|&left| left > 0)
    }

    /// Returns true while a poller holds the lock.
    pub(crate) fn is_polled(&self) -> bool {
        self.polling.load(Ordering::Relaxed)
    }

    /// Does a turn for the progress thread. Returns the next deadline and the number of
    /// received datagrams. Returns none if another thread holds the lock: to wait for a lock
    /// that a program takes again and again would slow down every poll.
    pub(crate) fn progress(&self, caller: Caller) -> Option<(Option<Time>, usize)> {
        let now = clock::now();
        let mut core = match self.core.try_lock() {
            Ok(core) => core,
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(_)) => panic!("a thread panicked in the engine"),
        };
        let received = core.turn(now, &mut self.process(now), caller);
        let deadline = core.next_deadline(now);
        // Set under the lock: a thread that sets an earlier timer afterwards sees this
        // value and wakes the progress thread.
        self.set_sleep(deadline);
        Some((deadline, received))
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
        self.flush_deferred_acks();
        self.stopped.store(true, Ordering::Release);
        self.wake();
        // A thread that did not see the flag still holds the lock.
        self.pass_through();
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

    /// Returns duplicates of the descriptors that are readable when a datagram waits.
    pub(crate) fn sockets(&self) -> std::io::Result<Vec<OwnedFd>> {
        self.lock().wire().descriptors()
    }

    /// Waits until no thread accesses memory that has just been deregistered.
    pub(crate) fn pass_through(&self) {
        drop(self.lock());
    }

    /// Wakes the progress thread if it would sleep past the next deadline.
    fn wake_for_deadline(&self, core: &Core, now: Time) {
        if let Some(next) = core.next_deadline(now)
            && next.as_nanos() < self.sleeps_until.load(Ordering::Relaxed)
        {
            self.sleeps_until.store(next.as_nanos(), Ordering::Relaxed);
            self.wake();
        }
    }

    fn process(&self, now: Time) -> ThisProcess<'_> {
        ThisProcess {
            memory: LazyMemory::new(now),
            events: &self.events,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("a thread panicked in the engine")
    }
}
