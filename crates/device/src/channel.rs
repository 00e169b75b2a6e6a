//! Event queues with a descriptor that `poll`, `select` and `epoll` understand.
//!
//! A channel is a queue of records and a pipe that holds a token for each of them.
//! Taking a record blocks, or fails with EAGAIN if the program made the descriptor
//! non-blocking, as with the kernel's event files. A record that no reader has taken yet
//! can be taken back.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard};

use rustix::fs::OFlags;

use crate::fork;
use crate::lazy_pipe::LazyPipe;
use crate::token_pipe::TokenPipe;

/// A queue of records with a descriptor.
///
/// ```
/// use ferroce_device::Channel;
///
/// let channel: Channel<&str> = Channel::new()?;
/// channel.put("first");
/// channel.put("second");
/// assert_eq!(channel.take()?, "first");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Channel<T = u64> {
    pipe: Pipe,
    queue: Mutex<Queue<T>>,
}

/// The pipe of a channel.
#[derive(Debug)]
enum Pipe {
    Made(TokenPipe),
    /// For channels that mostly stay without records.
    Lazy(LazyPipe),
}

/// Number of records that get their tokens at once after a late record for which no thread came in time.
const FIRST_REST: u32 = 8;
/// Largest such number. It doubles with each further late record for which no thread came in time.
pub(crate) const REST: u32 = 1024;

#[derive(Debug)]
struct Queue<T> {
    records: VecDeque<T>,
    /// Threads in [`Channel::take_after`], which supply tokens afterwards.
    workers: usize,
    /// Forks before the first of them began. A forked child does not have these threads.
    forks: u32,
    /// Threads that wait for a token.
    waiters: usize,
    /// Number of records that still get their tokens at once.
    rest: u32,
    /// Value of `rest` after the next late record for which no thread comes in time.
    next_rest: u32,
    /// Late records in a row that threads have taken in time, at most [`REST`].
    in_time: u32,
    /// Tokens in the pipe, and tokens that readers have taken out of it without having
    /// come back for a record yet. Fewer than records if the pipe is full, or if a thread may come
    /// for a record without a token; more if records were taken back after a reader had
    /// taken their token.
    tokens: usize,
}

impl<T> Channel<T> {
    /// Creates an empty channel. Its descriptor is closed on exec.
    pub fn new() -> io::Result<Channel<T>> {
        Ok(Channel::with_pipe(Pipe::Made(TokenPipe::new()?)))
    }

    /// Creates an empty channel that mostly stays empty. The first record takes longer.
    pub(crate) fn new_lazy() -> io::Result<Channel<T>> {
        Ok(Channel::with_pipe(Pipe::Lazy(LazyPipe::new()?)))
    }

    fn with_pipe(pipe: Pipe) -> Channel<T> {
        Channel {
            pipe,
            queue: Mutex::new(Queue {
                records: VecDeque::new(),
                workers: 0,
                forks: 0,
                waiters: 0,
                rest: 0,
                next_rest: FIRST_REST,
                in_time: 0,
                tokens: 0,
            }),
        }
    }

    /// Creates everything that the first record needs.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        match &self.pipe {
            Pipe::Made(_) => Ok(()),
            Pipe::Lazy(lazy) => lazy.pipe().map(drop),
        }
    }

    /// Returns the descriptor that is readable while a record waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.pipe {
            Pipe::Made(pipe) => pipe.as_fd(),
            Pipe::Lazy(lazy) => lazy.as_fd(),
        }
    }

    /// Returns true if no record waits.
    pub fn is_empty(&self) -> bool {
        self.queue().records.is_empty()
    }

    /// Takes the oldest record; waits for one unless the descriptor is non-blocking.
    pub fn take(&self) -> io::Result<T> {
        self.take_with(|record| record)
    }

    /// Takes the oldest record as [`Channel::take`] does, and looks at it before
    /// [`Channel::take_back`] can be called by a thread that waits for it.
    pub fn take_with<U>(&self, look: impl FnOnce(T) -> U) -> io::Result<U> {
        let mut look = Some(look);
        if let Some(taken) = self.take_without_token(&mut look) {
            return Ok(taken);
        }
        let look = look.take().expect("no record was taken");
        loop {
            {
                let mut queue = self.queue();
                queue.waiters += 1;
                self.refill(&mut queue);
            }
            let waited = self.pipe.wait();
            let mut queue = self.queue();
            queue.waiters -= 1;
            waited?;
            // Not below zero: a forked child has the same pipe, and may have put this one in.
            queue.tokens = queue.tokens.saturating_sub(1);
            let record = queue.records.pop_front();
            self.refill(&mut queue);
            // None if the record was taken back after its token had been read.
            if let Some(record) = record {
                return Ok(look(record));
            }
        }
    }

    /// Calls `look` with the oldest record, if one waits. The record stays. If `look` returns
    /// true, the descriptor becomes readable anew, also for a program that waits for edges.
    pub fn look_at_next(&self, look: impl FnOnce(&mut T) -> bool) -> bool {
        let mut queue = self.queue();
        let announces = queue.records.front_mut().is_some_and(look);
        if announces && self.pipe.take() {
            queue.tokens = queue.tokens.saturating_sub(1);
            self.refill(&mut queue);
        }
        announces
    }

    /// Takes the oldest record, if there are more than tokens. It costs no system call.
    fn take_without_token<U>(&self, look: &mut Option<impl FnOnce(T) -> U>) -> Option<U> {
        let mut queue = self.queue();
        let is_free = queue.records.len() > queue.tokens;
        let record = is_free.then(|| queue.records.pop_front()).flatten()?;
        queue.note_in_time();
        look.take().map(|look| look(record))
    }

    /// Supplies the tokens of records for which no thread has come.
    pub(crate) fn supply_tokens(&self) {
        let mut queue = self.queue();
        if queue.records.len() > queue.tokens {
            queue.note_supply();
            self.refill(&mut queue);
        }
    }

    /// Returns true if a record waits.
    pub(crate) fn has_record(&self) -> bool {
        !self.queue().records.is_empty()
    }

    /// Returns true if the program made its descriptor non-blocking.
    pub(crate) fn is_nonblocking(&self) -> bool {
        rustix::fs::fcntl_getfl(self.fd()).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
    }

    /// Runs `work`, and takes the oldest record afterwards, if there is one without a token. A
    /// record that `work` puts costs no system call then: it needs no token. `work` must not
    /// wait: meanwhile no record gets a token. If more records are left without a token,
    /// `may_be_late` tells whether they stay so: another thread calls
    /// `supply_tokens` unless this one comes for them soon.
    pub fn take_after<U>(
        &self,
        work: impl FnOnce(),
        look: &mut Option<impl FnOnce(T) -> U>,
        may_be_late: impl FnOnce() -> bool,
    ) -> Option<U> {
        self.queue().begin_work();
        work();
        let mut queue = self.queue();
        queue.workers -= 1;
        // A record whose token is in the pipe is for the threads that wait for the pipe.
        let is_ours = queue.records.len() > queue.tokens;
        let record = is_ours.then(|| queue.records.pop_front()).flatten();
        if queue.records.len() > queue.tokens {
            match queue.rest {
                0 if queue.waiters == 0 && record.is_some() && may_be_late() => {}
                rest => {
                    queue.rest = rest.saturating_sub(1);
                    self.refill(&mut queue);
                }
            }
        }
        let look = look.take_if(|_| record.is_some());
        record.zip(look).map(|(record, look)| look(record))
    }

    /// Takes back all records that no reader has taken and that `which` selects.
    pub fn take_back(&self, which: impl Fn(&T) -> bool) -> Vec<T> {
        let mut queue = self.queue();
        let all = core::mem::take(&mut queue.records);
        let (taken, rest): (Vec<T>, Vec<T>) = all.into_iter().partition(which);
        queue.records = rest.into();
        while queue.tokens > queue.records.len() && self.pipe.take() {
            queue.tokens -= 1;
        }
        taken
    }

    /// Adds a record.
    pub fn put(&self, record: T) {
        let mut queue = self.queue();
        queue.records.push_back(record);
        self.refill(&mut queue);
    }

    /// Puts a token into the pipe for each record that has none, as far as there is room, unless a thread
    /// will do so after its work.
    fn refill(&self, queue: &mut Queue<T>) {
        if queue.is_worked_on() {
            return;
        }
        let missing = queue.records.len().saturating_sub(queue.tokens);
        queue.tokens += self.pipe.put(missing);
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue
            .lock()
            .expect("no code panics while it holds a channel")
    }
}

impl<T> Queue<T> {
    fn begin_work(&mut self) {
        if !self.is_worked_on() {
            (self.workers, self.forks) = (0, fork::count());
        }
        self.workers += 1;
    }

    /// Notes that no thread has come in time for a late record.
    fn note_supply(&mut self) {
        self.rest = self.next_rest;
        self.next_rest = (self.next_rest * 2).min(REST);
        self.in_time = 0;
    }

    /// Notes that a thread has come in time for a late record. After many in a row, earlier failures are forgotten.
    fn note_in_time(&mut self) {
        self.in_time += 1;
        if self.in_time >= REST {
            (self.next_rest, self.in_time) = (FIRST_REST, 0);
        }
    }

    fn is_worked_on(&self) -> bool {
        self.workers > 0 && self.forks == fork::count()
    }
}

impl Pipe {
    fn put(&self, wanted: usize) -> usize {
        match self {
            Pipe::Made(pipe) => pipe.put(wanted),
            Pipe::Lazy(lazy) => lazy.put(wanted),
        }
    }

    fn wait(&self) -> io::Result<()> {
        match self {
            Pipe::Made(pipe) => pipe.wait(),
            Pipe::Lazy(lazy) => lazy.wait(),
        }
    }

    fn take(&self) -> bool {
        match self {
            Pipe::Made(pipe) => pipe.take(),
            Pipe::Lazy(lazy) => lazy.take(),
        }
    }
}

impl Channel<u64> {
    /// Takes back all records that equal `value` and that no reader has taken.
    pub fn purge(&self, value: u64) {
        self.take_back(|record| *record == value);
    }
}

/// Returns true if the descriptor of a channel is readable.
#[cfg(test)]
pub(crate) fn is_readable(channel: &Channel) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::fcntl_setfl;

    /// Both kinds of channels.
    const KINDS: [fn() -> io::Result<Channel>; 2] = [Channel::new, Channel::new_lazy];

    fn reported(channel: &Channel) -> PollFlags {
        let both = PollFlags::IN | PollFlags::OUT;
        let mut fds = [PollFd::from_borrowed_fd(channel.fd(), both)];
        poll(&mut fds, Some(&Timespec::default())).unwrap();
        fds[0].revents()
    }

    fn readable(channel: &Channel) -> bool {
        reported(channel) == PollFlags::IN
    }

    /// Takes the oldest record after `work`; all others get tokens.
    fn take_after(channel: &Channel, work: impl FnOnce()) -> Option<u64> {
        channel.take_after(work, &mut Some(|record| record), || false)
    }

    #[test]
    fn channel_never_reports_pollout() {
        for make in KINDS {
            let channel = make().unwrap();
            assert_eq!(reported(&channel), PollFlags::empty());
            channel.put(1);
            assert_eq!(reported(&channel), PollFlags::IN);
            channel.take().unwrap();
            assert_eq!(reported(&channel), PollFlags::empty());
        }
    }

    #[test]
    fn records_are_taken_in_order_and_make_the_descriptor_readable() {
        for make in KINDS {
            let channel = make().unwrap();
            assert!(!readable(&channel));
            channel.put(7);
            channel.put(8);
            assert!(readable(&channel));
            assert_eq!(channel.take().unwrap(), 7);
            assert_eq!(channel.take().unwrap(), 8);
            assert!(!readable(&channel));
        }
    }

    #[test]
    fn take_from_an_empty_non_blocking_channel_would_block() {
        for make in KINDS {
            let channel = make().unwrap();
            fcntl_setfl(channel.fd(), OFlags::NONBLOCK).unwrap();
            assert_eq!(
                channel.take().unwrap_err().kind(),
                io::ErrorKind::WouldBlock
            );
        }
    }

    #[test]
    fn record_that_is_looked_at_stays_and_can_be_announced_again() {
        for make in KINDS {
            let channel = make().unwrap();
            assert!(!channel.look_at_next(|_| true), "there is no record");
            channel.put(7);
            channel.put(8);
            assert!(!channel.look_at_next(|record| core::mem::replace(record, 9) == 8));
            assert!(channel.look_at_next(|record| *record == 9));
            assert!(readable(&channel));
            assert_eq!(channel.take().unwrap(), 9);
            assert_eq!(channel.take().unwrap(), 8);
            assert!(!readable(&channel));
        }
    }

    #[test]
    fn record_of_the_taking_thread_needs_no_token() {
        for make in KINDS {
            let channel = make().unwrap();
            let work = || {
                channel.put(7);
                channel.put(8);
                assert!(!readable(&channel), "the thread itself takes a record");
            };
            assert_eq!(take_after(&channel, work), Some(7));
            assert!(readable(&channel));
            assert_eq!(channel.take().unwrap(), 8);
            assert!(!readable(&channel));
        }
    }

    #[test]
    fn thread_without_a_record_leaves_the_channel_as_it_was() {
        for make in KINDS {
            let channel = make().unwrap();
            let mut look = Some(|record| record);
            let no_late = || panic!("there is no record without a token");
            assert_eq!(channel.take_after(|| (), &mut look, no_late), None);
            channel.put(7);
            // The token is in the pipe, where another thread may wait for it.
            assert_eq!(channel.take_after(|| (), &mut look, no_late), None);
            assert!(look.is_some());
            assert!(readable(&channel));
            assert_eq!(channel.take().unwrap(), 7);
            assert!(!readable(&channel));
            assert_eq!(channel.queue().tokens, 0);
        }
    }

    /// Leaves two records without a token.
    fn leave_two_late(channel: &Channel) {
        let work = || (6..9).for_each(|record| channel.put(record));
        let taken = channel.take_after(work, &mut Some(|record| record), || true);
        assert_eq!(taken, Some(6));
        assert!(!readable(channel));
    }

    #[test]
    fn late_records_are_taken_in_order_and_once() {
        for make in KINDS {
            for flags in [OFlags::empty(), OFlags::NONBLOCK] {
                let channel = make().unwrap();
                fcntl_setfl(channel.fd(), flags).unwrap();
                leave_two_late(&channel);
                assert!(channel.has_record());
                assert_eq!(channel.take().unwrap(), 7);
                // A record of another thread needs a token, and so does the one before it.
                channel.put(9);
                assert!(readable(&channel));
                assert_eq!(channel.take().unwrap(), 8);
                assert!(readable(&channel));
                assert_eq!(channel.take().unwrap(), 9);
                assert!(!readable(&channel) && channel.is_empty());
            }
        }
    }

    #[test]
    fn late_records_can_be_taken_back() {
        for make in KINDS {
            let channel = make().unwrap();
            leave_two_late(&channel);
            channel.purge(7);
            channel.supply_tokens();
            assert!(readable(&channel));
            assert_eq!(channel.take().unwrap(), 8);
            assert!(!readable(&channel));
        }
    }

    /// A thread waits for a token, so it gets the record that is left.
    #[test]
    #[allow(clippy::disallowed_methods)] // threads of a program
    fn no_record_is_late_while_another_thread_waits() {
        for make in KINDS {
            let channel = make().unwrap();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| channel.take().unwrap());
                while channel.queue().waiters == 0 {
                    std::thread::yield_now();
                }
                let work = || (7..9).for_each(|record| channel.put(record));
                let no_late = || panic!("a thread waits");
                let taken = channel.take_after(work, &mut Some(|record| record), no_late);
                assert_eq!((taken, waiting.join().unwrap()), (Some(7), 8));
            });
        }
    }

    #[test]
    fn purged_records_are_never_taken() {
        for make in KINDS {
            for flags in [OFlags::empty(), OFlags::NONBLOCK] {
                let channel = make().unwrap();
                fcntl_setfl(channel.fd(), flags).unwrap();
                channel.put(7);
                channel.put(8);
                channel.put(7);
                channel.purge(7);
                assert_eq!(channel.take().unwrap(), 8);
                assert!(!readable(&channel));
                channel.put(8);
                channel.purge(9);
                channel.purge(8);
                assert!(!readable(&channel));
            }
        }
    }

    #[test]
    fn channel_holds_more_records_than_its_pipe_has_tokens() {
        for make in KINDS {
            let channel = make().unwrap();
            for record in 0..100_000 {
                channel.put(record);
            }
            for record in 0..100_000 {
                assert!(readable(&channel));
                assert_eq!(channel.take().unwrap(), record);
            }
            assert!(!readable(&channel));
        }
    }

    #[test]
    fn records_stay_readable_after_most_are_purged() {
        for make in KINDS {
            let channel = make().unwrap();
            for record in 0..20_000 {
                channel.put(u64::from(record != 19_999));
            }
            channel.purge(1);
            assert!(readable(&channel));
            assert_eq!(channel.take().unwrap(), 0);
            assert!(!readable(&channel));
        }
    }

    /// The record is purged after a reader has read its token, but before that reader takes
    /// the record.
    #[test]
    fn purge_between_token_and_record_leaves_no_token() {
        for make in KINDS {
            let channel = make().unwrap();
            channel.put(7);
            channel.pipe.wait().unwrap();
            channel.purge(7);
            channel.put(8);
            assert!(!readable(&channel), "the reader's token is for this record");
            channel.put(9);
            assert!(readable(&channel));
            // The reader takes the record.
            let mut queue = channel.queue();
            queue.tokens -= 1;
            assert_eq!(queue.records.pop_front(), Some(8));
            drop(queue);
            assert_eq!(channel.take().unwrap(), 9);
            assert!(!readable(&channel));
        }
    }
}
