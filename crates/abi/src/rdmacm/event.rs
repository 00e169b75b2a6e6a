//! Events as programs get them, and the work that is done when they do.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr;
use std::sync::Arc;

use ferroce_cm::message::SidrStatus;
use ferroce_cm::{Closed, Event};
use ferroce_control::{ANSWER_TIMEOUT, CmAnswer, CmCall, CmEvent, CmId};

use super::attributes::{to_error, to_ready};
use super::channel::{Happening, Queued, channel_of};
use super::datagram;
use super::id::Id;
use super::incoming;
use super::line::Line;
use super::multicast::Group;
use super::unexpected;
use super::{Outcome, finish};
use crate::errno::refuse;
use crate::ffi::*;
use crate::object::{Object, into_c, take};

/// Room for the private data of any message.
const ROOM: usize = 256;

/// An event as the program sees it.
#[repr(C)]
pub(crate) struct EventObject {
    pub(crate) c: UnsafeCell<rdma_cm_event>,
    private_data: [u8; ROOM],
    /// Whose acknowledgement is counted; for a request, the listener.
    id: Arc<Id>,
    group: Option<Arc<Group>>,
}

// SAFETY: `repr(C)`, and the C structure comes first, in a transparent cell.
unsafe impl Object for EventObject {
    type C = rdma_cm_event;
}

impl EventObject {
    fn new(id: &Arc<Id>, event: rdma_cm_event_type, status: c_int) -> Box<EventObject> {
        Box::new(EventObject {
            c: UnsafeCell::new(rdma_cm_event {
                id: id.c(),
                event,
                status,
                ..zeroed()
            }),
            private_data: [0; ROOM],
            id: Arc::clone(id),
            group: None,
        })
    }

    pub(crate) fn c(&mut self) -> &mut rdma_cm_event {
        self.c.get_mut()
    }

    /// Private data of a connection, with the rest of what is said about it.
    pub(crate) fn conn(&mut self, data: &[u8], rest: rdma_conn_param) {
        self.private_data[..data.len()].copy_from_slice(data);
        let private_data = self.private_data.as_ptr().cast();
        self.c().param.conn = rdma_conn_param {
            private_data: if data.is_empty() {
                ptr::null()
            } else {
                private_data
            },
            private_data_len: data.len() as u8,
            ..rest
        };
    }

    /// The same for datagrams.
    pub(crate) fn datagram(&mut self, data: &[u8], rest: rdma_ud_param) {
        self.private_data[..data.len()].copy_from_slice(data);
        let private_data = self.private_data.as_ptr().cast();
        self.c().param.ud = rdma_ud_param {
            private_data,
            private_data_len: data.len() as u8,
            ..rest
        };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if event.is_null() {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_get_cm_event: there is no place for the event: NULL",
        )));
    }
    // SAFETY: the program's channel.
    let channel = unsafe { channel_of(channel) }.map(Arc::clone);
    let Some(channel) = channel else {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_get_cm_event: the channel is NULL",
        )));
    };
    loop {
        let queued = match channel.take() {
            Ok(queued) => queued,
            Err(error) => return finish(Err(error.raw_os_error().unwrap_or(libc::EIO))),
        };
        let id = Arc::clone(&queued.id);
        match make(queued) {
            Some(made) => {
                // SAFETY: by contract there is a place for it.
                unsafe { *event = into_c(made) };
                return 0;
            }
            // The program is not told of this one.
            None => id.events.acknowledge(1),
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
    // SAFETY: the program gives back what it got.
    let event = unsafe { take::<EventObject>(event) };
    if let Some(group) = &event.group {
        group.events.acknowledge(1);
    }
    event.id.events.acknowledge(1);
    0
}

fn make(queued: Queued) -> Option<Box<EventObject>> {
    let id = &queued.id;
    match queued.what {
        Happening::Cm(event) => from_cm(id, *event),
        Happening::Plain(event, status) => Some(EventObject::new(id, event, status)),
        Happening::Joined(group) => {
            let (event, status) = match group.attach(id) {
                Ok(()) => (RDMA_CM_EVENT_MULTICAST_JOIN, 0),
                Err(errno) => (RDMA_CM_EVENT_MULTICAST_ERROR, -errno),
            };
            let mut made = EventObject::new(id, event, status);
            made.c().param.ud = group.param();
            group.events.deliver();
            made.group = Some(group);
            Some(made)
        }
        Happening::User(status, arg) => {
            let mut made = EventObject::new(id, RDMA_CM_EVENT_USER, status);
            made.c().param.arg = arg;
            Some(made)
        }
    }
}

fn from_cm(id: &Arc<Id>, event: CmEvent) -> Option<Box<EventObject>> {
    let none = zeroed::<rdma_conn_param>();
    let simple = |event, status| Some(EventObject::new(id, event, status));
    match event.event {
        Event::Request(incoming) => {
            let mut made = EventObject::new(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
            made.conn(
                incoming.user_data(),
                rdma_conn_param {
                    responder_resources: incoming.responder_resources,
                    initiator_depth: incoming.initiator_depth,
                    flow_control: incoming.flow_control.into(),
                    retry_count: incoming.retry_count,
                    rnr_retry_count: incoming.rnr_retry_count,
                    srq: incoming.srq.into(),
                    qp_num: incoming.remote_qpn,
                    ..none
                },
            );
            let new = incoming::connection(id, event.link, &incoming, event.qp)?;
            (made.c().listen_id, made.c().id) = (id.c(), new);
            Some(made)
        }
        Event::SidrRequest(incoming) => {
            let mut made = EventObject::new(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
            made.datagram(incoming.user_data(), zeroed());
            let new = incoming::question(id, event.link, &incoming)?;
            (made.c().listen_id, made.c().id) = (id.c(), new);
            Some(made)
        }
        Event::Response {
            conn,
            responder_resources,
            initiator_depth,
            flow_control,
            srq,
            ece,
            private_data,
        } => {
            {
                let mut inner = id.inner();
                inner.qp = event.qp;
                inner.remote_ece = ece;
            }
            let qp = event.qp.unwrap_or_default();
            let link = event.link;
            let (kind, status) = respond(id, CmId { link, id: conn });
            let mut made = EventObject::new(id, kind, status);
            made.conn(
                &private_data[..],
                rdma_conn_param {
                    responder_resources,
                    initiator_depth,
                    flow_control: flow_control.into(),
                    rnr_retry_count: qp.rnr_retry_count,
                    srq: srq.into(),
                    qp_num: qp.remote_qpn,
                    ..none
                },
            );
            Some(made)
        }
        Event::Established { .. } => simple(RDMA_CM_EVENT_ESTABLISHED, 0),
        Event::Rejected {
            reason,
            private_data,
            ..
        } => {
            if id.inner().failed {
                return None;
            }
            // As the peer does not want us, what was posted comes back.
            let _no_queue_pair = to_error(id);
            let mut made = EventObject::new(id, RDMA_CM_EVENT_REJECTED, reason.0.into());
            made.conn(&private_data[..], none);
            Some(made)
        }
        Event::Unreachable { .. } => simple(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
        Event::Disconnected { by, .. } => {
            let status = match by {
                Closed::TimedOut => -libc::ETIMEDOUT,
                _ => 0,
            };
            let failed = id.inner().failed;
            (!failed).then(|| EventObject::new(id, RDMA_CM_EVENT_DISCONNECTED, status))
        }
        Event::TimewaitExit { .. } => simple(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0),
        Event::SidrReply {
            status: SidrStatus::VALID,
            qpn,
            qkey,
            ece,
            private_data,
            ..
        } => {
            id.inner().remote_ece = ece;
            let mut made = EventObject::new(id, RDMA_CM_EVENT_ESTABLISHED, 0);
            made.datagram(
                &private_data[..],
                rdma_ud_param {
                    ah_attr: datagram::way(id).unwrap_or_else(zeroed),
                    qp_num: qpn,
                    qkey,
                    ..zeroed()
                },
            );
            Some(made)
        }
        Event::SidrReply { status, .. } => simple(RDMA_CM_EVENT_UNREACHABLE, status.0.into()),
        Event::SidrUnreachable { .. } => simple(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
    }
}

/// Our request was accepted: the queue pair is moved and the peer told. A program
/// that moves its queue pair itself does that with `rdma_establish`.
fn respond(id: &Arc<Id>, conn: CmId<ferroce_cm::ConnId>) -> (rdma_cm_event_type, c_int) {
    // SAFETY: the program's object; its threads call us.
    if unsafe { (*id.c()).qp.is_null() } {
        return (RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
    }
    let done = to_ready(id, None).and_then(|()| establish(id, conn));
    match done {
        Ok(()) => (RDMA_CM_EVENT_ESTABLISHED, 0),
        Err(errno) => {
            let _anyway = to_error(id);
            id.inner().failed = true;
            (RDMA_CM_EVENT_CONNECT_ERROR, -errno)
        }
    }
}

/// Tells the peer that our queue pair is ready.
pub(crate) fn establish(id: &Arc<Id>, conn: CmId<ferroce_cm::ConnId>) -> Outcome {
    match Line::get()?.call(CmCall::Establish { conn }, None)? {
        CmAnswer::Established { snapshot } => {
            id.inner().snapshot = Some(*snapshot);
            Ok(())
        }
        _ => Err(unexpected()),
    }
}

/// A synchronous id waits for the event that a call of its leads to.
pub(crate) fn complete(id: &Arc<Id>) -> Outcome {
    if !id.inner().synchronous {
        return Ok(());
    }
    let c = id.c();
    // SAFETY: the program's object; its threads call us.
    unsafe {
        if !(*c).event.is_null() {
            rdma_ack_cm_event((*c).event);
            (*c).event = ptr::null_mut();
        }
        await_event((*c).channel)?;
        if rdma_get_cm_event((*c).channel, &raw mut (*c).event) != 0 {
            return Err(super::last_errno());
        }
        let event = &*(*c).event;
        match (event.event, event.status) {
            (_, 0) => Ok(()),
            (RDMA_CM_EVENT_REJECTED, _) => Err(refuse(
                libc::ECONNREFUSED,
                "the peer rejected the connection",
            )),
            (_, status) => Err(status.abs()),
        }
    }
}

/// Waits for an event that ferroced will send sooner or later, unless it is stopped: then
/// the event may never come.
///
/// # Safety
/// A live channel of ours.
unsafe fn await_event(channel: *mut rdma_event_channel) -> Outcome {
    // SAFETY: by contract.
    let channel = unsafe { channel_of(channel) };
    let channel = channel.ok_or_else(|| refuse(libc::EINVAL, "the event channel is NULL"))?;
    while !channel.is_ready(ANSWER_TIMEOUT) {
        Line::get()?.probe()?;
    }
    Ok(())
}
