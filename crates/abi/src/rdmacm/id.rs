//! Ids: the ends of connections, as programs hold them.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::net::SocketAddr;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ferroce_cm::ports::Host;
use ferroce_cm::{Address, ConnId, Ece, PortSpace, QpParameters, SidrId, Snapshot};
use ferroce_control::{CmCall, CmId, CmPort};

use super::channel::{Channel, Happening, Queued, channel_of};
use super::devices::{self, CmDevice};
use super::event::rdma_ack_cm_event;
use super::line::Line;
use super::multicast::Group;
use super::{
    Outcome, finish, last_errno, lock, rdma_create_event_channel, rdma_destroy_event_channel,
};
use crate::errno::refuse;
use crate::event_count::EventCount;
use crate::ffi::*;
use crate::log;
use crate::object::{Object, from_c, into_c, take};

/// An id as the program sees it.
#[repr(C)]
pub(crate) struct IdObject {
    c: UnsafeCell<rdma_cm_id>,
    pub(crate) id: Arc<Id>,
}

// SAFETY: `repr(C)`, and the C structure comes first, in a transparent cell.
unsafe impl Object for IdObject {
    type C = rdma_cm_id;
}

/// What the library knows of an id.
#[derive(Debug)]
pub(crate) struct Id {
    /// The program's object.
    c: AtomicPtr<rdma_cm_id>,
    pub(crate) space: PortSpace,
    pub(crate) qp_type: ibv_qp_type,
    /// Events the program got, and those it acknowledged.
    pub(crate) events: EventCount,
    channel: Mutex<Arc<Channel>>,
    inner: Mutex<Inner>,
}

/// How far an id has come, in the words of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    Bound,
    /// Somebody is looked for on the network.
    Resolving,
    AddressResolved,
    RouteResolved,
    /// Asked for a connection or was asked, and all that follows.
    Connect,
    Listen,
    /// Its channel is gone.
    Orphaned,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: State,
    pub(crate) port: Option<Port>,
    /// How many requests may wait, if it listens.
    pub(crate) backlog: Option<u32>,
    pub(crate) device: Option<&'static CmDevice>,
    pub(crate) conn: Option<CmId<ConnId>>,
    /// The connection has ended by itself: ferroced does not know it any more.
    pub(crate) ended: bool,
    pub(crate) question: Option<CmId<SidrId>>,
    pub(crate) address: Option<Address>,
    pub(crate) qp: Option<QpParameters>,
    /// The record of an established connection.
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) options: Options,
    pub(crate) local_ece: Ece,
    pub(crate) remote_ece: Ece,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    /// Private data that comes before the program's.
    pub(crate) connect_data: Vec<u8>,
    /// Has a channel of its own, and waits for its events.
    pub(crate) synchronous: bool,
    /// Our end failed after the peer had agreed: what follows is of no interest.
    pub(crate) failed: bool,
    pub(crate) groups: Vec<Arc<Group>>,
    pub(crate) qp_init: Option<QpInitAttr>,
    pub(crate) addrinfo: Option<AddrInfo>,
}

/// What a listening endpoint gives the queue pairs of its connections.
#[derive(Debug)]
pub(crate) struct QpInitAttr(pub(crate) Box<[u8; size_of::<ibv_qp_init_attr>()]>);

/// A list for `rdma_query_addrinfo`; NULL while it is looked for.
#[derive(Debug)]
pub(crate) struct AddrInfo(pub(crate) *mut rdma_addrinfo);

// SAFETY: owned by whoever takes it out.
unsafe impl Send for AddrInfo {}

/// A port that is ours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Port {
    pub(crate) name: CmPort,
    pub(crate) number: u16,
    pub(crate) source: Host,
    pub(crate) destination: Option<(Host, u16)>,
    /// Shares the port of a listener and must not give it back.
    pub(crate) borrowed: bool,
}

/// `rdma_set_option`
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Options {
    pub(crate) tos: u8,
    pub(crate) reuse: bool,
    pub(crate) af_only: bool,
    pub(crate) ack_timeout: Option<u8>,
}

impl Id {
    pub(crate) fn new(
        channel: Arc<Channel>,
        space: PortSpace,
        qp_type: ibv_qp_type,
        synchronous: bool,
    ) -> Arc<Id> {
        Arc::new(Id {
            c: AtomicPtr::default(),
            space,
            qp_type,
            events: EventCount::default(),
            channel: Mutex::new(channel),
            inner: Mutex::new(Inner {
                state: State::Idle,
                port: None,
                backlog: None,
                device: None,
                conn: None,
                ended: false,
                question: None,
                address: None,
                qp: None,
                snapshot: None,
                options: Options::default(),
                local_ece: Ece::default(),
                remote_ece: Ece::default(),
                responder_resources: 0,
                initiator_depth: 0,
                connect_data: Vec::new(),
                synchronous,
                failed: false,
                groups: Vec::new(),
                qp_init: None,
                addrinfo: None,
            }),
        })
    }

    /// Its own; never held while ferroced is asked.
    pub(crate) fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// The program's object, for threads of the program.
    pub(crate) fn c(&self) -> *mut rdma_cm_id {
        self.c.load(Ordering::Acquire)
    }

    pub(crate) fn channel(&self) -> Arc<Channel> {
        Arc::clone(&lock(&self.channel))
    }

    /// Tells the program.
    pub(crate) fn post(self: &Arc<Id>, what: Happening) {
        let id = Arc::clone(self);
        self.channel().put(Queued { id, what });
    }

    pub(crate) fn datagrams(&self) -> bool {
        self.qp_type == IBV_QPT_UD
    }

    /// Changes the state, if it is the one that is expected.
    pub(crate) fn advance(&self, from: State, to: State) -> Outcome {
        let mut inner = self.inner();
        if inner.state != from {
            return Err(refuse(
                libc::EINVAL,
                format_args!(
                    "the id is in state {:?}, the call needs {from:?}",
                    inner.state
                ),
            ));
        }
        inner.state = to;
        Ok(())
    }

    /// Its device from now on, also for the program.
    pub(crate) fn set_device(&self, device: &'static CmDevice) {
        self.inner().device = Some(device);
        // SAFETY: the program's object is there; its threads call us.
        unsafe {
            let c = &mut *self.c();
            c.verbs = device.verbs;
            if c.pd.is_null() {
                c.pd = device.pd;
            }
            c.port_num = 1;
            c.route.addr.addr.ibaddr.pkey = 0xffff;
        }
    }

    /// Its addresses, for the program.
    pub(crate) fn set_addresses(&self, source: SocketAddr, destination: Option<SocketAddr>) {
        use super::address::{gid, storage};
        // SAFETY: the program's object is there; its threads call us.
        let addr = unsafe { &mut (*self.c()).route.addr };
        addr.src.src_storage = storage(source);
        if let Some(destination) = destination {
            addr.dst.dst_storage = storage(destination);
        }
        // SAFETY: the only member of its union.
        let ib = unsafe { &mut addr.addr.ibaddr };
        if !source.ip().is_unspecified() {
            ib.sgid = gid(source.ip());
        }
        if let Some(destination) = destination {
            ib.dgid = gid(destination.ip());
        }
    }
}

/// The id a program means. EBADF if its channel is gone: the real library has no
/// descriptor to ask then.
///
/// # Safety
/// NULL, or a live id of ours.
pub(crate) unsafe fn id_of<'a>(c: *mut rdma_cm_id) -> Outcome<&'a Arc<Id>> {
    // SAFETY: by contract.
    let id = unsafe { even_orphaned(c)? };
    match id.inner().state {
        State::Orphaned => Err(refuse(
            libc::EBADF,
            "the event channel of the id has been destroyed",
        )),
        _ => Ok(id),
    }
}

/// The id a program means, to get rid of it or of what is its.
///
/// # Safety
/// NULL, or a live id of ours.
pub(crate) unsafe fn even_orphaned<'a>(c: *mut rdma_cm_id) -> Outcome<&'a Arc<Id>> {
    // SAFETY: by contract.
    let object = unsafe { from_c::<IdObject>(c) };
    object
        .map(|object| &object.id)
        .ok_or_else(|| refuse(libc::EINVAL, "the id is NULL"))
}

/// A channel goes. As the kernel does, all that its ids have on the network ends.
pub(crate) fn orphan(channel: &Arc<Channel>) {
    let Some(line) = Line::current() else {
        return;
    };
    let theirs: Vec<Arc<Id>> = {
        let mut who = line.who();
        let ids = who.ids.values();
        let theirs = ids.filter(|id| Arc::ptr_eq(&id.channel(), channel));
        let theirs: Vec<_> = theirs.cloned().collect();
        for id in &theirs {
            who.remove(id);
        }
        theirs
    };
    for id in theirs {
        id.inner().state = State::Orphaned;
        give_up(&id, line);
        channel.purge(&id);
    }
}

/// Makes the program's object of an id.
pub(crate) fn hand_out(
    id: &Arc<Id>,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
) -> *mut rdma_cm_id {
    let c = into_c(Box::new(IdObject {
        c: UnsafeCell::new(rdma_cm_id {
            channel,
            context,
            ps: u32::from(id.space.number()),
            qp_type: id.qp_type,
            ..zeroed()
        }),
        id: Arc::clone(id),
    }));
    id.c.store(c, Ordering::Release);
    c
}

/// Makes an id; without a channel, one that waits for its own events.
pub(crate) unsafe fn create(
    mut channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Outcome<*mut rdma_cm_id> {
    log::start();
    devices::any()?;
    let space = u16::try_from(ps).ok().and_then(PortSpace::from_number);
    let space = space.ok_or_else(|| {
        refuse(
            libc::EINVAL,
            format_args!("rdma_create_id: port space {ps:#x} is unknown"),
        )
    })?;
    let synchronous = channel.is_null();
    let line = Line::get()?;
    if synchronous {
        // SAFETY: it wants nothing.
        channel = unsafe { rdma_create_event_channel() };
    }
    // SAFETY: the program's channel, or ours.
    let Some(shared) = (unsafe { channel_of(channel) }) else {
        return Err(last_errno());
    };
    let id = Id::new(Arc::clone(shared), space, qp_type, synchronous);
    line.who().add(&id);
    Ok(hand_out(&id, channel, context))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    if id.is_null() {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_create_id: there is no place for the id: NULL",
        )));
    }
    let qp_type = match ps {
        RDMA_PS_IPOIB | RDMA_PS_UDP => IBV_QPT_UD,
        _ => IBV_QPT_RC,
    };
    // SAFETY: the program's channel, and a place for the id.
    finish(unsafe { create(channel, context, ps, qp_type).map(|new| *id = new) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program's id, which it gives back.
    finish(unsafe { destroy(id) })
}

unsafe fn destroy(c: *mut rdma_cm_id) -> Outcome {
    // SAFETY: by contract a live id.
    let id = Arc::clone(unsafe { even_orphaned(c)? });
    let line = Line::get()?;
    line.who().remove(&id);
    give_up(&id, line);
    id.channel().purge(&id);
    // SAFETY: the program's object, which nobody else may use any more.
    unsafe {
        if !(*c).event.is_null() {
            rdma_ack_cm_event((*c).event);
            (*c).event = ptr::null_mut();
        }
    }
    id.events.wait();
    let synchronous = id.inner().synchronous;
    if let Some(AddrInfo(list)) = id.inner().addrinfo.take() {
        // SAFETY: nobody has asked for it.
        unsafe { super::rdma_freeaddrinfo(list) };
    }
    // SAFETY: as above; the path record was made by `path`.
    unsafe {
        let object = take::<IdObject>(c);
        let c = &*object.c.get();
        libc::free(c.route.path_rec.cast());
        if synchronous {
            rdma_destroy_event_channel(c.channel);
        }
    }
    Ok(())
}

/// Ends all that ferroced and groups know of an id.
fn give_up(id: &Arc<Id>, line: &'static Line) {
    let (conn, question, port, groups) = {
        let mut inner = id.inner();
        let conn = inner.conn.take().filter(|_| !inner.ended);
        let port = inner.port.take().filter(|port| !port.borrowed);
        let groups = core::mem::take(&mut inner.groups);
        (conn, inner.question.take(), port, groups)
    };
    // Whatever it answers: it may have ended by itself.
    if let Some(conn) = conn {
        let _gone = line.call(CmCall::Destroy { conn }, None);
    }
    if let Some(question) = question {
        let _gone = line.call(CmCall::SidrDestroy { sidr: question }, None);
    }
    if let Some(port) = port {
        let _gone = line.call(CmCall::Release { port: port.name }, None);
    }
    for group in groups {
        group.leave(id);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: the program's objects.
    finish(unsafe { migrate(id, channel) })
}

/// Moves an id to another channel, with the events that wait; without one it gets
/// its own and becomes synchronous.
pub(crate) unsafe fn migrate(c: *mut rdma_cm_id, mut channel: *mut rdma_event_channel) -> Outcome {
    // SAFETY: by contract a live id.
    let id = unsafe { id_of(c)? };
    let synchronous = channel.is_null();
    let was_synchronous = id.inner().synchronous;
    if synchronous {
        if was_synchronous {
            return Err(refuse(
                libc::EINVAL,
                "rdma_migrate_id: the id has no event channel, and gets none",
            ));
        }
        // SAFETY: it wants nothing.
        channel = unsafe { rdma_create_event_channel() };
    }
    // SAFETY: the program's channel, or ours.
    let new = Arc::clone(unsafe { channel_of(channel) }.ok_or_else(last_errno)?);
    {
        // While this is held, no event is queued.
        let who = Line::get()?.who();
        let old = id.channel();
        *lock(&id.channel) = Arc::clone(&new);
        for queued in old.purge(id) {
            new.put(queued);
        }
        id.inner().synchronous = synchronous;
        drop(who);
    }
    // SAFETY: the program's object.
    let c = unsafe { &mut *c };
    if was_synchronous {
        // SAFETY: its own event and channel, which it needs no more.
        unsafe {
            if !c.event.is_null() {
                rdma_ack_cm_event(c.event);
                c.event = ptr::null_mut();
            }
            rdma_destroy_event_channel(c.channel);
        }
    }
    c.channel = channel;
    id.events.wait();
    Ok(())
}
