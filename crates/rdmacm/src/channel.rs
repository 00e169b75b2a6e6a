//! Event channels: queues of events with a descriptor that is readable while one waits.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use ferroce_cm::Event as CmEventKind;
use ferroce_control::CmEvent;
use ferroce_device::Channel;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::time::Timespec;

use crate::client::ControlClient;
use crate::devices;
use crate::error::Error;
use crate::event::{self, Event};
use crate::id::{Id, Shared, State};
use crate::iwarp::IwarpEvent;
use crate::multicast::Group;

/// A queue of events of ids. Clones share the queue.
///
/// The descriptor ([`AsFd`]) is readable while an event waits, as with the kernel's event
/// files.
#[derive(Clone)]
pub struct EventChannel(Arc<Channel<Queued>>);

/// An event that waits for the program.
#[derive(Debug)]
pub(crate) struct Queued {
    /// The id that the event concerns; for a request, the listener.
    pub(crate) id: Arc<Shared>,
    pub(crate) event: ChannelEvent,
    /// True if the program was told to ask for it again.
    postponed: bool,
}

impl Queued {
    pub(crate) fn new(id: Arc<Shared>, event: ChannelEvent) -> Queued {
        Queued {
            id,
            event,
            postponed: false,
        }
    }

    /// Returns true for the end of a connection that was not postponed yet.
    fn can_be_postponed(&self) -> bool {
        let ends = match &self.event {
            ChannelEvent::Cm(event, _) => matches!(event.event, CmEventKind::Disconnected { .. }),
            ChannelEvent::Iwarp(event) => matches!(event, IwarpEvent::Disconnected),
            _ => false,
        };
        ends && !self.postponed
    }
}

/// An event as it waits in a channel.
#[derive(Debug)]
pub(crate) enum ChannelEvent {
    /// An event of ferroced's connection manager, and the number of the connection to
    /// ferroced that received it.
    Cm(Box<CmEvent>, u64),
    AddressResolved,
    /// With the errno, as all numbers below.
    AddressError(i32),
    RouteResolved,
    RouteError(i32),
    ConnectError(i32),
    Unreachable(i32),
    Disconnected(i32),
    /// ferroced refused a connection after the program was told that it is established.
    EstablishFailed(i32),
    DeviceRemoved,
    /// An event of a connection on an iWARP link.
    Iwarp(IwarpEvent),
    /// The id has joined a multicast group.
    Joined(Arc<Group>),
    /// An event that the program posted itself.
    User {
        code: u32,
        status: i32,
        argument: u64,
    },
}

/// An event that was taken from a channel and not completed yet.
///
/// Completing it does the work that the event asks for: it moves the queue pair and creates
/// the id of a connection request.
#[derive(Debug)]
pub struct PendingEvent(Queued);

impl PendingEvent {
    /// Returns the id that the event concerns; for a request, the listener. None if it was
    /// dropped.
    pub fn id(&self) -> Option<Id> {
        Id::from_shared(&self.0.id)
    }

    /// Returns the context of that id (see [`Id::set_context`]).
    pub fn context(&self) -> u64 {
        self.0.id.context()
    }

    /// Returns true if completing the event may move the queue pair of the id or attach it to
    /// a multicast group.
    pub fn uses_queue_pair(&self) -> bool {
        match &self.0.event {
            ChannelEvent::Cm(event, _) => matches!(
                event.event,
                CmEventKind::Response { .. } | CmEventKind::Rejected { .. }
            ),
            ChannelEvent::Joined(_) | ChannelEvent::EstablishFailed(_) => true,
            ChannelEvent::Iwarp(event) => !matches!(event, IwarpEvent::Request(_)),
            _ => false,
        }
    }

    /// Completes the event. Returns None if the program must not see it. Never waits for
    /// ferroced.
    pub fn complete(self) -> Option<Event> {
        event::complete(self.0)
    }
}

impl EventChannel {
    /// Creates an empty channel. Its descriptor is blocking, and closed on exec.
    ///
    /// # Errors
    /// [`ErrorKind::NoDevice`](crate::ErrorKind::NoDevice) if there is no link.
    pub fn new() -> Result<EventChannel, Error> {
        devices::check_links()?;
        let channel = Channel::new().map_err(|error| Error::system("event channel", error))?;
        Ok(EventChannel(Arc::new(channel)))
    }

    /// Makes [`EventChannel::next`] and [`EventChannel::take`] fail with
    /// [`io::ErrorKind::WouldBlock`] instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        let mut flags = fcntl_getfl(self.0.fd())?;
        flags.set(OFlags::NONBLOCK, nonblocking);
        Ok(fcntl_setfl(self.0.fd(), flags)?)
    }

    /// Takes and completes the next event. Waits for it unless the descriptor is
    /// non-blocking.
    pub fn next(&self) -> io::Result<Event> {
        loop {
            if let Some(event) = self.take()?.complete() {
                return Ok(event);
            }
        }
    }

    /// Takes the next event without completing it. Waits for it unless the descriptor is
    /// non-blocking.
    pub fn take(&self) -> io::Result<PendingEvent> {
        self.take_with(|event| event)
    }

    /// Takes the next event as [`EventChannel::take`] does, and calls `look` before another
    /// thread can find that the event is gone.
    pub fn take_with<T>(&self, look: impl FnOnce(PendingEvent) -> T) -> io::Result<T> {
        let mut look = Some(|queued| look(PendingEvent(queued)));
        if self.0.is_empty()
            && let Some(client) = ControlClient::current()
            && !self.is_nonblocking()
        {
            // This thread receives the event, which wakes no other thread and needs no token.
            let mut taken = None;
            client.receive_until(self.0.fd(), |receive| {
                taken = self.0.take_after(receive, &mut look, || false);
                taken.is_some()
            })?;
            if let Some(taken) = taken {
                return Ok(taken);
            }
        }
        self.0
            .take_with(look.expect("no event was taken, so none was looked at"))
    }

    /// Waits up to `timeout` for an event. Returns true if one waits, if the descriptor is
    /// non-blocking, or if a signal arrived.
    pub fn wait(&self, timeout: Duration) -> bool {
        if self.is_nonblocking() {
            return true;
        }
        let fd = self.0.fd();
        let timeout = Timespec::try_from(timeout).ok();
        let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref());
        !matches!(ready, Ok(0))
    }

    /// Postpones the next event of a non-blocking channel, once, if it is the end of a
    /// connection and completions of receives wait. Returns true if the program shall ask again.
    ///
    /// **Why**: a peer may connect, send and disconnect while this program waits for a
    /// processor. libfabric then gets the event before it polls. It closes the endpoint and
    /// crashes on the messages that it finds in the queue. It polls before it asks again.
    pub fn postpones_end(&self) -> bool {
        let mut ended = None;
        self.0.look_at_next(|next| {
            ended = next.can_be_postponed().then(|| Arc::clone(&next.id));
            false
        });
        // Looked at without the lock of the queue, which a thread may take that has locked the id.
        let Some(id) = ended else { return false };
        let waits = id.qp().is_some_and(|qp| qp.has_unpolled_receives());
        waits
            && self.is_nonblocking()
            && self.0.look_at_next(|next| {
                let is_same = Arc::ptr_eq(&next.id, &id) && next.can_be_postponed();
                next.postponed |= is_same;
                is_same
            })
    }

    fn is_nonblocking(&self) -> bool {
        fcntl_getfl(self.0.fd()).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
    }

    /// Closes the channel: as in the kernel, all its ids lose their ports and connections,
    /// and every later call on them fails.
    pub fn close(&self) {
        let Some(client) = ControlClient::current() else {
            return;
        };
        let ids = {
            let mut handles = client.handles();
            let ids = handles.ids_on(self);
            for id in &ids {
                handles.remove(id);
                id.inner().state = State::Orphaned;
            }
            ids
        };
        for id in ids {
            id.release(client);
            self.purge(&id);
        }
    }

    /// Returns true if both are clones of one channel.
    pub(crate) fn is_same(&self, other: &EventChannel) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn put(&self, queued: Queued) {
        self.0.put(queued);
    }

    /// Takes back all events of an id.
    pub(crate) fn purge(&self, id: &Arc<Shared>) -> Vec<Queued> {
        self.0.take_back(|queued| Arc::ptr_eq(&queued.id, id))
    }

    /// Takes back the event of a joined group.
    pub(crate) fn purge_group(&self, group: &Arc<Group>) {
        self.0.take_back(
            |queued| matches!(&queued.event, ChannelEvent::Joined(other) if Arc::ptr_eq(other, group)),
        );
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventChannel").field(&self.0.fd()).finish()
    }
}
