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

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ferroce_control::protocol::encode_numbered;
use ferroce_control::{
    ANSWER_TIMEOUT, CmAnswer, CmCall, Connection, LinkEventKind, Reply, ReplyReceiver, Request,
    RequestNumber, RequestSender, find_daemon, next_request_number,
};
use ferroce_device::block_all;

use crate::channel::ChannelEvent;
use crate::error::{Error, ErrorKind, unexpected_answer};
use crate::handles::HandleTable;
use crate::id::Shared;
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

#[derive(Debug)]
struct State {
    /// None while there is no connection to ferroced.
    sender: Option<RequestSender>,
    /// Number of times that the connection was lost.
    losses: u64,
    calls: BTreeMap<RequestNumber, Call>,
    /// Encoded requests that wait for room in the socket.
    outbox: VecDeque<(RequestNumber, Vec<u8>)>,
    /// True if a call passed its deadline and no reply has arrived since.
    silent: bool,
}

/// A request without a final result.
#[derive(Debug)]
enum Call {
    /// A thread waits for the answer. Objects in the answer become those of the id.
    Waiting {
        id: Option<Arc<Shared>>,
        answered: Arc<Condvar>,
    },
    /// The answer, for the thread that waits.
    Answered(Result<CmAnswer, Error>),
    /// The connection was lost, perhaps before ferroced received the request.
    Lost,
    /// The call passed its deadline: objects in the answer are returned to ferroced.
    Abandoned,
    /// No thread waits for the answer of [`ControlClient::notify`].
    Notice(Option<Arc<Shared>>),
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
        let client = ControlClient {
            process: AtomicU32::new(std::process::id()),
            state: Mutex::new(State {
                sender: Some(sender),
                losses: 0,
                calls: BTreeMap::new(),
                outbox: VecDeque::new(),
                silent: false,
            }),
            connection_changed: Condvar::new(),
            handles: Mutex::default(),
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
    /// repeated: if ferroced ends, the next one is called. `call` builds each request anew,
    /// because handles have changed by then.
    pub(crate) fn call_until_answered(
        &self,
        call: impl Fn() -> Result<CmCall, Error>,
        id: Option<&Arc<Shared>>,
    ) -> Result<CmAnswer, Error> {
        loop {
            let losses = self.connected()?.losses;
            let request = Request::Cm(call()?);
            let state = self.connected()?;
            if state.losses != losses {
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
        let id = id.map(Arc::clone);
        state.submit(&Request::Cm(call), Call::Notice(id));
        true
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
                        Some((sender, new)) => {
                            receiver = new;
                            lock(&self.state).sender = Some(sender);
                            self.connection_changed.notify_all();
                        }
                        None => return,
                    }
                }
            }
        }
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
        let mut state = lock(&self.state);
        state.silent = false;
        match state.calls.remove(&number) {
            Some(Call::Waiting { id, answered }) => {
                // Before the next event is received: it may name these objects.
                if let (Some(id), Ok(answer)) = (&id, &answer) {
                    self.handles().learn(id, answer);
                }
                state.calls.insert(number, Call::Answered(answer));
                answered.notify_all();
            }
            Some(Call::Abandoned) => {
                if let Some(call) = answer.ok().as_ref().and_then(returning) {
                    state.submit(&Request::Cm(call), Call::Notice(None));
                }
            }
            Some(Call::Notice(Some(id))) => noticed(&id, answer),
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

    /// Fails all calls in flight.
    fn lose_connection(&self) {
        let mut state = lock(&self.state);
        state.sender = None;
        state.losses += 1;
        state.silent = false;
        state.outbox.clear();
        for (number, call) in core::mem::take(&mut state.calls) {
            let call = match call {
                Call::Waiting { answered, .. } => {
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

impl State {
    /// Queues a request and sends it if the socket has room.
    fn submit(&mut self, request: &Request, call: Call) -> RequestNumber {
        let number = next_request_number();
        self.calls.insert(number, call);
        let bytes = encode_numbered(Some(number), request);
        self.outbox.push_back((number, bytes));
        self.flush();
        number
    }

    /// Sends requests from the outbox while the socket has room.
    fn flush(&mut self) {
        let Some(sender) = &self.sender else { return };
        while let Some((number, bytes)) = self.outbox.front() {
            match sender.try_send(bytes) {
                Ok(true) => {}
                // The thread notices that the connection is closed, and fails the call.
                Ok(false) | Err(ferroce_control::Error::Closed) => return,
                Err(error) => {
                    tracing::warn!("cannot send to ferroced: {error}");
                    if let Some(call) = self.calls.get_mut(number)
                        && let Call::Waiting { answered, .. } = call
                    {
                        answered.notify_all();
                        *call = Call::Answered(Err(error.into()));
                    }
                }
            }
            self.outbox.pop_front();
        }
    }

    /// Gives up a call at its deadline, and returns its error.
    fn abandon(&mut self, number: RequestNumber) -> Error {
        let unsent = self.outbox.iter().position(|(queued, _)| *queued == number);
        match unsent {
            Some(place) => drop(self.outbox.remove(place)),
            None => drop(self.calls.insert(number, Call::Abandoned)),
        }
        self.silent = true;
        let Some(sender) = &self.sender else {
            return Error::new(ErrorKind::TimedOut, "ferroced is not running");
        };
        let error = sender.timeout_error();
        tracing::warn!("{error}");
        error.into()
    }
}

/// Subscribes a new connection to link events.
pub(crate) fn subscribe(connection: &mut Connection) -> Result<(), ferroce_control::Error> {
    connection.perform(&Request::Subscribe)
}

/// Returns the call that returns the objects of an answer to ferroced.
fn returning(answer: &CmAnswer) -> Option<CmCall> {
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
