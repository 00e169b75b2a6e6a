//! Asynchronous events: what happened to a device, its port or an object.

use core::ffi::c_int;

use ferroce_device::AsyncEvent;

use crate::context::{ContextObject, context_of};
use crate::errno::minus_one;
use crate::ffi::*;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: by contract the context is open.
    let context = unsafe { context_of(context) };
    loop {
        let taken = match context.device.take_event() {
            Ok(taken) => taken,
            Err(error) => return minus_one(error.raw_os_error().unwrap_or(libc::EIO)),
        };
        // An object that has gone has no events any more.
        if let Some(translated) = translate(context, &taken) {
            // SAFETY: by contract the program's pointer is valid.
            unsafe { event.write(translated) };
            return 0;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: by contract this is an event the program got, so the object it
    // names is alive, and which one it names follows from its type.
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

/// The event in the words of C; none if its object is gone.
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
