//! `rdma_cm_event`.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use ferroce_control::ANSWER_TIMEOUT;
use ferroce_device::AhAttr;
use ferroce_rdmacm::{Datagrams, Event, EventKind, Id, PeerParams, PendingEvent, Unreachable};

use super::channel::channel_of;
use super::id::{IdObject, destroy, hand_out, migrate, object_with_context};
use super::multicast::Membership;
use super::{Outcome, finish, refused};
use crate::errno::refuse;
use crate::ffi::*;
use crate::object::{Object, into_c, take};
use crate::provoke::provoke;
use crate::unused;

/// Room for the private data of every message.
const ROOM: usize = 256;

/// An event as the program sees it.
#[repr(C)]
pub(crate) struct EventObject {
    c: UnsafeCell<rdma_cm_event>,
    private_data: [u8; ROOM],
    /// The id that counts the acknowledgement; for a request, the listener.
    id: Arc<IdObject>,
    membership: Option<Arc<Membership>>,
}

// SAFETY: the structure is `repr(C)`, and the C structure is its first field, in a
// transparent cell.
unsafe impl Object for EventObject {
    type C = rdma_cm_event;
}

impl EventObject {
    fn new(id: &Arc<IdObject>, event: rdma_cm_event_type, status: c_int) -> Box<EventObject> {
        Box::new(EventObject {
            c: UnsafeCell::new(rdma_cm_event {
                id: id.as_ptr(),
                event,
                status,
                ..zeroed()
            }),
            private_data: [0; ROOM],
            id: Arc::clone(id),
            membership: None,
        })
    }

    /// Counts the acknowledgement: `rdma_destroy_id` waits for it.
    fn acknowledge(&self) {
        if let Some(membership) = &self.membership {
            membership.events.acknowledge(1);
        }
        self.id.events.acknowledge(1);
    }

    fn c(&mut self) -> &mut rdma_cm_event {
        self.c.get_mut()
    }

    /// Keeps private data, and returns the pointer for the C structure.
    fn keep(&mut self, data: &[u8]) -> *const u8 {
        self.private_data[..data.len()].copy_from_slice(data);
        self.private_data.as_ptr()
    }

    /// Sets the parameters of a connection.
    fn set_connection(&mut self, params: &PeerParams) {
        let private_data = match params.private_data.is_empty() {
            true => ptr::null(),
            false => self.keep(&params.private_data).cast(),
        };
        self.c().param.conn = rdma_conn_param {
            private_data,
            private_data_len: params.private_data.len() as u8,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            flow_control: params.flow_control.into(),
            retry_count: params.retry_count,
            rnr_retry_count: params.rnr_retry_count,
            srq: params.srq.into(),
            qp_num: params.qpn,
        };
    }

    /// Sets the parameters of datagrams.
    fn set_datagrams(&mut self, data: &[u8], to: Option<&Datagrams>) {
        let mut param = to.map_or_else(zeroed, datagram_param);
        param.private_data = self.keep(data).cast();
        param.private_data_len = data.len() as u8;
        self.c().param.ud = param;
    }
}

fn datagram_param(to: &Datagrams) -> rdma_ud_param {
    rdma_ud_param {
        ah_attr: c_ah_attr(&to.ah),
        qp_num: to.qpn,
        qkey: to.qkey,
        ..zeroed()
    }
}

/// Returns an address as a C structure; zeros for one that is not known.
pub(crate) fn c_ah_attr(ah: &AhAttr) -> ibv_ah_attr {
    if *ah == AhAttr::default() {
        return zeroed();
    }
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: ah.dgid },
            flow_label: ah.flow_label,
            sgid_index: ah.sgid_index,
            hop_limit: ah.hop_limit,
            traffic_class: ah.traffic_class,
        },
        sl: ah.sl,
        is_global: 1,
        port_num: ah.port,
        ..zeroed()
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    provoke!("rdma_get_cm_event" => minus_one);
    if event.is_null() {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_get_cm_event: the pointer for the event is NULL",
        )));
    }
    let taken = channel_of(channel).and_then(|found| match found.channel.postpones_end() {
        true => Err(refuse(
            libc::EAGAIN,
            "rdma_get_cm_event: the event of a disconnect is postponed once, because received \
             messages were not polled yet",
        )),
        false => next(channel),
    });
    // SAFETY: `event` is not NULL, and points to a pointer of the program.
    finish(taken.map(|taken| unsafe { *event = into_c(taken) }))
}

/// Takes the next event of a channel. Waits for it unless the channel is non-blocking.
fn next(channel: *mut rdma_event_channel) -> Outcome<Box<EventObject>> {
    let channel = channel_of(channel)?;
    loop {
        // Counted before another thread can destroy the id and find no event.
        let deliver = |event: PendingEvent| {
            let object = object_with_context(event.context());
            if let Some(object) = &object {
                object.events.deliver();
            }
            (event, object)
        };
        let taken = channel.channel.take_with(deliver);
        let (event, object) = taken.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        let Some(object) = object else { continue };
        // Only then: another thread may destroy the queue pair of an id with other events.
        let uses_qp = event.uses_queue_pair();
        if uses_qp {
            object.attach_qp();
        }
        let completed = event.complete();
        if uses_qp {
            object.update_qp_state();
        }
        match completed.and_then(|event| translate(&object, event)) {
            Some(made) => return Ok(made),
            // The program does not see this one.
            None => object.events.acknowledge(1),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_ack_cm_event: the event is NULL",
        )));
    }
    // SAFETY: `rdma_get_cm_event` delivered the event, and the program acknowledges each
    // event once.
    let event = unsafe { take::<EventObject>(event) };
    event.acknowledge();
    0
}

/// Returns the C structure of an event; None if the program must not see it.
fn translate(id: &Arc<IdObject>, event: Event) -> Option<Box<EventObject>> {
    let simple = |event, errno: i32| Some(EventObject::new(id, event, -errno));
    match event.kind {
        EventKind::AddressResolved => {
            resolved(id, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ADDR_ERROR)
        }
        EventKind::AddressError { errno } => simple(RDMA_CM_EVENT_ADDR_ERROR, errno),
        EventKind::RouteResolved => {
            resolved(id, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_ROUTE_ERROR)
        }
        EventKind::RouteError { errno } => simple(RDMA_CM_EVENT_ROUTE_ERROR, errno),
        EventKind::ConnectRequest { id: new, params } => {
            let mut made = EventObject::new(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
            made.set_connection(&params);
            made.c().listen_id = id.as_ptr();
            made.c().id = request_id(id, new)?;
            Some(made)
        }
        EventKind::DatagramRequest {
            id: new,
            private_data,
        } => {
            let mut made = EventObject::new(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
            made.set_datagrams(&private_data, None);
            made.c().listen_id = id.as_ptr();
            made.c().id = request_id(id, new)?;
            Some(made)
        }
        EventKind::ConnectResponse(params) => {
            let mut made = EventObject::new(id, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
            made.set_connection(&params);
            Some(made)
        }
        EventKind::ConnectError { errno, params } => {
            let mut made = EventObject::new(id, RDMA_CM_EVENT_CONNECT_ERROR, -errno);
            if let Some(params) = params {
                made.set_connection(&params);
            }
            Some(made)
        }
        EventKind::Unreachable(why) => {
            let status = match why {
                Unreachable::Errno(errno) => -errno,
                Unreachable::Sidr(status) => status.into(),
            };
            Some(EventObject::new(id, RDMA_CM_EVENT_UNREACHABLE, status))
        }
        EventKind::Rejected {
            reason,
            private_data,
        } => {
            let mut made = EventObject::new(id, RDMA_CM_EVENT_REJECTED, reason.0.into());
            made.set_connection(&PeerParams {
                private_data,
                ..PeerParams::default()
            });
            Some(made)
        }
        EventKind::Refused {
            errno,
            private_data,
        } => {
            let mut made = EventObject::new(id, RDMA_CM_EVENT_REJECTED, -errno);
            made.set_connection(&PeerParams {
                private_data,
                ..PeerParams::default()
            });
            Some(made)
        }
        EventKind::Established(params) => {
            unused::connects();
            let mut made = EventObject::new(id, RDMA_CM_EVENT_ESTABLISHED, 0);
            if let Some(params) = params {
                made.set_connection(&params);
            }
            Some(made)
        }
        EventKind::DatagramsEstablished {
            destination,
            private_data,
        } => {
            unused::connects();
            let mut made = EventObject::new(id, RDMA_CM_EVENT_ESTABLISHED, 0);
            made.set_datagrams(&private_data, Some(&destination));
            Some(made)
        }
        EventKind::Disconnected { errno } => simple(RDMA_CM_EVENT_DISCONNECTED, errno),
        EventKind::DeviceRemoved => simple(RDMA_CM_EVENT_DEVICE_REMOVAL, 0),
        EventKind::MulticastJoined {
            context,
            destination,
        } => multicast(id, RDMA_CM_EVENT_MULTICAST_JOIN, 0, context, &destination),
        EventKind::MulticastError {
            context,
            destination,
            errno,
        } => {
            let kind = RDMA_CM_EVENT_MULTICAST_ERROR;
            multicast(id, kind, -errno, context, &destination)
        }
        EventKind::TimewaitExit => simple(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0),
        EventKind::User {
            code,
            status,
            argument,
        } => {
            let mut made = EventObject::new(id, code, status);
            made.c().param.arg = argument;
            Some(made)
        }
        other => {
            tracing::warn!("an event without a number in C: {other:?}");
            None
        }
    }
}

/// Returns the event of a successful resolution. The program finds device, addresses and path
/// in the id, even if the call that led to the event has not returned in another thread.
fn resolved(
    id: &Arc<IdObject>,
    success: rdma_cm_event_type,
    failure: rdma_cm_event_type,
) -> Option<Box<EventObject>> {
    let made = match id.publish() {
        Ok(()) => EventObject::new(id, success, 0),
        Err(errno) => EventObject::new(id, failure, -errno),
    };
    Some(made)
}

/// Creates the program's object of a request. The id of a synchronous listener's request gets
/// a channel of its own.
fn request_id(listener: &Arc<IdObject>, id: Id) -> Option<*mut rdma_cm_id> {
    let c = &listener.c;
    let object = hand_out(id, c.qp_type(), c.channel().get(), c.context().get());
    let synchronous = listener.extra().synchronous;
    let ready = object.publish().and_then(|()| match synchronous {
        true => migrate(&object, ptr::null_mut()),
        false => Ok(()),
    });
    match ready {
        Ok(()) => Some(object.as_ptr()),
        Err(errno) => {
            tracing::warn!("a request cannot be served: errno {errno}");
            let _rejected = destroy(object.as_ptr());
            None
        }
    }
}

fn multicast(
    id: &Arc<IdObject>,
    event: rdma_cm_event_type,
    status: c_int,
    number: u64,
    destination: &Datagrams,
) -> Option<Box<EventObject>> {
    let membership = id.extra().memberships.get(&number).map(Arc::clone)?;
    let mut made = EventObject::new(id, event, status);
    made.c().param.ud = rdma_ud_param {
        private_data: membership.context.load(Ordering::Relaxed),
        ..datagram_param(destination)
    };
    membership.events.deliver();
    made.membership = Some(membership);
    Some(made)
}

/// Waits for the event that a call on a synchronous id leads to; does nothing for other ids.
pub(crate) fn complete(id: &IdObject) -> Outcome {
    let synchronous = id.extra().synchronous;
    if !synchronous {
        return Ok(());
    }
    id.acknowledge_own_event();
    let channel = id.c.channel().get();
    await_event(channel)?;
    let mut event = next(channel)?;
    let (kind, status) = (event.c().event, event.c().status);
    let event = into_c(event);
    id.c.event().set(event);
    match (kind, status) {
        (_, 0) => Ok(()),
        (RDMA_CM_EVENT_REJECTED, _) => Err(refuse(
            libc::ECONNREFUSED,
            "the peer rejected the connection",
        )),
        (_, status) => Err(status.abs()),
    }
}

/// Takes the next event of a synchronous listener, and keeps the event in the id that the
/// program gets.
pub(crate) fn next_request(
    listener: &IdObject,
    usable: impl FnOnce(&mut rdma_cm_event) -> Outcome,
) -> Outcome<*mut rdma_cm_id> {
    listener.acknowledge_own_event();
    let mut event = next(listener.c.channel().get())?;
    let checked = usable(event.c());
    let id = event.c().id;
    let keeper = match checked {
        // Fails if the program has destroyed the id meanwhile: it does not see the event.
        Ok(()) => super::id::object_of(id).inspect_err(|_| event.acknowledge())?,
        Err(_) => Arc::clone(&event.id),
    };
    let event = into_c(event);
    keeper.c.event().set(event);
    checked.map(|()| id)
}

/// Waits for an event that ferroced will send sooner or later. Fails if ferroced is stopped:
/// the event may never come then.
fn await_event(channel: *mut rdma_event_channel) -> Outcome {
    let channel = channel_of(channel)?;
    while !channel.channel.wait(ANSWER_TIMEOUT) {
        ferroce_rdmacm::probe().map_err(refused("rdma_cm"))?;
    }
    Ok(())
}
