//! Asynchronous events of a device, its port and its objects.

use core::ffi::c_int;

use ferroce_device::AsyncEvent;

use crate::context::{ContextObject, context, context_of};
use crate::errno::{minus_one, refuse};
use crate::ffi::*;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let context = context!(context, "ibv_get_async_event: the context is NULL" => minus_one);
    if event.is_null() {
        let why = "ibv_get_async_event: the place for the event is NULL";
        return minus_one(refuse(libc::EINVAL, why));
    }
    loop {
        let taken = match context.device.take_event() {
            Ok(taken) => taken,
            Err(error) => return minus_one(error.raw_os_error().unwrap_or(libc::EIO)),
        };
        // Events of destroyed objects are dropped.
        if let Some(translated) = translate(context, &taken) {
            // SAFETY: the program passes a structure for the event, and not NULL.
            unsafe { event.write(translated) };
            return 0;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the event came from `ibv_get_async_event`, so its object is live until the
    // event is acknowledged, and the event's type selects the union field.
    unsafe {
        let element = (*event).element;
        match (*event).event_type {
            IBV_EVENT_CQ_ERR => {
                let objects = &context_of((*element.cq).context).objects;
                objects.cqs.acknowledge(element.cq);
            }
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_PATH_MIG
            | IBV_EVENT_PATH_MIG_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED => {
                let objects = &context_of((*element.qp).context).objects;
                objects.qps.acknowledge(element.qp);
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                let objects = &context_of((*element.srq).context).objects;
                objects.srqs.acknowledge(element.srq);
            }
            _ => {}
        }
    }
}

/// Converts an event; `None` if its object is destroyed.
fn translate(context: &ContextObject, event: &AsyncEvent) -> Option<ibv_async_event> {
    let objects = &context.objects;
    let port = ibv_async_event_element { port_num: 1 };
    let (event_type, element) = match *event {
        AsyncEvent::CqError { cq } => {
            let cq = objects.cqs.deliver(cq)?;
            (IBV_EVENT_CQ_ERR, ibv_async_event_element { cq })
        }
        AsyncEvent::Qp { qpn, kind } => {
            let qp = objects.qps.deliver(qpn)?;
            (kind as ibv_event_type, ibv_async_event_element { qp })
        }
        AsyncEvent::SrqLimitReached { srq } => {
            let srq = objects.srqs.deliver(srq)?;
            (IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_event_element { srq })
        }
        AsyncEvent::PortActive => (IBV_EVENT_PORT_ACTIVE, port),
        AsyncEvent::PortError => (IBV_EVENT_PORT_ERR, port),
        AsyncEvent::GidChange => (IBV_EVENT_GID_CHANGE, port),
        AsyncEvent::DeviceFatal => (IBV_EVENT_DEVICE_FATAL, port),
    };
    Some(ibv_async_event {
        element,
        event_type,
    })
}
