//! The control client: one connection to ferroced and one thread, which all parts of a
//! process share.
//!
//! ```text
//!   Device::open ...    list_links       rdma_cm: call()      get event: notify()
//!        |  attach()        |                 |                    |
//!        v                  v                 v  number, deadline  v  number
//!   +------------------------------ Client ------------------------------+
//!   |  outbox ---- try_send ----> ferroced ---- replies, events          |
//!   |  the thread: answers to calls by number, events to LinkUsers and   |
//!   |  the Service of rdma_cm; reconnects after a restart of ferroced    |
//!   +--------------------------------------------------------------------+
//! ```
//!
//! Calls of several threads are in flight together. Each has a request number and a
//! deadline. A thread that waits for an answer or an event of the connection manager receives
//! in place of the client's thread (`receiving`), and handles the messages of all. A call that
//! passes its deadline is abandoned; when its answer arrives later, the receiving thread
//! returns the objects in it to ferroced. No call blocks in `send`: requests that
//! find the socket full wait in the outbox, and are sent when the next reply shows that
//! ferroced reads again.
//!
//! The first use of the client connects and starts the thread; the last ends both. There is
//! one client for each network namespace that a process uses, because each has its own
//! ferroced. A forked child has clients of its own and leaves its parent's alone.
//!
//! Locks are taken in this order: state, links. The lock of links is held while a
//! [`LinkUser`] runs, so that a closed device gets no more events. No lock is held while a
//! hook runs, or while the [`Service`] handles an event or recovers.

mod calls;
mod links;
mod receiving;
mod recovery;
mod reports;
mod shared;
mod streams;

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use crate::cm::{CmCall, CmEvent};
use crate::connection::{Connection, find_daemon, unexpected};
use crate::error::Error;
use crate::generation::generation;
use crate::link::{LinkEvent, LinkInfo};
use crate::path::{TYPE_VARIABLE, netns_inode};
use crate::per_process::PerProcess;
use crate::protocol::{Reply, Request, SlotKind};
use crate::threads::start_thread;

pub use calls::{Answer, Hook, returning_call};
pub use links::{Introduction, LinkUser, OpenLink, Tap};
pub use recovery::Recovery;
use shared::Shared;
pub use streams::StreamIntroduction;

/// A part of the process that uses the connection manager. The client's thread calls it, or a
/// thread that waits for ferroced, so its functions must not wait for ferroced.
pub trait Service: Send + Sync + core::fmt::Debug {
    /// Starts the service on the connection with this number.
    fn connected(&self, generation: u64);
    /// Handles an event of the connection manager.
    fn cm_event(&self, event: Box<CmEvent>);
    /// Handles an event of any link.
    fn link_event(&self, event: &LinkEvent);
    /// Registers all objects with a ferroced that was restarted.
    ///
    /// # Errors
    /// Those of [`Recovery::call`]: the attempt is repeated with another connection.
    fn recover(&self, recovery: &mut Recovery<'_>) -> Result<(), Error>;
}

/// A use of this process's connection to ferroced. The connection lasts until the last use
/// is dropped.
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    netns: u64,
}

/// The clients of a process, by network namespace.
#[derive(Debug, Default)]
struct Clients {
    slots: Mutex<BTreeMap<u64, Slot>>,
    /// Notified when a client was opened or closed.
    changed: Condvar,
    /// Network namespaces and slots of devices that were closed while no ferroced ran. The
    /// next ferroced believes that this process still has them.
    unreleased: Mutex<Vec<(u64, SlotNumbers)>>,
}

#[derive(Debug)]
enum Slot {
    /// A thread connects.
    Opening(Arc<Attempt>),
    Open {
        shared: Arc<Shared>,
        uses: usize,
        thread: JoinHandle<()>,
    },
    /// A thread waits for the end of the client's thread.
    Closing,
    /// The client's thread dropped the last use, and removes the slot when it ends.
    ClosingItself,
}

/// An attempt to open a client. Threads that wait for it share its failure: each of them
/// trying again would add up their deadlines.
#[derive(Debug, Default)]
struct Attempt(OnceLock<Error>);

/// The slots of an attachment.
type SlotNumbers = (SlotKind, Vec<u8>);

static CLIENTS: PerProcess<Clients> = PerProcess::new();

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns all links that this user can use here; none if no ferroced runs. `FERROCE_TYPE`
/// limits them to those of one type.
pub fn list_links() -> Result<Vec<LinkInfo>, Error> {
    let listed = match Client::find()? {
        Some(client) => client.links(),
        // A client would start a thread.
        None => connect_alone().and_then(|mut connection| connection.links()),
    };
    match listed {
        Err(Error::NoDaemon) => Ok(Vec::new()),
        listed => listed.map(|mut links| {
            if let Some(kind) = std::env::var_os(TYPE_VARIABLE) {
                links.retain(|link| *link.kind == *kind);
            }
            links
        }),
    }
}

/// Opens a link without slots, on a connection of its own, and without a thread. The link stays
/// open until the connection is dropped, and its events arrive there.
///
/// # Errors
/// [`Error::NoDaemon`] if no ferroced runs; [`Error::Refused`] if the link does not exist.
pub fn watch_link(link: &str) -> Result<(Connection, LinkInfo), Error> {
    let mut connection = connect_alone()?;
    let request = Request::Watch { link: link.into() };
    match connection.request(&request)?.0 {
        Reply::Watched { link } => Ok((connection, link)),
        other => Err(unexpected(&other)),
    }
}

/// Connects to ferroced without a client. Gives slots of closed devices back, as each client
/// does.
fn connect_alone() -> Result<Connection, Error> {
    let mut connection = find_daemon()?.ok_or(Error::NoDaemon)?;
    release_closed(netns_inode()?, |request| connection.perform(request))?;
    Ok(connection)
}

impl Client {
    /// Returns the client of this process for this thread's network namespace, if it is open.
    fn find() -> Result<Option<Client>, Error> {
        let netns = netns_inode()?;
        match lock(&CLIENTS.get().slots).get_mut(&netns) {
            Some(Slot::Open { shared, uses, .. }) => {
                *uses += 1;
                let shared = Arc::clone(shared);
                Ok(Some(Client { shared, netns }))
            }
            _ => Ok(None),
        }
    }

    /// Returns the client of this process for this thread's network namespace. Connects to
    /// ferroced if there is no client yet.
    ///
    /// # Errors
    /// [`Error::NoDaemon`] if no ferroced runs; [`Error::Timeout`] if it does not answer.
    pub fn open() -> Result<Client, Error> {
        let netns = netns_inode()?;
        let clients = CLIENTS.get();
        let mut slots = lock(&clients.slots);
        let mut awaited: Option<Arc<Attempt>> = None;
        loop {
            if let Some(error) = awaited.as_ref().and_then(|attempt| attempt.0.get()) {
                return Err(error.again());
            }
            match slots.get_mut(&netns) {
                None => break,
                Some(Slot::Open { shared, uses, .. }) => {
                    *uses += 1;
                    let shared = Arc::clone(shared);
                    return Ok(Client { shared, netns });
                }
                Some(Slot::Opening(attempt)) => awaited = Some(Arc::clone(attempt)),
                Some(Slot::Closing | Slot::ClosingItself) => {}
            }
            let waited = clients.changed.wait(slots);
            slots = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let attempt = Arc::new(Attempt::default());
        slots.insert(netns, Slot::Opening(Arc::clone(&attempt)));
        drop(slots);
        let opened = connect(netns);
        let mut slots = lock(&clients.slots);
        clients.changed.notify_all();
        match opened {
            Ok((shared, thread)) => {
                let slot = Slot::Open {
                    shared: Arc::clone(&shared),
                    uses: 1,
                    thread,
                };
                slots.insert(netns, slot);
                Ok(Client { shared, netns })
            }
            Err(error) => {
                slots.remove(&netns);
                let _first = attempt.0.set(error.again());
                Err(error)
            }
        }
    }

    /// Returns all links.
    ///
    /// # Errors
    /// [`Error::NoDaemon`] if ferroced has ended.
    pub fn links(&self) -> Result<Vec<LinkInfo>, Error> {
        let answer = self.shared.call_running(|| (Request::Links, None))?;
        answer.links()
    }

    /// Attaches to a link, with up to `shards` slots: with one if slots are scarce.
    ///
    /// # Errors
    /// [`Error::NoDaemon`] if ferroced has ended; [`Error::Refused`] if the link does not
    /// exist or there are no slots.
    pub fn attach(self, link: &str, shards: u8) -> Result<OpenLink, Error> {
        links::attach(self, link, shards)
    }

    /// Registers the part of this process that uses the connection manager. A client can
    /// have one.
    ///
    /// # Errors
    /// Those of [`Client::call`].
    pub fn register(&self, service: &Arc<dyn Service>) -> Result<(), Error> {
        loop {
            let generation = self.await_connection()?;
            match self.shared.call_on(generation, &Request::Subscribe, None) {
                Err(Error::Closed) => continue,
                answer => answer?,
            };
            if self.shared.register(service, generation) {
                return Ok(());
            }
        }
    }

    /// Fails with [`Error::Timeout`] if ferroced does not answer.
    pub fn probe(&self) -> Result<(), Error> {
        // A second subscription has no effect.
        self.shared.call(&Request::Subscribe, None).map(drop)
    }

    /// Calls the connection manager and waits for the answer, which `hook` takes first.
    ///
    /// # Errors
    /// [`Error::Closed`] if ferroced ends during the call: the call may have had an effect.
    /// [`Error::Timeout`] if ferroced does not answer: it is stopped, and handles the call
    /// when it continues. [`Error::NoDaemon`] if ferroced has ended and does not come back.
    pub fn call(&self, call: CmCall, hook: Option<Hook>) -> Result<Answer, Error> {
        self.shared.call(&Request::Cm(call), hook)
    }

    /// Calls the connection manager as [`Client::call`] does, on the connection with this
    /// number: [`Error::Closed`] if that was lost.
    pub fn call_on(
        &self,
        generation: u64,
        call: CmCall,
        hook: Option<Hook>,
    ) -> Result<Answer, Error> {
        self.shared.call_on(generation, &Request::Cm(call), hook)
    }

    /// Sends a call without waiting for the answer, for threads that must not block. A call
    /// that finds the socket full stays in the outbox until it is sent. False if there is no
    /// connection to ferroced.
    pub fn notify(&self, call: CmCall, hook: Option<Hook>) -> bool {
        self.shared.notify(None, &Request::Cm(call), hook)
    }

    /// Sends calls that return objects, as [`Client::notify`] does. ferroced does not reply:
    /// a refusal means that the object has ended already. `last` is sent only if the
    /// connection has this number.
    pub fn return_objects(&self, calls: Vec<CmCall>, last: Option<(u64, CmCall)>) {
        self.shared.return_objects(calls, last);
    }

    /// Receives and handles messages in place of the client's thread, until `receive` returns
    /// true or `fd` is readable. `receive` is called when messages have arrived, with a function
    /// that handles them and does not wait. Returns before that if another thread receives, or
    /// there is no connection: the caller waits for `fd`.
    ///
    /// # Errors
    /// EINTR, if the program's signal handlers interrupt system calls.
    pub fn receive_until(
        &self,
        fd: BorrowedFd<'_>,
        mut receive: impl FnMut(&mut dyn FnMut()) -> bool,
    ) -> std::io::Result<()> {
        self.shared.receive_until(fd, &mut receive)
    }

    /// Waits until there is a connection to ferroced, and returns its number.
    ///
    /// # Errors
    /// [`Error::NoDaemon`] if ferroced does not come back.
    pub fn await_connection(&self) -> Result<u64, Error> {
        self.shared.connected().map(|state| state.generation)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.shared.process != generation() {
            // A forked child: the thread is its parent's.
            return;
        }
        let clients = CLIENTS.get();
        let mut slots = lock(&clients.slots);
        match slots.get_mut(&self.netns) {
            Some(Slot::Open { uses, .. }) if *uses > 1 => {
                *uses -= 1;
                return;
            }
            Some(slot @ Slot::Open { .. }) => {
                let Slot::Open { thread, .. } = std::mem::replace(slot, Slot::Closing) else {
                    unreachable!("the arm matches an open slot");
                };
                self.shared.end();
                if thread.thread().id() == std::thread::current().id() {
                    *slot = Slot::ClosingItself;
                    return;
                }
                drop(slots);
                let _panicked = thread.join();
            }
            _ => return,
        }
        close(&self.shared, self.netns);
    }
}

/// Connects to ferroced and starts the thread.
fn connect(netns: u64) -> Result<(Arc<Shared>, JoinHandle<()>), Error> {
    let mut connection = find_daemon()?.ok_or(Error::NoDaemon)?;
    release_closed(netns, |request| connection.perform(request))?;
    let (sender, receiver) = connection.split();
    let shared = Arc::new(Shared::new(sender, netns)?);
    let of_thread = Arc::clone(&shared);
    let thread = start_thread("ferroce-control".into(), move || {
        of_thread.run(receiver);
        let is_last = {
            let slots = lock(&CLIENTS.get().slots);
            matches!(slots.get(&netns), Some(Slot::ClosingItself))
        };
        if is_last {
            close(&of_thread, netns);
        }
    });
    let thread = thread.map_err(|error| Error::system("control thread", error))?;
    Ok((shared, thread))
}

/// Notes slots of a closed device that no ferroced has taken back.
fn note_closed(netns: u64, slots: SlotNumbers) {
    lock(&CLIENTS.get().unreleased).push((netns, slots));
}

/// Gives the slots of closed devices back to a ferroced that was restarted. It refuses slots
/// that it does not know as those of this process.
fn release_closed(
    netns: u64,
    mut perform: impl FnMut(&Request) -> Result<(), Error>,
) -> Result<(), Error> {
    loop {
        let (kind, slots) = {
            let mut unreleased = lock(&CLIENTS.get().unreleased);
            let place = unreleased.iter().position(|(of, _)| *of == netns);
            let Some(place) = place else { return Ok(()) };
            unreleased.swap_remove(place).1
        };
        let release = Request::Release {
            kind,
            slots: slots.clone(),
        };
        match perform(&release) {
            Ok(()) => {}
            Err(Error::Refused { message, .. }) => {
                tracing::debug!("slots of a closed device: {message}");
            }
            Err(error) => {
                note_closed(netns, (kind, slots));
                return Err(error);
            }
        }
    }
}

/// Closes the connection of a client whose thread has ended. Then another can be opened.
fn close(shared: &Shared, netns: u64) {
    shared.disconnect();
    let clients = CLIENTS.get();
    lock(&clients.slots).remove(&netns);
    clients.changed.notify_all();
}
