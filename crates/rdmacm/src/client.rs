//! The use of the process's control client for connections.
//!
//! [`ferroce_control::Client`] holds the connection to ferroced and the thread that receives
//! answers and events. This module makes calls to the connection manager on it, assigns the
//! objects in answers to ids, and queues events on the channels of their ids.
//!
//! Locks are taken in this order: handles, id, event channel. No lock of an id is held during
//! a call.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use ferroce_control::client::{Answer, Hook, Recovery, Service, returning_call};
use ferroce_control::{Client, CmAnswer, CmCall, CmEvent, LinkEvent, LinkEventKind, PerProcess};

use crate::channel::ChannelEvent;
use crate::error::{Error, ErrorKind, unexpected_answer};
use crate::handles::HandleTable;
use crate::id::{Port, Shared};
use crate::{devices, lock, recover};

/// The connection of this process to ferroced's connection manager.
#[derive(Debug)]
pub(crate) struct ControlClient {
    client: Client,
    handles: Mutex<HandleTable>,
}

/// The client of a process. A forked child opens one of its own.
#[derive(Debug, Default)]
struct Current {
    client: OnceLock<Arc<ControlClient>>,
    /// Locked by the thread that registers the client.
    registering: Mutex<()>,
}

static CURRENT: PerProcess<Current> = PerProcess::new();

impl ControlClient {
    /// Returns the client of this process. The first call connects to ferroced.
    pub(crate) fn get() -> Result<&'static ControlClient, Error> {
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
        CURRENT.get().client.get().map(Arc::as_ref)
    }

    fn open() -> Result<&'static ControlClient, ferroce_control::Error> {
        // Without the lock: threads that find no ferroced fail together.
        let client = Client::open()?;
        let current = CURRENT.get();
        let _registering = lock(&current.registering);
        if let Some(client) = current.client.get() {
            return Ok(client);
        }
        let client = Arc::new(ControlClient {
            client,
            handles: Mutex::new(HandleTable::new(0)),
        });
        // From now on it lasts as long as the process.
        let service: Arc<dyn Service> = Arc::clone(&client) as _;
        client.client.register(&service)?;
        Ok(current.client.get_or_init(|| client))
    }

    /// Locks the table of handles. While it is locked, no event is queued.
    pub(crate) fn handles(&self) -> MutexGuard<'_, HandleTable> {
        lock(&self.handles)
    }

    /// Calls the connection manager and waits for the answer. Objects in the answer become
    /// those of `id`. [`ErrorKind::ConnectionReset`] if ferroced ends during the call: the
    /// call may have had an effect. [`ErrorKind::TimedOut`] if ferroced does not answer: it
    /// is stopped, and handles the call when it continues.
    pub(crate) fn call(
        &'static self,
        call: CmCall,
        id: Option<&Arc<Shared>>,
    ) -> Result<CmAnswer, Error> {
        answer(self.client.call(call, self.assigning(id)))
    }

    /// Calls the connection manager as [`ControlClient::call`] does, for an answer of
    /// [`CmAnswer::Done`].
    pub(crate) fn perform(&'static self, call: CmCall) -> Result<(), Error> {
        match self.call(call, None)? {
            CmAnswer::Done => Ok(()),
            _ => Err(unexpected_answer()),
        }
    }

    /// Fails with [`ErrorKind::TimedOut`] if ferroced does not answer.
    pub(crate) fn probe(&self) -> Result<(), Error> {
        self.client.probe().map_err(call_failed)
    }

    /// Calls the connection manager as [`ControlClient::call`] does, for calls that may be
    /// repeated: if ferroced ends, the next one is called. `call` builds each request anew
    /// for the connection with this number, because handles have changed by then.
    pub(crate) fn call_until_answered(
        &'static self,
        call: impl Fn(u64) -> Result<CmCall, Error>,
        id: Option<&Arc<Shared>>,
    ) -> Result<CmAnswer, Error> {
        loop {
            let generation = self.client.await_connection().map_err(call_failed)?;
            let request = call(generation)?;
            let hook = self.assigning(id);
            match self.client.call_on(generation, request, hook) {
                // The request named handles of a ferroced that has ended.
                Err(ferroce_control::Error::Closed) => {}
                answered => return answer(answered),
            }
        }
    }

    /// Sends a call without waiting for the answer, for threads that must not block. False if
    /// there is no connection to ferroced. The answer to [`CmCall::Establish`] updates `id`.
    pub(crate) fn notify(&'static self, call: CmCall, id: &Arc<Shared>) -> bool {
        // The notice does not keep the id's descriptors open.
        let id = Arc::downgrade(id);
        let hook: Hook = Box::new(move |answer| {
            let upgraded = id.upgrade();
            // While the table is locked, the id is not destroyed.
            let handles = self.handles();
            if let Some(id) = upgraded.as_ref().filter(|id| !id.inner().is_released()) {
                noticed(id, &answer);
            }
            drop(handles);
            // Dropped after the lock: it may be the last reference, with its device.
            drop(upgraded);
            answer
        });
        self.client.notify(call, Some(hook))
    }

    /// Sends a call without waiting for the answer. The object in the answer becomes that of
    /// `id`. A refusal, or the end of ferroced, becomes an event of the id. False if there is
    /// no connection to ferroced.
    pub(crate) fn start(&'static self, call: CmCall, id: &Arc<Shared>) -> bool {
        let id = Arc::downgrade(id);
        let hook: Hook = Box::new(move |answer| {
            let id = id.upgrade();
            self.started(id.as_ref(), &answer);
            // Dropped after the lock: it may be the last reference, with its device.
            drop(id);
            answer
        });
        self.client.notify(call, Some(hook))
    }

    fn started(&self, id: Option<&Arc<Shared>>, answer: &Result<Answer, ferroce_control::Error>) {
        match (answer, id) {
            (Ok(answer), id) => {
                let Some(object) = answer.cm_answer() else {
                    return;
                };
                let is_assigned = id.is_some_and(|id| self.handles().learn(id, object));
                if !is_assigned && let Some(call) = returning_call(object) {
                    self.client.notify(call, None);
                }
            }
            (Err(error), Some(id)) => {
                // While the table is locked, the id is not destroyed.
                let _handles = self.handles();
                if !id.inner().is_released() {
                    id.post(ChannelEvent::ConnectError(error.errno()));
                }
            }
            (Err(_), None) => {}
        }
    }

    /// Sends calls that return objects, and releases a port, without waiting for ferroced,
    /// which does not reply. Does not release the port if the connection that assigned its
    /// handle was lost: the port ended with it, and another port may have the same handle now.
    pub(crate) fn return_objects(&self, calls: Vec<CmCall>, port: Option<&Port>) {
        let release = port.map(|port| {
            let release = CmCall::Release { port: port.handle };
            (port.generation, release)
        });
        self.client.return_objects(calls, release);
    }

    /// Receives messages of ferroced until `receive` returns true or `fd` is readable; see
    /// [`Client::receive_until`].
    pub(crate) fn receive_until(
        &self,
        fd: BorrowedFd<'_>,
        receive: impl FnMut(&mut dyn FnMut()) -> bool,
    ) -> std::io::Result<()> {
        self.client.receive_until(fd, receive)
    }

    /// Returns the hook that assigns the object in an answer to the id of the call. The object
    /// goes back to ferroced if the id was destroyed during the call.
    fn assigning(&'static self, id: Option<&Arc<Shared>>) -> Option<Hook> {
        let id = Arc::clone(id?);
        Some(Box::new(move |answer| {
            let answer = answer?;
            let Some(object) = answer.cm_answer() else {
                return Ok(answer);
            };
            if self.handles().learn(&id, object) {
                return Ok(answer);
            }
            if let Some(call) = returning_call(object) {
                self.client.notify(call, None);
            }
            Err(ferroce_control::Error::Refused {
                errno: libc::EINVAL,
                message: "the id was destroyed during the call".into(),
            })
        }))
    }
}

impl Service for ControlClient {
    fn connected(&self, generation: u64) {
        self.handles().clear_handles(generation);
    }

    fn cm_event(&self, event: Box<CmEvent>) {
        self.handles().dispatch(event);
    }

    fn link_event(&self, event: &LinkEvent) {
        if event.kind == LinkEventKind::Removed {
            self.handles().remove_link(event.link.index);
            devices::forget(event.link.index);
        }
    }

    fn recover(&self, recovery: &mut Recovery<'_>) -> Result<(), ferroce_control::Error> {
        recover::recover(self, recovery)
    }
}

/// Returns the answer of a call, or its error.
fn answer(answered: Result<Answer, ferroce_control::Error>) -> Result<CmAnswer, Error> {
    let answer = answered.map_err(call_failed)?;
    answer.cm().map_err(Error::from)
}

/// Returns the error of a call to a ferroced that this process was connected to.
fn call_failed(error: ferroce_control::Error) -> Error {
    match error {
        ferroce_control::Error::NoDaemon => {
            Error::new(ErrorKind::TimedOut, "ferroced is not running")
        }
        ferroce_control::Error::Closed => {
            Error::new(ErrorKind::ConnectionReset, "ferroced ended during the call")
        }
        error => error.into(),
    }
}

/// Completes a [`CmCall::Establish`] that no thread waits for.
fn noticed(id: &Arc<Shared>, answer: &Result<Answer, ferroce_control::Error>) {
    match answer {
        Ok(answer) => {
            if let Some(CmAnswer::Established { snapshot }) = answer.cm_answer() {
                id.inner().snapshot = Some(**snapshot);
            }
        }
        // The recovery reports connections that were not established.
        Err(ferroce_control::Error::Closed) => {}
        Err(error) => {
            tracing::debug!("ferroced refused to establish a connection: {error}");
            // A connection that the peer has ended has an event of its own.
            if !id.inner().closed {
                id.post(ChannelEvent::EstablishFailed(error.errno()));
            }
        }
    }
}
