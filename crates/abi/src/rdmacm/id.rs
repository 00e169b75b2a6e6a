//! `rdma_cm_id`.

use core::ffi::{c_int, c_void};
use core::ptr;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use ferroce_device::transport::QpType;
use ferroce_rdmacm::{Id, PortSpace};

use super::channel::{self, channel_of};
use super::devices::{self, CmDevice};
use super::event::rdma_ack_cm_event;
use super::fields::Fields;
use super::live::LiveObjects;
use super::multicast::Membership;
use super::{Outcome, finish, lock, refused};
use crate::errno::refuse;
use crate::event_count::EventCount;
use crate::ffi::*;
use crate::log;
use crate::object::{Object, from_c};
use crate::provoke::provoke;
use crate::qp::{QpObject, ibv_query_qp};

/// An id as the program sees it.
#[repr(C)]
pub(crate) struct IdObject {
    /// The C structure, which the program reads and writes.
    pub(crate) c: Fields,
    pub(crate) id: Id,
    /// Events that the program got, and those that it acknowledged.
    pub(crate) events: EventCount,
    extra: Mutex<Extra>,
}

// SAFETY: the structure is `repr(C)`, and its first field is a transparent wrapper of the C
// structure.
unsafe impl Object for IdObject {
    type C = rdma_cm_id;
}

// SAFETY: the pointers in it are those of objects that all threads may use, or of the
// program; the documentation of `fields` says how threads share the C structure.
unsafe impl Send for IdObject {}
// SAFETY: as for `Send`; the rest is behind a lock.
unsafe impl Sync for IdObject {}

/// State that exists in C only.
#[derive(Default)]
pub(crate) struct Extra {
    /// True if the id has a channel of its own and waits for its events.
    pub(crate) synchronous: bool,
    /// Private data that precedes the program's in a connection request.
    pub(crate) connect_data: Vec<u8>,
    /// Attributes of the queue pairs that `rdma_get_request` creates.
    pub(crate) qp_init: Option<ibv_qp_init_attr>,
    /// Result of `rdma_resolve_addrinfo`.
    pub(crate) addrinfo: Option<AddrInfo>,
    /// Multicast groups by their number.
    pub(crate) memberships: BTreeMap<u64, Arc<Membership>>,
    last_membership: u64,
}

/// A list for `rdma_query_addrinfo`.
pub(crate) enum AddrInfo {
    /// It is being resolved.
    Resolving,
    /// The list, until the program takes it.
    Resolved(*mut rdma_addrinfo),
}

impl Extra {
    /// Adds a multicast group, and returns its number.
    pub(crate) fn add_membership(&mut self, membership: Membership) -> u64 {
        self.last_membership += 1;
        self.memberships
            .insert(self.last_membership, Arc::new(membership));
        self.last_membership
    }
}

static IDS: LiveObjects<IdObject> = LiveObjects::new();

impl IdObject {
    /// Returns the program's pointer to the id.
    pub(crate) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.c.as_ptr()
    }

    pub(crate) fn extra(&self) -> MutexGuard<'_, Extra> {
        lock(&self.extra)
    }

    /// Makes the queue pair in the C structure that of the id. Only for calls and events that
    /// use the queue pair: programs may leave the pointer of a destroyed one in the field.
    pub(crate) fn attach_qp(&self) {
        // SAFETY: the field is NULL or a queue pair of this library, which a program keeps
        // during calls and events that use it.
        let qp = unsafe { from_c::<QpObject>(self.c.qp().get()) };
        self.id.attach_qp(qp.map(|object| &object.qp));
    }

    /// Updates the state in the C structure of the queue pair after rdma_cm has moved it.
    pub(crate) fn update_qp_state(&self) {
        let qp = self.c.qp().get();
        if !qp.is_null() {
            // SAFETY: the queue pair is one of this library, which a program keeps during
            // calls and events that use it. NULL stands for attributes that are not wanted.
            unsafe { ibv_query_qp(qp, ptr::null_mut(), 0, ptr::null_mut()) };
        }
    }

    /// Returns the device of the id with its C objects.
    pub(crate) fn device(&self) -> Outcome<Option<&'static CmDevice>> {
        let device = self.id.device();
        device.as_ref().map(devices::context_of).transpose()
    }

    /// Copies device, addresses and path of the id to the C structure.
    pub(crate) fn publish(&self) -> Outcome {
        let device = self.device()?;
        let (local, peer) = (self.id.local_addr(), self.id.peer_addr());
        let path = self.id.path();
        let mut extra = self.extra();
        self.c
            .set_route(&mut extra, device, (local, peer), path.as_ref())
    }

    /// Acknowledges the event that a synchronous id keeps.
    pub(crate) fn acknowledge_own_event(&self) {
        let event = self.c.event().take();
        if !event.is_null() {
            // SAFETY: an event that this library delivered to the id, and that the field
            // held until now: `take` gave it to this thread only, so nothing has acknowledged it.
            unsafe { rdma_ack_cm_event(event) };
        }
    }
}

/// Returns the id of a program's pointer for a call. EBADF if its channel was destroyed:
/// librdmacm has no descriptor for the call then.
pub(crate) fn id_of(c: *mut rdma_cm_id) -> Outcome<Arc<IdObject>> {
    let object = object_of(c)?;
    object.id.check_usable().map_err(refused("rdma_cm"))?;
    Ok(object)
}

/// Returns the id of a program's pointer for a call that uses its queue pair.
pub(crate) fn id_with_qp(c: *mut rdma_cm_id) -> Outcome<Arc<IdObject>> {
    let object = id_of(c)?;
    object.attach_qp();
    Ok(object)
}

/// Returns the id of a program's pointer, even if its channel was destroyed.
pub(crate) fn object_of(c: *mut rdma_cm_id) -> Outcome<Arc<IdObject>> {
    IDS.get(c)
        .ok_or_else(|| refuse(libc::EINVAL, "the id is NULL, or has been destroyed"))
}

/// Returns the object of an id with this context.
pub(crate) fn object_with_context(context: u64) -> Option<Arc<IdObject>> {
    IDS.at(usize::try_from(context).ok()?)
}

/// Creates the program's object of an id.
pub(crate) fn hand_out(
    id: Id,
    qp_type: ibv_qp_type,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
) -> Arc<IdObject> {
    let object = Arc::new(IdObject {
        c: Fields::new(rdma_cm_id {
            channel,
            context,
            ps: u32::from(id.port_space().number()),
            qp_type,
            ..zeroed()
        }),
        id,
        events: EventCount::default(),
        extra: Mutex::default(),
    });
    let c = IDS.insert(&object);
    object.id.set_context(c.addr() as u64);
    object
}

/// Creates an id; one without a channel is synchronous.
pub(crate) fn create(
    mut channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Outcome<Arc<IdObject>> {
    log::start();
    ferroce_rdmacm::check_links().map_err(refused("rdma_create_id"))?;
    let space = u16::try_from(ps).ok().and_then(PortSpace::from_number);
    let space = space.ok_or_else(|| {
        refuse(
            libc::EINVAL,
            format_args!("rdma_create_id: port space {ps:#x} is unknown"),
        )
    })?;
    let synchronous = channel.is_null();
    ferroce_rdmacm::connect_to_ferroced().map_err(refused("rdma_create_id"))?;
    if synchronous {
        channel = channel::create()?;
    }
    let events = channel_of(channel)?;
    let id = Id::new(&events.channel, space, kind(qp_type)).map_err(|error| {
        if synchronous {
            channel::destroy(channel);
        }
        refused("rdma_create_id")(error)
    })?;
    let object = hand_out(id, qp_type, channel, context);
    object.extra().synchronous = synchronous;
    Ok(object)
}

/// Returns the type of queue pair that an id is for. A type that rdma_cm does not know is
/// refused when the queue pair is created.
fn kind(qp_type: ibv_qp_type) -> QpType {
    match qp_type {
        IBV_QPT_UD => QpType::Ud,
        IBV_QPT_UC => QpType::Uc,
        IBV_QPT_XRC_SEND => QpType::XrcInitiator,
        IBV_QPT_XRC_RECV => QpType::XrcTarget,
        _ => QpType::Rc,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    provoke!("rdma_create_id" => minus_one);
    if id.is_null() {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_create_id: the pointer for the id is NULL",
        )));
    }
    let qp_type = match ps {
        RDMA_PS_IPOIB | RDMA_PS_UDP => IBV_QPT_UD,
        _ => IBV_QPT_RC,
    };
    let created = create(channel, context, ps, qp_type);
    // SAFETY: `id` is not NULL, and points to a pointer of the program.
    finish(created.map(|object| unsafe { *id = object.as_ptr() }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    finish(destroy(id))
}

pub(crate) fn destroy(c: *mut rdma_cm_id) -> Outcome {
    let object = object_of(c)?;
    object.id.destroy();
    object.acknowledge_own_event();
    object.events.wait();
    IDS.remove(c);
    let (synchronous, addrinfo) = {
        let mut extra = object.extra();
        object.c.free_path(&mut extra);
        (extra.synchronous, extra.addrinfo.take())
    };
    if let Some(AddrInfo::Resolved(list)) = addrinfo {
        // SAFETY: `rdma_getaddrinfo` made the list, and the program has not taken it.
        unsafe { super::rdma_freeaddrinfo(list) };
    }
    if synchronous {
        channel::destroy(object.c.channel().get());
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    finish(id_of(id).and_then(|id| migrate(&id, channel)))
}

/// Moves an id to another channel, with its waiting events. An id that moves to no channel
/// gets its own and becomes synchronous.
pub(crate) fn migrate(object: &IdObject, mut channel: *mut rdma_event_channel) -> Outcome {
    let synchronous = channel.is_null();
    let was_synchronous = object.extra().synchronous;
    if synchronous {
        if was_synchronous {
            return Err(refuse(
                libc::EINVAL,
                "rdma_migrate_id: the id has no event channel, and the call names none",
            ));
        }
        channel = channel::create()?;
    }
    let events = channel_of(channel)?;
    object.id.migrate(&events.channel).map_err(|error| {
        if synchronous {
            channel::destroy(channel);
        }
        refused("rdma_migrate_id")(error)
    })?;
    object.extra().synchronous = synchronous;
    if was_synchronous {
        object.acknowledge_own_event();
        channel::destroy(object.c.channel().get());
    }
    object.c.channel().set(channel);
    object.events.wait();
    Ok(())
}
