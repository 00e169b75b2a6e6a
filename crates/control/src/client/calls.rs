//! Calls in flight on the connection to ferroced, and the requests that wait to be sent.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cm::{CmAnswer, CmCall};
use crate::connection::next_request_number;
use crate::error::Error;
use crate::link::LinkInfo;
use crate::protocol::{AttachmentNumber, Reply, Request, RequestNumber, encode_numbered};
use crate::split::RequestSender;

/// All replies to one request, and their descriptors.
#[derive(Debug)]
pub struct Answer {
    /// Items of a list, before the last reply.
    pub(crate) items: Vec<Reply>,
    pub(crate) last: Reply,
    pub(crate) fds: Vec<OwnedFd>,
}

impl Answer {
    /// Returns the answer of the connection manager, if it is one.
    pub fn cm_answer(&self) -> Option<&CmAnswer> {
        match &self.last {
            Reply::CmAnswer(answer) => Some(answer),
            _ => None,
        }
    }

    /// Returns the answer of the connection manager.
    ///
    /// # Errors
    /// [`Error::Unexpected`] if the answer is of another kind.
    pub fn cm(self) -> Result<CmAnswer, Error> {
        match self.last {
            Reply::CmAnswer(answer) => Ok(answer),
            other => Err(crate::connection::unexpected(&other)),
        }
    }

    /// Returns a list of links.
    pub(crate) fn links(self) -> Result<Vec<LinkInfo>, Error> {
        let links = self.items.into_iter().map(|item| match item {
            Reply::Link(link) => Ok(link),
            other => Err(crate::connection::unexpected(&other)),
        });
        links.collect()
    }
}

/// A function that takes the answer of a call in the client's thread, before the next event
/// is received: the event may concern an object in the answer. It runs without a lock of the
/// client, and must not wait. The answer to a call that no thread waits for is
/// [`Error::Closed`] if the connection was lost first; the hooks of other calls are dropped
/// then.
pub type Hook = Box<dyn FnOnce(Result<Answer, Error>) -> Result<Answer, Error> + Send>;

/// A request without a final result.
pub(crate) enum Call {
    /// A thread waits for the answer.
    Waiting {
        items: Vec<Reply>,
        hook: Option<Hook>,
        answered: Arc<Answered>,
    },
    /// The answer has arrived, and the hook of the call runs.
    InHook,
    /// The answer, for the thread that waits.
    Answered(Box<Result<Answer, Error>>),
    /// The connection was lost, perhaps before ferroced received the request.
    Lost,
    /// The call passed its deadline: objects in the answer are returned to ferroced.
    Abandoned,
    /// No thread waits for the answer.
    Notice(Option<Hook>),
}

/// Wakes the thread that waits for an answer.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    /// Used with the lock of the state.
    changed: Condvar,
    /// True if the thread waits for the condition, or is about to. A thread that receives its
    /// own answer does not.
    has_waiter: AtomicBool,
}

impl Answered {
    /// Waits while `waits` is true, until the timeout. The result tells no more than the state.
    pub(crate) fn wait_while<'a>(
        &self,
        state: MutexGuard<'a, State>,
        timeout: Option<Duration>,
        waits: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'a, State> {
        self.has_waiter.store(true, Ordering::Relaxed);
        match timeout {
            Some(timeout) => {
                let waited = self.changed.wait_timeout_while(state, timeout, waits);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let waited = self.changed.wait_while(state, waits);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
        }
    }

    /// Wakes the thread, if it waits. The caller has changed the call under the lock of the
    /// state: a thread that waits later finds the change.
    pub(crate) fn notify(&self) {
        // Saves a system call, which a condition without waiting threads costs, too.
        if self.has_waiter.load(Ordering::Relaxed) {
            self.changed.notify_all();
        }
    }
}

/// One of this many requests has a reply. The reply shows that ferroced reads requests, and
/// that the outbox can be sent. A full socket holds more requests.
const REQUESTS_PER_REPLY: u32 = 16;

/// The connection, and the calls on it.
pub(crate) struct State {
    /// None while there is no connection to ferroced.
    pub(crate) sender: Option<RequestSender>,
    /// Number of the connection, or of the last one.
    pub(crate) generation: u64,
    pub(crate) calls: BTreeMap<RequestNumber, Call>,
    /// Encoded requests that wait for room in the socket.
    pub(crate) outbox: VecDeque<(RequestNumber, Vec<u8>)>,
    /// True if a call passed its deadline and no reply has arrived since.
    pub(crate) silent: bool,
    /// Requests without a reply since the last one with a reply.
    unanswered: u32,
    /// Attempts to reconnect that threads have asked for.
    pub(crate) attempts_wanted: u64,
    /// How many of these have failed.
    pub(crate) attempts_failed: u64,
    /// Error of the latest failed attempt.
    pub(crate) failure: Option<Error>,
}

impl State {
    /// Returns the state of a new connection with this number.
    pub(crate) fn new(sender: RequestSender, generation: u64) -> State {
        State {
            sender: Some(sender),
            generation,
            calls: BTreeMap::new(),
            outbox: VecDeque::new(),
            silent: false,
            unanswered: 0,
            attempts_wanted: 0,
            attempts_failed: 0,
            failure: None,
        }
    }

    /// Queues a request and sends it if the socket has room.
    pub(crate) fn submit(&mut self, request: &Request, call: Call) -> RequestNumber {
        let number = next_request_number();
        self.calls.insert(number, call);
        self.unanswered = 0;
        self.queue(number, request);
        number
    }

    /// Queues calls whose answers no thread needs, as one request, and sends it if the socket
    /// has room.
    pub(crate) fn submit_notices(&mut self, calls: Vec<CmCall>) {
        self.unanswered += 1;
        if self.unanswered < REQUESTS_PER_REPLY {
            let request = Request::CmNotices(calls);
            return self.queue(next_request_number(), &request);
        }
        for call in calls {
            self.submit(&Request::Cm(call), Call::Notice(None));
        }
    }

    fn queue(&mut self, number: RequestNumber, request: &Request) {
        let bytes = encode_numbered(Some(number), request);
        self.outbox.push_back((number, bytes));
        self.flush();
    }

    /// Sends requests from the outbox while the socket has room.
    pub(crate) fn flush(&mut self) {
        let Some(sender) = &self.sender else { return };
        while let Some((number, bytes)) = self.outbox.front() {
            match sender.try_send(bytes, &[]) {
                Ok(true) => {}
                // The thread notices that the connection is closed, and fails the call.
                Ok(false) | Err(Error::Closed) => return,
                Err(error) => {
                    tracing::warn!("cannot send to ferroced: {error}");
                    if let Some(call) = self.calls.get_mut(number)
                        && let Call::Waiting { answered, .. } = call
                    {
                        answered.notify();
                        *call = Call::Answered(Box::new(Err(error)));
                    }
                }
            }
            self.outbox.pop_front();
        }
    }

    /// Gives up a call at its deadline, and returns its error.
    pub(crate) fn abandon(&mut self, number: RequestNumber) -> Error {
        let unsent = self.outbox.iter().position(|(queued, _)| *queued == number);
        match unsent {
            Some(place) => drop(self.outbox.remove(place)),
            None => drop(self.calls.insert(number, Call::Abandoned)),
        }
        self.silent = true;
        let Some(sender) = &self.sender else {
            return Error::NoDaemon;
        };
        let error = sender.timeout_error();
        tracing::warn!("{error}");
        error
    }

    /// Ends all calls of a lost connection. Returns their hooks, to be called or dropped
    /// without the lock: they may hold the last references to objects of the program.
    pub(crate) fn lose_connection(&mut self) -> LostHooks {
        let mut hooks = LostHooks::default();
        self.sender = None;
        self.silent = false;
        self.outbox.clear();
        for (number, call) in core::mem::take(&mut self.calls) {
            let call = match call {
                Call::Waiting { hook, answered, .. } => {
                    hooks.waiting.extend(hook);
                    answered.notify();
                    Call::Lost
                }
                // Their threads are about to take the result.
                done @ (Call::Answered(_) | Call::InHook | Call::Lost) => done,
                // The next ferroced knows nothing of these.
                Call::Notice(hook) => {
                    hooks.notices.extend(hook);
                    continue;
                }
                Call::Abandoned => continue,
            };
            self.calls.insert(number, call);
        }
        hooks
    }
}

/// The hooks of calls whose connection was lost.
#[derive(Default)]
pub(crate) struct LostHooks {
    /// Hooks of calls whose threads report the loss.
    pub(crate) waiting: Vec<Hook>,
    /// Hooks of calls that no thread waits for.
    pub(crate) notices: Vec<Hook>,
}

/// Returns true for an item of a list, after which more replies follow.
pub(crate) fn is_item(reply: &Reply) -> bool {
    match reply {
        Reply::Link(_) | Reply::Counters(_) | Reply::Resources { .. } | Reply::CmId(_) => true,
        Reply::Story { .. } => true,
        Reply::Welcome { .. }
        | Reply::Done
        | Reply::Watched { .. }
        | Reply::Attached { .. }
        | Reply::Resumed { .. }
        | Reply::Introduced { .. }
        | Reply::StreamIntroduced { .. }
        | Reply::Report { .. }
        | Reply::Captured { .. }
        | Reply::Tap { .. }
        | Reply::Journal { .. }
        | Reply::CmAnswer(_)
        | Reply::CmEvent(_)
        | Reply::Error { .. }
        | Reply::Event(_) => false,
    }
}

/// Returns the request that returns the objects of a reply to ferroced.
pub(crate) fn returning(reply: &Reply) -> Option<Request> {
    match reply {
        Reply::CmAnswer(answer) => returning_call(answer).map(Request::Cm),
        Reply::Attached { attachment, .. } => Some(detach(*attachment)),
        _ => None,
    }
}

pub(crate) fn detach(attachment: AttachmentNumber) -> Request {
    Request::Detach { attachment }
}

/// Returns the call that returns the objects of an answer to ferroced.
pub fn returning_call(answer: &CmAnswer) -> Option<CmCall> {
    match *answer {
        CmAnswer::Bound { port, .. } => Some(CmCall::Release { port }),
        CmAnswer::Connection { conn } => Some(CmCall::Destroy { conn }),
        CmAnswer::SidrRequested { sidr } => Some(CmCall::SidrDestroy { sidr }),
        CmAnswer::Done | CmAnswer::Established { .. } => None,
    }
}
