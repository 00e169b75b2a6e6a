//! Calls in flight on the connection to ferroced, and the requests that wait to be sent.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Weak};

use ferroce_control::protocol::encode_numbered;
use ferroce_control::{CmAnswer, Request, RequestNumber, RequestSender, next_request_number};

use crate::error::{Error, ErrorKind};
use crate::id::Shared;

/// The connection, and the calls on it.
#[derive(Debug)]
pub(crate) struct State {
    /// None while there is no connection to ferroced.
    pub(crate) sender: Option<RequestSender>,
    /// Number of the connection, or of the last one: handles of ports hold on it only.
    pub(crate) generation: u64,
    pub(crate) calls: BTreeMap<RequestNumber, Call>,
    /// Encoded requests that wait for room in the socket.
    pub(crate) outbox: VecDeque<(RequestNumber, Vec<u8>)>,
    /// True if a call passed its deadline and no reply has arrived since.
    pub(crate) silent: bool,
}

/// A request without a final result.
#[derive(Debug)]
pub(crate) enum Call {
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
    /// No thread waits for the answer of [`ControlClient::notify`]. The answer concerns the id
    /// only while the program has it: the notice does not keep the id's descriptors open.
    Notice(Option<Weak<Shared>>),
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
        }
    }

    /// Queues a request and sends it if the socket has room.
    pub(crate) fn submit(&mut self, request: &Request, call: Call) -> RequestNumber {
        let number = next_request_number();
        self.calls.insert(number, call);
        let bytes = encode_numbered(Some(number), request);
        self.outbox.push_back((number, bytes));
        self.flush();
        number
    }

    /// Sends requests from the outbox while the socket has room.
    pub(crate) fn flush(&mut self) {
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
    pub(crate) fn abandon(&mut self, number: RequestNumber) -> Error {
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
