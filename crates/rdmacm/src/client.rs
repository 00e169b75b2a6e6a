//! The control client: one connection to ferroced's connection manager per process.
//!
//! Calls of several threads are in flight together. Each has a request number and a
//! deadline. One thread receives answers and events: it hands an answer to the call with the
//! same number, and queues an event on the channel of the id that the event concerns. A call
//! that passes its deadline is abandoned. When its answer arrives later, the thread returns
//! the objects in it to ferroced.
//!
//! ```text
//!   rdma_connect ...: call()      get event: notify()       EventChannel
//!        |  number, deadline           |  number                ^
//!        v                             v                        |  dispatch
//!   outbox ---- try_send ----> ferroced ---- replies, events ---+--> calls by number
//! ```
//!
//! No call blocks in `send`. Requests that find the socket full wait in the outbox, and are
//! sent when the next reply shows that ferroced reads again. A forked child opens a client of
//! its own and leaves its parent's alone.
//!
//! Locks are taken in this order: state, handles, id, event channel. No lock of an id is held
//! during a call.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ferroce_control::{
    ANSWER_TIMEOUT, CmAnswer, CmCall, Connection, LinkEventKind, Reply, ReplyReceiver, Request,
    RequestNumber, find_daemon,
};
use ferroce_device::block_all;

use crate::calls::{Call, State};
use crate::channel::ChannelEvent;
use crate::error::{Error, ErrorKind, unexpected_answer};
use crate::handles::HandleTable;
use crate::id::{Port, Shared};
use crate::recover::Recovered;
use crate::{devices, lock, recover};

/// Time that a call waits for a ferroced that has ended and is being restarted.
const RESTART_TIMEOUT: Duration = Duration::from_secs(15);
/// Deadline of a call while ferroced has left an earlier call unanswered.
const SILENT_TIMEOUT: Duration = Duration::from_secs(1);

/// The connection of this process to ferroced's connection manager.
#[derive(Debug)]
pub(crate) struct ControlClient {
    /// Process that opened the client; 0 if its thread could not be started.
    process: AtomicU32,
    state: Mutex<State>,
    /// Notified when the connection was lost or restored.
    connection_changed: Condvar,
    handles: Mutex<HandleTable>,
    /// Client of a child that was forked from this process.
    next: OnceLock<&'static ControlClient>,
}

/// Number of connections of this process and of those that it was forked from. No two
/// connections that an id can have met have the same number.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of a new connection.
pub(crate) fn next_generation() -> u64 {
    CONNECTIONS.fetch_add(1, Ordering::Relaxed) + 1
}

static FIRST: OnceLock<ControlClient> = OnceLock::new();
static OPENING: Mutex<()> = Mutex::new(());

impl ControlClient {
    /// Returns the client of this process. The first call connects to ferroced.
    pub(crate) fn get() -> Result<&'static ControlClient, Error> {
        if let Some(client) = ControlClient::current() {
            return Ok(client);
        }
        let _opening = lock(&OPENING);
        if let Some(client) = ControlClient::current() {
            return Ok(client);
        }
        ControlClient::open().map_err(|error| {
            tracing::warn!("no connections: {error}");
            error.into()
        })
    }

    /// Returns the client of this process if it is open.
    pub(crate) fn current() -> Option<&'static ControlClient> {
        let process = std::process::id();
        let mut client = FIRST.get();
        while let Some(known) = client {
            if known.process.load(Ordering::Acquire) == process {
                return Some(known);
            }
            client = known.next.get().copied();
        }
        None
    }

    fn open() -> Result<&'static ControlClient, ferroce_control::Error> {
        let mut connection = find_daemon()?.ok_or(ferroce_control::Error::NoDaemon)?;
        subscribe(&mut connection)?;
        let (sender, receiver) = connection.split();
        let generation = next_generation();
        let client = ControlClient {
            process: AtomicU32::new(std::process::id()),
            state: Mutex::new(State::new(sender, generation)),
            connection_changed: Condvar::new(),
            handles: Mutex::new(HandleTable::new(generation)),
            next: OnceLock::new(),
        };
        let client = client.publish();
        let _blocked = block_all();
        #[allow(clippy::disallowed_methods)] // receives answers for all threads
        let thread = std::thread::Builder::new()
            .name("ferroce-cm".into())
            .spawn(move || client.run(receiver));
        if let Err(error) = thread {
            // The next call tries again with another client.
            client.process.store(0, Ordering::Release);
            client.lose_connection();
            return Err(ferroce_control::Error::system("thread", error));
        }
        Ok(client)
    }

    /// Makes the client known to [`ControlClient::current`], after those of parent
    /// processes. The caller holds [`OPENING`].
    fn publish(self) -> &'static ControlClient {
        let Some(mut last) = FIRST.get() else {
            return FIRST.get_or_init(|| self);
        };
        while let Some(next) = last.next.get() {
            last = next;
        }
        let client: &'static ControlClient = Box::leak(Box::new(self));
        last.next.get_or_init(|| client)
    }

    /// Locks the table of handles. While it is locked, no event is queued.
    pub(crate) fn handles(&self) -> MutexGuard<'_, HandleTable> {
        lock(&self.handles)
    }

    /// Calls the connection manager and waits for the answer. Objects in the answer become
    /// those of `id`. [`ErrorKind::ConnectionReset`] if ferroced ends during the call: the
    /// call may have had an effect. [`ErrorKind::TimedOut`] if ferroced does not answer: it
    /// is stopped, and handles the call when it continues.
    pub(crate) fn call(&self, call: CmCall, id: Option<&Arc<Shared>>) -> Result<CmAnswer, Error> {
        self.request(&Request::Cm(call), id)
    }

    /// Calls the connection manager as [`ControlClient::call`] does, for an answer of
    /// [`CmAnswer::Done`].
    pub(crate) fn perform(&self, call: CmCall) -> Result<(), Error> {
        match self.call(call, None)? {
            CmAnswer::Done => Ok(()),
            _ => Err(unexpected_answer()),
        }
    }

    /// Fails with [`ErrorKind::TimedOut`] if ferroced does not answer.
    pub(crate) fn probe(&self) -> Result<(), Error> {
        // A second subscription has no effect.
        self.request(&Request::Subscribe, None).map(drop)
    }

    fn request(&self, request: &Request, id: Option<&Arc<Shared>>) -> Result<CmAnswer, Error> {
        let state = self.connected()?;
        self.exchange(state, request, id)?
            .ok_or_else(|| Error::new(ErrorKind::ConnectionReset, "ferroced ended during the call"))
    }

    /// Calls the connection manager as [`ControlClient::call`] does, for calls that may be
    /// repeated: if ferroced ends, the next one is called. `call` builds each request anew
    /// for the connection with this number, because handles have changed by then.
    pub(crate) fn call_until_answered(
        &self,
        call: impl Fn(u64) -> Result<CmCall, Error>,
        id: Option<&Arc<Shared>>,
    ) -> Result<CmAnswer, Error> {
        loop {
            let generation = self.connected()?.generation;
            let request = Request::Cm(call(generation)?);
            let state = self.connected()?;
            if state.generation != generation {
                // The request names handles of a ferroced that has ended.
                continue;
            }
            if let Some(answer) = self.exchange(state, &request, id)? {
                return Ok(answer);
            }
        }
    }

    /// Sends a call without waiting for the answer, for threads that must not block. A call
    /// that finds the socket full stays in the outbox until it is sent. False if there is no
    /// connection to ferroced. The answer to [`CmCall::Establish`] updates
    /// `id`; other answers are dropped.
    pub(crate) fn notify(&self, call: CmCall, id: Option<&Arc<Shared>>) -> bool {
        let mut state = lock(&self.state);
        if state.sender.is_none() {
            return false;
        }
        let id = id.map(Arc::downgrade);
        state.submit(&Request::Cm(call), Call::Notice(id));
        true
    }

    /// Releases a port without waiting for the answer. Does nothing if the connection that
    /// assigned the handle was lost: the port ended with it, and another port may have the
    /// same handle now.
    pub(crate) fn release_port(&self, port: &Port) {
        let mut state = lock(&self.state);
        if state.sender.is_some() && state.generation == port.generation {
            let port = port.handle;
            state.submit(&Request::Cm(CmCall::Release { port }), Call::Notice(None));
        }
    }

    /// Waits until there is a connection to ferroced.
    pub(crate) fn await_ferroced(&self) -> Result<(), Error> {
        self.connected().map(drop)
    }

    /// Waits until there is a connection to ferroced, and returns the locked state.
    fn connected(&self) -> Result<MutexGuard<'_, State>, Error> {
        let lost = |state: &mut State| state.sender.is_none();
        let waited =
            self.connection_changed
                .wait_timeout_while(lock(&self.state), RESTART_TIMEOUT, lost);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match state.sender {
            Some(_) => Ok(state),
            None => Err(Error::new(ErrorKind::TimedOut, "ferroced is not running")),
        }
    }

    /// Sends a request and waits for its answer: None if the connection was lost.
    fn exchange(
        &self,
        mut state: MutexGuard<'_, State>,
        request: &Request,
        id: Option<&Arc<Shared>>,
    ) -> Result<Option<CmAnswer>, Error> {
        let timeout = match state.silent {
            true => SILENT_TIMEOUT,
            false => ANSWER_TIMEOUT,
        };
        let answered = Arc::new(Condvar::new());
        let number = state.submit(
            request,
            Call::Waiting {
                id: id.map(Arc::clone),
                answered: Arc::clone(&answered),
            },
        );
        let waits =
            |state: &mut State| matches!(state.calls.get(&number), Some(Call::Waiting { .. }));
        let waited = answered.wait_timeout_while(state, timeout, waits);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match state.calls.remove(&number) {
            Some(Call::Answered(answer)) => answer.map(Some),
            Some(Call::Waiting { .. }) => Err(state.abandon(number)),
            _ => Ok(None),
        }
    }

    /// The thread: receives answers and events for as long as the process lives.
    fn run(&'static self, mut receiver: ReplyReceiver) {
        loop {
            match receiver.receive() {
                Ok((number, reply)) => self.received(number, reply),
                Err(error) => {
                    tracing::info!("ferroced has ended ({error}); connections go on without it");
                    self.lose_connection();
                    let dir = receiver.dir().to_owned();
                    drop(receiver);
                    match recover::recover(self, &dir) {
                        Some(recovered) => receiver = self.restore_connection(recovered),
                        None => return,
                    }
                }
            }
        }
    }

    /// Starts to use a new connection, on which all objects were restored.
    fn restore_connection(&self, recovered: Recovered) -> ReplyReceiver {
        let mut state = lock(&self.state);
        state.sender = Some(recovered.sender);
        state.generation = recovered.generation;
        for (id, call) in &recovered.restored {
            // Its thread found no connection, and has not returned the object.
            if id.inner().is_released() {
                state.submit(&Request::Cm(call.clone()), Call::Notice(None));
            }
        }
        self.connection_changed.notify_all();
        recovered.receiver
    }

    fn received(&self, number: Option<RequestNumber>, reply: Reply) {
        let answer = match reply {
            Reply::CmEvent(event) => return self.handles().dispatch(event),
            Reply::Event(event) => {
                if event.kind == LinkEventKind::Removed {
                    self.handles().remove_link(event.link.index);
                    devices::forget(event.link.index);
                }
                return;
            }
            Reply::CmAnswer(answer) => Ok(answer),
            Reply::Done => Ok(CmAnswer::Done),
            Reply::Error { errno, message } => {
                Err(ferroce_control::Error::Refused { errno, message }.into())
            }
            other => {
                tracing::warn!("ferroced sent an unexpected message: {other:?}");
                Err(unexpected_answer())
            }
        };
        if let Some(number) = number {
            self.answered(number, answer);
        }
    }

    /// Completes the call with this number.
    fn answered(&self, number: RequestNumber, answer: Result<CmAnswer, Error>) {
        // Dropped after the lock: it may hold the last reference to an id, with its device.
        let (call, noticed_id);
        let mut state = lock(&self.state);
        state.silent = false;
        call = state.calls.remove(&number);
        match &call {
            Some(Call::Waiting { id, answered }) => {
                // Before the next event is received: it may name these objects.
                let answer = answer.and_then(|answer| self.assign(&mut state, id, answer));
                state.calls.insert(number, Call::Answered(answer));
                answered.notify_all();
            }
            Some(Call::Abandoned) => {
                if let Some(call) = answer.ok().as_ref().and_then(returning) {
                    state.submit(&Request::Cm(call), Call::Notice(None));
                }
            }
            Some(Call::Notice(Some(id))) => {
                // While the table is locked, the id is not destroyed.
                let _handles = self.handles();
                noticed_id = id.upgrade();
                if let Some(id) = noticed_id.as_ref().filter(|id| !id.inner().is_released()) {
                    noticed(id, answer);
                }
            }
            Some(Call::Notice(None)) => {
                if let Err(error) = answer {
                    tracing::debug!("ferroced refused a notice: {error}");
                }
            }
            Some(Call::Answered(_) | Call::Lost) | None => {
                tracing::warn!("ferroced answered request {number}, which is not in flight");
            }
        }
        state.flush();
    }

    /// Assigns the object in an answer to the id of the call. The object goes back to
    /// ferroced if the id was destroyed during the call.
    fn assign(
        &self,
        state: &mut State,
        id: &Option<Arc<Shared>>,
        answer: CmAnswer,
    ) -> Result<CmAnswer, Error> {
        let Some(id) = id else { return Ok(answer) };
        let is_assigned = self.handles().learn(id, &answer);
        if is_assigned {
            return Ok(answer);
        }
        if let Some(call) = returning(&answer) {
            state.submit(&Request::Cm(call), Call::Notice(None));
        }
        Err(Error::invalid("the id was destroyed during the call"))
    }

    /// Fails all calls in flight.
    fn lose_connection(&self) {
        // Ids are dropped after the lock.
        let mut ids = Vec::new();
        let mut state = lock(&self.state);
        state.sender = None;
        state.silent = false;
        state.outbox.clear();
        for (number, call) in core::mem::take(&mut state.calls) {
            let call = match call {
                Call::Waiting { id, answered } => {
                    ids.push(id);
                    answered.notify_all();
                    Call::Lost
                }
                // Their threads are about to take the result.
                done @ (Call::Answered(_) | Call::Lost) => done,
                // The next ferroced knows nothing of these.
                Call::Abandoned | Call::Notice(_) => continue,
            };
            state.calls.insert(number, call);
        }
        self.connection_changed.notify_all();
    }
}

/// Subscribes a new connection to link events.
pub(crate) fn subscribe(connection: &mut Connection) -> Result<(), ferroce_control::Error> {
    connection.perform(&Request::Subscribe)
}

/// Returns the call that returns the objects of an answer to ferroced.
pub(crate) fn returning(answer: &CmAnswer) -> Option<CmCall> {
    match *answer {
        CmAnswer::Bound { port, .. } => Some(CmCall::Release { port }),
        CmAnswer::Connection { conn } => Some(CmCall::Destroy { conn }),
        CmAnswer::SidrRequested { sidr } => Some(CmCall::SidrDestroy { sidr }),
        CmAnswer::Done | CmAnswer::Established { .. } => None,
    }
}

/// Completes a [`CmCall::Establish`] that no thread waits for.
fn noticed(id: &Arc<Shared>, answer: Result<CmAnswer, Error>) {
    match answer {
        Ok(CmAnswer::Established { snapshot }) => id.inner().snapshot = Some(*snapshot),
        Ok(_) => {}
        Err(error) => {
            tracing::debug!("ferroced refused to establish a connection: {error}");
            // A connection that the peer has ended has an event of its own.
            if !id.inner().closed {
                id.post(ChannelEvent::EstablishFailed(error.errno()));
            }
        }
    }
}
