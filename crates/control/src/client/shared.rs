//! The connection that all uses of a client share, and its thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::calls::{Answer, Answered, Call, Hook, State, is_item, returning};
use super::links::{Introduction, OpenLinks, Tap};
use super::receiving::Receiving;
use super::reports::Reports;
use super::streams::StreamIntroduction;
use super::{Service, lock, recovery};
use crate::clock::now;
use crate::cm::CmCall;
use crate::connection::ANSWER_TIMEOUT;
use crate::error::Error;
use crate::generation::generation;
use crate::protocol::{Reply, Request, RequestNumber};
use crate::split::{Received, ReplyReceiver, RequestSender};

/// Time that a call waits for a ferroced that has ended and is being restarted.
const RESTART_TIMEOUT: Duration = Duration::from_secs(15);
/// Deadline of a call while ferroced has left an earlier call unanswered.
const SILENT_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of connections of this process and of those that it was forked from. No two
/// connections that an object can have met have the same number.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of a new connection.
pub(super) fn next_generation() -> u64 {
    CONNECTIONS.fetch_add(1, Ordering::Relaxed) + 1
}

/// A client: its calls, the links that the process has opened, and the service.
pub(crate) struct Shared {
    /// [`generation`] of the process that opened the client.
    pub(super) process: u64,
    /// Network namespace of its ferroced.
    pub(super) netns: u64,
    pub(super) state: Mutex<State>,
    pub(super) receiving: Receiving,
    /// Notified when the connection was lost or restored, or could not be restored.
    connection_changed: Condvar,
    pub(super) links: OpenLinks,
    pub(super) service: OnceLock<Arc<dyn Service>>,
    reports: Mutex<Reports>,
    /// Makes the thread look at `ended` and at the attempts to reconnect that are wanted.
    wakeup: OwnedFd,
    ended: AtomicBool,
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(sender: RequestSender, netns: u64) -> Result<Shared, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wakeup = eventfd(0, flags).map_err(|error| Error::system("eventfd", error))?;
        Ok(Shared {
            process: generation(),
            netns,
            state: Mutex::new(State::new(sender, next_generation())),
            receiving: Receiving::new()?,
            connection_changed: Condvar::new(),
            links: OpenLinks::default(),
            service: OnceLock::new(),
            reports: Mutex::default(),
            wakeup,
            ended: AtomicBool::new(false),
        })
    }

    /// Makes the thread end.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn wake(&self) {
        // It fails only if the thread has not read 2^64 - 2 earlier wakeups.
        let _cannot_fail = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
    }

    /// Closes the connection, after the thread has ended.
    pub(super) fn disconnect(&self) {
        // The thread may have ended before it noticed the end of ferroced.
        let is_lost = self.receiving.is_hung_up();
        self.receiving.stop();
        let hooks = lock(&self.state).lose_connection();
        drop(hooks.waiting);
        for hook in hooks.notices.into_iter().filter(|_| is_lost) {
            let _lost = hook(Err(Error::Closed));
        }
    }

    /// Registers a service on the connection with this number. False if that was lost.
    pub(super) fn register(&self, service: &Arc<dyn Service>, generation: u64) -> bool {
        // While the state is locked, no recovery begins.
        let state = lock(&self.state);
        if state.sender.is_none() || state.generation != generation {
            return false;
        }
        service.connected(generation);
        self.service.set(Arc::clone(service)).is_ok()
    }

    /// Sends a request and waits for its answer; see [`super::Client::call`].
    pub(super) fn call(&self, request: &Request, hook: Option<Hook>) -> Result<Answer, Error> {
        let state = self.connected()?;
        self.exchange(state, request, hook)
    }

    /// Sends a request on the connection with this number, and waits for its answer.
    pub(super) fn call_on(
        &self,
        generation: u64,
        request: &Request,
        hook: Option<Hook>,
    ) -> Result<Answer, Error> {
        let state = self.connected()?;
        match state.generation == generation {
            true => self.exchange(state, request, hook),
            false => Err(Error::Closed),
        }
    }

    /// Sends a request and waits for its answer. If ferroced ends meanwhile, the next one
    /// gets a new request. Does not wait for a ferroced that does not run.
    pub(super) fn call_running(
        &self,
        request: impl Fn() -> (Request, Option<Hook>),
    ) -> Result<Answer, Error> {
        loop {
            let state = self.connected_now()?;
            let (request, hook) = request();
            match self.exchange(state, &request, hook) {
                Err(Error::Closed) => {}
                answer => return answer,
            }
        }
    }

    /// Sends calls to which ferroced does not reply; see [`super::Client::return_objects`].
    pub(super) fn return_objects(&self, mut calls: Vec<CmCall>, last: Option<(u64, CmCall)>) {
        let mut state = lock(&self.state);
        if let Some((generation, call)) = last
            && generation == state.generation
        {
            calls.push(call);
        }
        if state.sender.is_some() && !calls.is_empty() {
            state.submit_notices(calls);
        }
    }

    /// Sends a request without waiting for the answer. False if there is no connection, or
    /// another one than that of this number.
    pub(super) fn notify(
        &self,
        generation: Option<u64>,
        request: &Request,
        hook: Option<Hook>,
    ) -> bool {
        let mut state = lock(&self.state);
        let is_other = generation.is_some_and(|generation| generation != state.generation);
        if state.sender.is_none() || is_other {
            return false;
        }
        state.submit(request, Call::Notice(hook));
        true
    }

    /// Waits until there is a connection to ferroced, and returns the locked state.
    pub(super) fn connected(&self) -> Result<MutexGuard<'_, State>, Error> {
        let lost = |state: &mut State| state.sender.is_none();
        let waited =
            self.connection_changed
                .wait_timeout_while(lock(&self.state), RESTART_TIMEOUT, lost);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match state.sender {
            Some(_) => Ok(state),
            None => Err(Error::NoDaemon),
        }
    }

    /// Returns the locked state with a connection. If the connection was lost, waits for one
    /// attempt to restore it, which begins now.
    fn connected_now(&self) -> Result<MutexGuard<'_, State>, Error> {
        let mut state = lock(&self.state);
        if state.sender.is_some() {
            return Ok(state);
        }
        state.attempts_wanted += 1;
        let wanted = state.attempts_wanted;
        self.wake();
        let waits = |state: &mut State| state.sender.is_none() && state.attempts_failed < wanted;
        let waited = self
            .connection_changed
            .wait_timeout_while(state, RESTART_TIMEOUT, waits);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match (&state.sender, &state.failure) {
            (Some(_), _) => Ok(state),
            (None, Some(error)) => Err(error.again()),
            (None, None) => Err(Error::NoDaemon),
        }
    }

    /// Sends a request and waits for its answer.
    fn exchange<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        request: &Request,
        hook: Option<Hook>,
    ) -> Result<Answer, Error> {
        let timeout = match state.silent {
            true => SILENT_TIMEOUT,
            false => ANSWER_TIMEOUT,
        };
        // Only callers of the connection manager: they hold no lock that handling an event
        // needs.
        let turn = match request {
            Request::Cm(_) => self.take_turn(),
            _ => None,
        };
        let answered = Arc::new(Answered::default());
        let call = Call::Waiting {
            items: Vec::new(),
            hook,
            answered: Arc::clone(&answered),
        };
        let number = state.submit(request, call);
        let deadline = now() + timeout;
        if let Some(turn) = turn {
            drop(state);
            self.receive_until_answered(turn, number, deadline);
            state = lock(&self.state);
        }
        let timeout = deadline.saturating_duration_since(now());
        let waits =
            |state: &mut State| matches!(state.calls.get(&number), Some(Call::Waiting { .. }));
        let state = answered.wait_while(state, Some(timeout), waits);
        // A hook does not wait, so it ends soon.
        let in_hook = |state: &mut State| matches!(state.calls.get(&number), Some(Call::InHook));
        let mut state = answered.wait_while(state, None, in_hook);
        let call = state.calls.remove(&number);
        let result = match call {
            Some(Call::Answered(answer)) => return *answer,
            Some(Call::Waiting { .. }) => Err(state.abandon(number)),
            _ => Err(Error::Closed),
        };
        // The call and its hook are dropped after the lock.
        drop(state);
        result
    }

    /// The thread: receives answers and events until the client is closed.
    pub(super) fn run(&self, mut receiver: ReplyReceiver) {
        loop {
            let dir = receiver.dir().to_owned();
            let served = self.receiving.start(receiver).and_then(|()| self.serve());
            let Err(error) = served else { return };
            tracing::info!("ferroced has ended ({error}); queue pairs go on without it");
            self.receiving.stop();
            let hooks = {
                let mut state = lock(&self.state);
                self.connection_changed.notify_all();
                state.failure = None;
                state.lose_connection()
            };
            drop(hooks.waiting);
            for hook in hooks.notices {
                let _lost = hook(Err(Error::Closed));
            }
            match recovery::reconnect(self, &dir) {
                Some(new) => receiver = new,
                None => return,
            }
        }
    }

    /// Receives answers and events. Returns when the client is closed.
    fn serve(&self) -> Result<(), Error> {
        while !self.has_ended() {
            match self.receiving.thread_turn() {
                Some(turn) => self.receive_all(&turn)?,
                None => self.wait(Some(self.receiving.as_fd()), None),
            }
        }
        Ok(())
    }

    /// Sleeps until the descriptor is readable, the time is over, or the thread is woken.
    /// Continues reports meanwhile.
    pub(super) fn wait(&self, fd: Option<BorrowedFd<'_>>, timeout: Option<Duration>) {
        // Another thread may receive the request for a report meanwhile.
        let (streams, until) = {
            let reports = lock(&self.reports);
            (reports.streams(), reports.timeout())
        };
        let timeout = until.into_iter().chain(timeout).min();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = vec![PollFd::new(&self.wakeup, PollFlags::IN)];
        fds.extend(fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        fds.extend(streams.iter().map(|s| PollFd::new(s, PollFlags::OUT)));
        let _interrupted = poll(&mut fds, timeout.as_ref());
        let is_woken = !fds[0].revents().is_empty();
        drop(fds);
        if is_woken {
            let mut count = [0; 8];
            let _empty = rustix::io::read(&self.wakeup, &mut count);
        }
        lock(&self.reports).advance();
    }

    pub(super) fn received(&self, (number, reply, fds): Received) {
        match number {
            None => self.event(reply, fds),
            Some(number) => self.replied(number, reply, fds),
        }
    }

    /// Hands an event to the parts of the process that it concerns.
    pub(super) fn event(&self, event: Reply, fds: Vec<OwnedFd>) {
        match event {
            Reply::Event(event) => {
                self.links.changed(&event);
                if let Some(service) = self.service.get() {
                    service.link_event(&event);
                }
            }
            Reply::CmEvent(event) => {
                if let Some(service) = self.service.get() {
                    service.cm_event(event);
                }
            }
            Reply::Report { attachment, keys } => {
                let report = self.links.report(attachment, keys);
                let mut reports = lock(&self.reports);
                let mut continues = false;
                for stream in fds {
                    continues = reports.add(stream, &report);
                }
                drop(reports);
                if continues {
                    self.wake();
                }
            }
            Reply::Introduced {
                attachment,
                slot,
                peer,
                asked,
            } => match Introduction::new(slot, peer, asked, fds) {
                Some(introduction) => self.links.introduced(attachment, introduction),
                None => tracing::warn!("ferroced sent a channel without its descriptors"),
            },
            Reply::StreamIntroduced {
                attachment,
                slot,
                local,
                peer,
            } => match StreamIntroduction::new(slot, (local, peer), fds) {
                Some(introduction) => self.links.stream_introduced(attachment, introduction),
                None => tracing::warn!("ferroced sent a channel without its descriptors"),
            },
            Reply::Journal { attachment } => {
                for journal in fds {
                    self.links.tapped(attachment, Tap::Journal(journal));
                }
            }
            Reply::Tap { attachment } => match Tap::new(fds) {
                Some(tap) => self.links.tapped(attachment, tap),
                None => tracing::warn!("ferroced sent a capture ring without its descriptors"),
            },
            other => tracing::warn!("ferroced sent an unexpected message: {other:?}"),
        }
    }

    /// Hands a reply to the call with this number.
    fn replied(&self, number: RequestNumber, reply: Reply, fds: Vec<OwnedFd>) {
        // Notified after the lock: the thread that it wakes needs the lock.
        let mut wakes = None;
        let mut state = lock(&self.state);
        state.silent = false;
        if is_item(&reply) {
            match state.calls.get_mut(&number) {
                Some(Call::Waiting { items, .. }) => items.push(reply),
                Some(Call::Abandoned) => {}
                _ => tracing::warn!("ferroced answered request {number}, which is not in flight"),
            }
            return;
        }
        match state.calls.remove(&number) {
            Some(Call::Waiting {
                items,
                hook,
                answered,
            }) => {
                let mut answer = refusal(reply).map(|last| Answer { items, last, fds });
                if let Some(hook) = hook {
                    state.calls.insert(number, Call::InHook);
                    drop(state);
                    answer = hook(answer);
                    state = lock(&self.state);
                }
                state.calls.insert(number, Call::Answered(Box::new(answer)));
                wakes = Some(answered);
            }
            Some(Call::Abandoned) => {
                if let Some(request) = returning(&reply) {
                    state.submit(&request, Call::Notice(None));
                }
            }
            Some(Call::Notice(hook)) => {
                drop(state);
                let answer = refusal(reply).map(|last| Answer {
                    items: Vec::new(),
                    last,
                    fds,
                });
                let answer = match hook {
                    Some(hook) => hook(answer),
                    None => answer,
                };
                if let Err(error) = answer {
                    tracing::debug!("ferroced refused a notice: {error}");
                }
                state = lock(&self.state);
            }
            Some(Call::Answered(_) | Call::InHook | Call::Lost) | None => {
                tracing::warn!("ferroced answered request {number}, which is not in flight");
            }
        }
        state.flush();
        drop(state);
        if let Some(answered) = wakes {
            answered.notify();
        }
    }

    /// Starts to use a new connection, on which all objects were restored. `orphaned` returns
    /// the requests for objects that the program has released meanwhile: its threads found no
    /// connection, and have not returned them.
    pub(super) fn restore_connection(
        &self,
        sender: RequestSender,
        generation: u64,
        orphaned: Vec<recovery::Orphaned<'_>>,
    ) {
        let mut state = lock(&self.state);
        state.sender = Some(sender);
        state.generation = generation;
        for orphaned in orphaned {
            if let Some(request) = orphaned() {
                state.submit(&request, Call::Notice(None));
            }
        }
        self.connection_changed.notify_all();
    }

    /// Returns the number of attempts to reconnect that threads wait for.
    pub(super) fn attempts_wanted(&self) -> u64 {
        lock(&self.state).attempts_wanted
    }

    /// Reports that this many of the wanted attempts have failed.
    pub(super) fn attempts_failed(&self, count: u64, error: Error) {
        let mut state = lock(&self.state);
        state.attempts_failed = count;
        state.failure = Some(error);
        self.connection_changed.notify_all();
    }
}

/// Returns the error of a reply that is one.
fn refusal(reply: Reply) -> Result<Reply, Error> {
    match reply {
        Reply::Error { errno, message } => Err(Error::Refused { errno, message }),
        reply => Ok(reply),
    }
}
