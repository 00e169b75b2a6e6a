//! A connection identifier of librdmacm with a channel of its own.
//!
//! All calls are asynchronous, and reading events never blocks: whoever waits, waits
//! for the descriptor.

use core::ffi::{c_int, c_void};
use core::mem::size_of_val;
use core::ptr;
use std::net::SocketAddr;

use crate::ffi::*;
use crate::rdmacm::*;

use super::address;
use super::sys;

/// Milliseconds until an address or a route counts as not found.
const RESOLVE_TIMEOUT: c_int = 2000;

/// An identifier and its channel.
#[derive(Debug)]
pub(crate) struct Id {
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
}

// SAFETY: librdmacm's functions may be called from any thread.
unsafe impl Send for Id {}
// SAFETY: as above; all shared state is behind librdmacm's own locks.
unsafe impl Sync for Id {}

/// What happened to a connection.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: rdma_cm_event_type,
    pub(crate) status: c_int,
    pub(crate) private_data: Vec<u8>,
    /// The new identifier of a request.
    pub(crate) request: Option<Request>,
}

/// Somebody wants to connect. Rejected, unless it is accepted.
#[derive(Debug)]
pub(crate) struct Request {
    id: *mut rdma_cm_id,
}

// SAFETY: librdmacm's functions may be called from any thread.
unsafe impl Send for Request {}

/// The last error of a function of librdmacm.
fn check(result: c_int) -> Result<(), c_int> {
    if result == 0 {
        Ok(())
    } else {
        Err(sys::errno())
    }
}

fn channel() -> Result<*mut rdma_event_channel, c_int> {
    // SAFETY: no arguments.
    let channel = unsafe { rdma_create_event_channel() };
    if channel.is_null() {
        return Err(sys::errno());
    }
    // SAFETY: a channel that was just made.
    let fd = unsafe { (*channel).fd };
    if let Err(errno) = sys::set_nonblocking(fd, true) {
        // SAFETY: nobody uses it.
        unsafe { rdma_destroy_event_channel(channel) };
        return Err(errno);
    }
    Ok(channel)
}

impl Id {
    pub(crate) fn new(space: rdma_port_space) -> Result<Id, c_int> {
        let channel = channel()?;
        let mut id = ptr::null_mut();
        // SAFETY: a live channel, and a place for the identifier.
        let made = check(unsafe { rdma_create_id(channel, &mut id, ptr::null_mut(), space) });
        match made {
            Ok(()) => Ok(Id { id, channel }),
            Err(errno) => {
                // SAFETY: nobody uses it.
                unsafe { rdma_destroy_event_channel(channel) };
                Err(errno)
            }
        }
    }

    /// Takes a request to a channel of its own.
    pub(crate) fn from_request(request: Request) -> Result<Id, c_int> {
        let channel = channel()?;
        // SAFETY: a live identifier and a live channel.
        let moved = check(unsafe { rdma_migrate_id(request.id, channel) });
        if let Err(errno) = moved {
            // SAFETY: nobody uses it.
            unsafe { rdma_destroy_event_channel(channel) };
            return Err(errno);
        }
        let id = request.id;
        core::mem::forget(request);
        Ok(Id { id, channel })
    }

    /// The descriptor that is readable when there are events.
    pub(crate) fn fd(&self) -> c_int {
        // SAFETY: the channel lives as long as this, and its descriptor never changes.
        unsafe { (*self.channel).fd }
    }

    pub(crate) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.id
    }

    /// The device, once it is known.
    pub(crate) fn verbs(&self) -> *mut ibv_context {
        // SAFETY: a live identifier.
        unsafe { (*self.id).verbs }
    }

    /// The protection domain, once the device is known.
    pub(crate) fn pd(&self) -> *mut ibv_pd {
        // SAFETY: a live identifier.
        unsafe { (*self.id).pd }
    }

    pub(crate) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: a live identifier; addresses of no family read as none.
        unsafe { address::read(&raw const (*self.id).route.addr.src.src_addr, 128).ok() }
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: a live identifier; addresses of no family read as none.
        unsafe { address::read(&raw const (*self.id).route.addr.dst.dst_addr, 128).ok() }
    }

    pub(crate) fn bind(&self, addr: &SocketAddr) -> Result<(), c_int> {
        let (mut addr, _) = address::to_c(addr);
        // SAFETY: a live identifier, an address.
        check(unsafe { rdma_bind_addr(self.id, (&raw mut addr).cast()) })
    }

    /// As [`bind`](Self::bind), for somebody who needs the device at once.
    pub(crate) fn bind_to_device(&self, addr: &SocketAddr) -> Result<(), c_int> {
        self.bind(addr)?;
        // SAFETY: a live identifier.
        unsafe { id_of(self.id).and_then(adopt_device) }
    }

    pub(crate) fn listen(&self, backlog: c_int) -> Result<(), c_int> {
        // SAFETY: a live identifier.
        check(unsafe { rdma_listen(self.id, backlog) })
    }

    pub(crate) fn resolve_addr(&self, to: &SocketAddr) -> Result<(), c_int> {
        let (mut to, _) = address::to_c(to);
        let none = ptr::null_mut();
        // SAFETY: a live identifier, an address.
        check(unsafe { rdma_resolve_addr(self.id, none, (&raw mut to).cast(), RESOLVE_TIMEOUT) })
    }

    pub(crate) fn resolve_route(&self) -> Result<(), c_int> {
        // SAFETY: a live identifier.
        check(unsafe { rdma_resolve_route(self.id, RESOLVE_TIMEOUT) })
    }

    /// An option of librdmacm with a value of any type.
    pub(crate) fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Result<(), c_int> {
        let pointer = value.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: a live identifier; the value is only read.
        check(unsafe { rdma_set_option(self.id, level, name, pointer, size_of_val(value)) })
    }

    pub(crate) fn connect(&self, private_data: &[u8]) -> Result<(), c_int> {
        let mut param = parameters(private_data);
        // SAFETY: a live identifier; the parameters are only read.
        check(unsafe { rdma_connect(self.id, &mut param) })
    }

    pub(crate) fn accept(&self, private_data: &[u8]) -> Result<(), c_int> {
        let mut param = parameters(private_data);
        // SAFETY: a live identifier; the parameters are only read.
        check(unsafe { rdma_accept(self.id, &mut param) })
    }

    /// The next event, if there is one.
    pub(crate) fn event(&self) -> Result<Option<Event>, c_int> {
        let mut event = ptr::null_mut();
        // SAFETY: a live channel, and a place for the event.
        match check(unsafe { rdma_get_cm_event(self.channel, &mut event) }) {
            Err(libc::EAGAIN | libc::EINTR) => return Ok(None),
            Err(errno) => return Err(errno),
            Ok(()) => {}
        }
        // SAFETY: an event that was just delivered; acknowledged after it was read.
        unsafe {
            let kind = (*event).event;
            let conn = (*event).param.conn;
            let private_data = if conn.private_data.is_null() {
                Vec::new()
            } else {
                let length = conn.private_data_len.into();
                core::slice::from_raw_parts(conn.private_data.cast::<u8>(), length).to_vec()
            };
            let request = (kind == RDMA_CM_EVENT_CONNECT_REQUEST).then_some((*event).id);
            let taken = Event {
                kind,
                status: (*event).status,
                private_data,
                request: request.map(|id| Request { id }),
            };
            rdma_ack_cm_event(event);
            Ok(Some(taken))
        }
    }
}

/// As in `rsocket-v4.pcap`: no READs, as many tries as possible.
fn parameters(private_data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private_data.as_ptr().cast(),
        private_data_len: private_data.len() as u8,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: nobody uses them any more; all events were acknowledged.
        unsafe {
            rdma_destroy_id(self.id);
            rdma_destroy_event_channel(self.channel);
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // SAFETY: the identifier of a request that nobody has taken.
        unsafe {
            rdma_reject(self.id, ptr::null(), 0);
            rdma_destroy_id(self.id);
        }
    }
}
