//! Ids: the ends of connections.

use core::fmt;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use ferroce_cm::ports::Host;
use ferroce_cm::{Address, ConnId, Ece, PortSpace, QpParameters, SidrId, Snapshot};
use ferroce_control::{CmCall, CmId, CmPort};
use ferroce_device::transport::QpType;

use crate::channel::{ChannelEvent, EventChannel, Queued};
use crate::client::ControlClient;
use crate::devices::{self, LinkDevice};
use crate::error::{Error, ErrorKind};
use crate::iwarp::{Stage, TcpListener};
use crate::lock;
use crate::multicast::Group;
use crate::path::Path;
use crate::qp::AttachedQp;

/// One end of a connection, a listener, or a datagram endpoint: `rdma_cm_id`.
///
/// Clones are the same id. When the last clone is dropped, the id is destroyed: its port is
/// released, its connection ends, and a connection request that was not accepted is rejected.
#[derive(Clone)]
pub struct Id(Arc<Owner>);

/// Destroys the id when it is dropped. The table of handles and event queues hold the
/// [`Shared`] part only.
struct Owner(Arc<Shared>);

/// The part of an id that the control client's thread uses.
pub(crate) struct Shared {
    pub(crate) space: PortSpace,
    pub(crate) qp_type: QpType,
    /// Number among the ids of this process.
    pub(crate) number: u32,
    owner: OnceLock<Weak<Owner>>,
    context: AtomicU64,
    channel: Mutex<EventChannel>,
    inner: Mutex<Inner>,
}

/// State of an id, with the kernel's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    Bound,
    /// Neighbour discovery is running.
    Resolving,
    AddressResolved,
    RouteResolved,
    /// A connection request was sent or received, and every later stage of the connection.
    Connect,
    Listen,
    /// The event channel was closed.
    Orphaned,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: State,
    pub(crate) port: Option<Port>,
    /// Set during the call that binds the port.
    pub(crate) binding: Option<Binding>,
    /// Backlog of a listener.
    pub(crate) backlog: Option<u32>,
    pub(crate) device: Option<LinkDevice>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) path: Option<Path>,
    pub(crate) conn: Option<CmId<ConnId>>,
    /// True if the connection has ended: ferroced does not know it any more.
    pub(crate) ended: bool,
    /// True from the establishment of the connection to its end.
    pub(crate) established: bool,
    /// True if an event that ends the connection was queued.
    pub(crate) closed: bool,
    pub(crate) sidr: Option<CmId<SidrId>>,
    pub(crate) address: Option<Address>,
    pub(crate) qp: AttachedQp,
    pub(crate) qp_parameters: Option<QpParameters>,
    /// Record of an established connection, for a restarted ferroced.
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) options: Options,
    pub(crate) local_ece: Ece,
    pub(crate) remote_ece: Ece,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    /// True if our end failed after the peer had accepted: later events are not reported.
    pub(crate) failed: bool,
    pub(crate) groups: Vec<Arc<Group>>,
    /// True if the program chose the port number.
    pub(crate) chose_port: bool,
    /// The listening socket for iWARP links.
    pub(crate) tcp_listener: Option<TcpListener>,
    /// The connection, on an iWARP link.
    pub(crate) stage: Stage,
    destroyed: bool,
}

/// A bound port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Port {
    pub(crate) handle: CmPort,
    /// Number of the connection to ferroced that assigned the handle.
    pub(crate) generation: u64,
    pub(crate) number: u16,
    pub(crate) source: Host,
    pub(crate) destination: Option<(Host, u16)>,
    /// True if the port belongs to a listener, which releases it.
    pub(crate) borrowed: bool,
}

impl Port {
    /// Returns the handle for a call on the connection with this number.
    pub(crate) fn handle_on(&self, generation: u64) -> Result<CmPort, Error> {
        match self.generation == generation {
            true => Ok(self.handle),
            false => Err(Error::new(
                ErrorKind::AddressNotAvailable,
                format!(
                    "port {} was lost: ferroced was restarted and has not bound it again, or \
                     the id belongs to the parent process",
                    self.number
                ),
            )),
        }
    }
}

/// The addresses of a port that is being bound.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Binding {
    pub(crate) source: Host,
    pub(crate) destination: Option<(Host, u16)>,
}

/// Options of an id.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Options {
    pub(crate) type_of_service: u8,
    pub(crate) reuse_address: bool,
    pub(crate) af_only: bool,
    pub(crate) ack_timeout: Option<u8>,
}

impl Id {
    /// Creates an id whose events go to `channel`. `space` selects the port space, `qp_type`
    /// the type of its queue pair.
    ///
    /// # Errors
    /// [`ErrorKind::NoDevice`] if there is no link, or no ferroced.
    pub fn new(channel: &EventChannel, space: PortSpace, qp_type: QpType) -> Result<Id, Error> {
        devices::check_links()?;
        let client = ControlClient::get()?;
        let id = Id::detached(channel.clone(), space, qp_type);
        client.handles().add(id.shared());
        Ok(id)
    }

    /// Creates an id that is not in the table of handles yet.
    pub(crate) fn detached(channel: EventChannel, space: PortSpace, qp_type: QpType) -> Id {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let shared = Arc::new(Shared {
            space,
            qp_type,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            owner: OnceLock::new(),
            context: AtomicU64::new(0),
            channel: Mutex::new(channel),
            inner: Mutex::new(Inner {
                state: State::Idle,
                port: None,
                binding: None,
                backlog: None,
                device: None,
                local: None,
                peer: None,
                path: None,
                conn: None,
                ended: false,
                established: false,
                closed: false,
                sidr: None,
                address: None,
                qp: AttachedQp::default(),
                qp_parameters: None,
                snapshot: None,
                options: Options::default(),
                local_ece: Ece::default(),
                remote_ece: Ece::default(),
                responder_resources: 0,
                initiator_depth: 0,
                failed: false,
                groups: Vec::new(),
                chose_port: false,
                tcp_listener: None,
                stage: Stage::None,
                destroyed: false,
            }),
        });
        let owner = Arc::new(Owner(Arc::clone(&shared)));
        let _first = shared.owner.set(Arc::downgrade(&owner));
        Id(owner)
    }

    /// Returns the id of a shared part; None if it was dropped.
    pub(crate) fn from_shared(shared: &Arc<Shared>) -> Option<Id> {
        shared.owner.get()?.upgrade().map(Id)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }

    /// Returns the shared part for a call.
    ///
    /// # Errors
    /// [`ErrorKind::ChannelClosed`]: librdmacm has no descriptor for the call then.
    pub(crate) fn usable(&self) -> Result<&Arc<Shared>, Error> {
        match self.shared().inner().state {
            State::Orphaned => Err(Error::new(
                ErrorKind::ChannelClosed,
                "the event channel of the id has been closed",
            )),
            _ => Ok(self.shared()),
        }
    }

    /// Fails if the event channel of the id was closed.
    pub fn check_usable(&self) -> Result<(), Error> {
        self.usable().map(drop)
    }

    /// Returns true if both are clones of one id.
    pub fn is_same(&self, other: &Id) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the number that the program gave the id.
    pub fn context(&self) -> u64 {
        self.shared().context()
    }

    /// Gives the id a number of the program's, for its events.
    pub fn set_context(&self, context: u64) {
        self.shared().context.store(context, Ordering::Release);
    }

    /// Returns the port space.
    pub fn port_space(&self) -> PortSpace {
        self.shared().space
    }

    /// Returns the type of the id's queue pair.
    pub fn qp_type(&self) -> QpType {
        self.shared().qp_type
    }

    /// Returns the channel that gets the events of the id.
    pub fn channel(&self) -> EventChannel {
        self.shared().channel()
    }

    /// Returns the device, once the id has one: after it is bound to an address of a link,
    /// resolved, or created for a request.
    pub fn device(&self) -> Option<LinkDevice> {
        self.shared().inner().device.clone()
    }

    /// Returns the local address and port, once the id is bound or resolved.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.shared().inner().local
    }

    /// Returns the address and port of the peer, once they are resolved or known from a
    /// request.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.shared().inner().peer
    }

    /// Returns the path to the peer, once the route is resolved.
    pub fn path(&self) -> Option<Path> {
        self.shared().inner().path
    }

    /// Moves the id to another channel, with its waiting events.
    pub fn migrate(&self, channel: &EventChannel) -> Result<(), Error> {
        let id = self.usable()?;
        // While the table is locked, no event is queued.
        let handles = ControlClient::get()?;
        let handles = handles.handles();
        let old = id.channel();
        *lock(&id.channel) = channel.clone();
        for queued in old.purge(id) {
            channel.put(queued);
        }
        drop(handles);
        Ok(())
    }

    /// Destroys the id now, although clones of it exist: its port is released, its
    /// connection ends, and its waiting events are dropped. The second call does nothing.
    pub fn destroy(&self) {
        self.shared().destroy();
    }

    /// Queues an event of the program's own on the id's channel.
    pub fn post_user_event(&self, code: u32, status: i32, argument: u64) -> Result<(), Error> {
        self.usable()?.post(ChannelEvent::User {
            code,
            status,
            argument,
        });
        Ok(())
    }
}

impl Inner {
    /// Returns true if the objects of the id were returned to ferroced: it gets no new ones.
    pub(crate) fn is_released(&self) -> bool {
        self.destroyed || self.state == State::Orphaned
    }
}

impl Shared {
    /// Locks the id. The lock is never held during a call to ferroced.
    pub(crate) fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    pub(crate) fn context(&self) -> u64 {
        self.context.load(Ordering::Acquire)
    }

    pub(crate) fn channel(&self) -> EventChannel {
        lock(&self.channel).clone()
    }

    /// Queues an event for the program.
    pub(crate) fn post(self: &Arc<Shared>, event: ChannelEvent) {
        let id = Arc::clone(self);
        self.channel().put(Queued::new(id, event));
    }

    pub(crate) fn is_datagram(&self) -> bool {
        self.qp_type == QpType::Ud
    }

    /// Changes the state, if it is the expected one.
    pub(crate) fn advance(&self, from: State, to: State) -> Result<(), Error> {
        let mut inner = self.inner();
        if inner.state != from {
            return Err(Error::invalid(format!(
                "the id is in state {:?}, the call needs {from:?}",
                inner.state
            )));
        }
        inner.state = to;
        Ok(())
    }

    fn destroy(self: &Arc<Shared>) {
        if core::mem::replace(&mut self.inner().destroyed, true) {
            return;
        }
        if let Some(client) = ControlClient::current() {
            client.handles().remove(self);
            self.release(client);
        }
        self.channel().purge(self);
    }

    /// Returns all objects of the id to ferroced, and leaves its multicast groups. Does not
    /// wait for ferroced.
    pub(crate) fn release(self: &Arc<Shared>, client: &'static ControlClient) {
        self.release_streams();
        let (conn, sidr, port, groups) = {
            let mut inner = self.inner();
            let conn = inner.conn.take().filter(|_| !inner.ended);
            let port = inner.port.take().filter(|port| !port.borrowed);
            let groups = core::mem::take(&mut inner.groups);
            (conn, inner.sidr.take(), port, groups)
        };
        // Notices: this thread does not wait for ferroced, which may be stopped. ferroced
        // handles the requests of a connection in order, so a later Bind of this process
        // finds the port free. Without a connection there is nothing to return: the objects
        // ended with it. A refusal means that the object has ended by itself.
        let conn = conn.map(|conn| CmCall::Destroy { conn });
        let sidr = sidr.map(|sidr| CmCall::SidrDestroy { sidr });
        let calls = conn.into_iter().chain(sidr).collect();
        client.return_objects(calls, port.as_ref());
        for group in groups {
            group.leave(self);
        }
    }
}

impl Shared {
    /// Ends listener and connection on iWARP links.
    fn release_streams(self: &Arc<Shared>) {
        let (listener, is_used) = {
            let mut inner = self.inner();
            let listener = inner.tcp_listener.take();
            (listener, !matches!(inner.stage, Stage::None))
        };
        drop(listener);
        if is_used {
            let _ended_before = crate::iwarp::disconnect(self);
        }
    }

    /// Returns true if the id's device is that of an iWARP link.
    pub(crate) fn is_iwarp(&self) -> bool {
        let device = self.inner().device.clone();
        device.is_some_and(|device| device.is_iwarp())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.destroy();
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared().fmt(f)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner();
        f.debug_struct("Id")
            .field("space", &self.space)
            .field("qp_type", &self.qp_type)
            .field("state", &inner.state)
            .field("local", &inner.local)
            .field("peer", &inner.peer)
            .finish_non_exhaustive()
    }
}
