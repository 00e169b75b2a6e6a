//! The connection manager of rsockets: this library's librdmacm.

use core::ffi::{c_int, c_void};
use core::mem::size_of_val;
use core::ptr;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ferroce_device::transport::Pd;
use ferroce_device::{Device, Qp};
use ferroce_rsocket::cm::{self, Event, EventKind, IdOption, PortSpace};
use ferroce_rsocket::{Errno, Result};

use super::address;
use crate::context::context_of;
use crate::ffi::*;
use crate::object::from_c;
use crate::pd::PdObject;
use crate::qp::{give, ibv_destroy_qp, ibv_modify_qp};
use crate::rdmacm::line::Line;
use crate::rdmacm::*;

/// Milliseconds until an address or a route counts as unreachable.
const RESOLVE_TIMEOUT: c_int = 2000;

/// The connection manager of this process.
#[derive(Debug)]
pub(crate) struct Manager;

impl cm::Manager for Manager {
    fn create_id(&self, space: PortSpace) -> Result<Box<dyn cm::Id>> {
        let channel = Channel::new()?;
        let space = match space {
            PortSpace::Tcp => RDMA_PS_TCP,
            PortSpace::Udp => RDMA_PS_UDP,
        };
        let mut id = ptr::null_mut();
        // SAFETY: the channel is live, and `id` is a place for the new id.
        check(unsafe { rdma_create_id(channel.0, &mut id, ptr::null_mut(), space) })?;
        Ok(Box::new(Id { id, channel }))
    }

    fn probe(&self) -> Result<()> {
        Line::get().and_then(Line::probe).map_err(number)
    }
}

/// An event channel, destroyed when it is dropped.
#[derive(Debug)]
struct Channel(*mut rdma_event_channel);

/// An id and its channel. The id goes before the channel.
#[derive(Debug)]
struct Id {
    id: *mut rdma_cm_id,
    channel: Channel,
}

// SAFETY: librdmacm's functions may be called from any thread.
unsafe impl Send for Id {}
// SAFETY: librdmacm's functions lock the id.
unsafe impl Sync for Id {}

/// The id of a connection request.
#[derive(Debug)]
struct Request(*mut rdma_cm_id);

// SAFETY: librdmacm's functions may be called from any thread.
unsafe impl Send for Request {}

fn number(errno: c_int) -> Errno {
    Errno::from_raw_os_error(errno)
}

/// Returns `errno` if a function of librdmacm failed.
fn check(result: c_int) -> Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

impl Channel {
    /// Creates a non-blocking channel.
    fn new() -> Result<Channel> {
        // SAFETY: the function has no arguments.
        let channel = unsafe { rdma_create_event_channel() };
        if channel.is_null() {
            return Err(last_errno());
        }
        let channel = Channel(channel);
        let flags = rustix::fs::fcntl_getfl(channel.fd())?;
        rustix::fs::fcntl_setfl(channel.fd(), flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel and its descriptor live as long as `self`.
        unsafe { BorrowedFd::borrow_raw((*self.0).fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the channel is ours, and its id is gone.
        unsafe { rdma_destroy_event_channel(self.0) };
    }
}

impl Id {
    /// Moves the queue pair to INIT, or to RTS if it sends datagrams.
    fn start_qp(&self) -> Result<()> {
        let (mut attr, mut mask): (ibv_qp_attr, c_int) = (zeroed(), 0);
        attr.qp_state = IBV_QPS_INIT;
        // SAFETY: the id is live, and both are places for the result.
        check(unsafe { rdma_init_qp_attr(self.id, &mut attr, &mut mask) })?;
        // SAFETY: the id is live and has a queue pair.
        let (qp, qp_type) = unsafe { ((*self.id).qp, (*self.id).qp_type) };
        // SAFETY: the queue pair is live, and the attributes are only read.
        let mut modify = |mask| match unsafe { ibv_modify_qp(qp, &mut attr, mask) } {
            0 => {
                attr.qp_state += 1;
                Ok(())
            }
            errno => Err(number(errno)),
        };
        modify(mask)?;
        if qp_type == IBV_QPT_UD {
            modify(IBV_QP_STATE as c_int)?;
            modify((IBV_QP_STATE | IBV_QP_SQ_PSN) as c_int)?;
        }
        Ok(())
    }
}

impl cm::Id for Id {
    fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    fn device(&self) -> Option<(Arc<Device>, Arc<Pd>)> {
        // SAFETY: the id is live; its context and its domain live as long as the process.
        unsafe {
            let verbs = (*self.id).verbs;
            let pd = from_c::<PdObject>((*self.id).pd)?;
            let device = Arc::clone(&context_of(verbs).device);
            Some((device, Arc::clone(pd.pd())))
        }
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the id is live; an address without a family reads as none.
        unsafe { address::read(&raw const (*self.id).route.addr.src.src_addr, 128).ok() }
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the id is live; an address without a family reads as none.
        unsafe { address::read(&raw const (*self.id).route.addr.dst.dst_addr, 128).ok() }
    }

    fn bind(&self, addr: &SocketAddr) -> Result<()> {
        let (mut addr, _) = address::to_c(addr);
        // SAFETY: the id is live, and the address is a `sockaddr_storage`.
        check(unsafe { rdma_bind_addr(self.id, (&raw mut addr).cast()) })
    }

    fn bind_to_device(&self, addr: &SocketAddr) -> Result<()> {
        self.bind(addr)?;
        // SAFETY: the id is live.
        unsafe { id_of(self.id).and_then(adopt_device) }.map_err(number)
    }

    fn listen(&self, backlog: i32) -> Result<()> {
        // SAFETY: the id is live.
        check(unsafe { rdma_listen(self.id, backlog) })
    }

    fn resolve_addr(&self, to: &SocketAddr) -> Result<()> {
        let (mut to, _) = address::to_c(to);
        let any = ptr::null_mut();
        // SAFETY: the id is live, and the address is a `sockaddr_storage`.
        check(unsafe { rdma_resolve_addr(self.id, any, (&raw mut to).cast(), RESOLVE_TIMEOUT) })
    }

    fn resolve_route(&self) -> Result<()> {
        // SAFETY: the id is live.
        check(unsafe { rdma_resolve_route(self.id, RESOLVE_TIMEOUT) })
    }

    fn set_option(&self, option: IdOption<'_>) -> Result<()> {
        let number;
        let (level, name, value): (_, _, &[u8]) = match option {
            IdOption::ReuseAddress(on) => {
                number = c_int::from(on).to_ne_bytes();
                (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &number)
            }
            IdOption::V6Only(on) => {
                number = c_int::from(on).to_ne_bytes();
                (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &number)
            }
            IdOption::TypeOfService(service) => {
                (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &[service][..])
            }
            IdOption::Path(path) => (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path),
        };
        let from = value.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the id is live, and the value is only read.
        check(unsafe { rdma_set_option(self.id, level, name, from, size_of_val(value)) })
    }

    fn attach(&self, qp: &Arc<Qp>) -> Result<()> {
        // SAFETY: the id is live and has a device; the new object is the only one that the id
        // uses, until `detach`.
        unsafe {
            let base = ibv_qp {
                context: (*self.id).verbs,
                pd: (*self.id).pd,
                qp_type: (*self.id).qp_type,
                ..zeroed()
            };
            (*self.id).qp = give(base, Arc::clone(qp), false, Default::default());
        }
        self.start_qp()
    }

    fn detach(&self) {
        // SAFETY: the id is live, and its queue pair is the object of `attach` or NULL.
        unsafe {
            if !(*self.id).qp.is_null() {
                ibv_destroy_qp((*self.id).qp);
                (*self.id).qp = ptr::null_mut();
            }
        }
    }

    fn connect(&self, private_data: &[u8]) -> Result<()> {
        let mut param = parameters(private_data);
        // SAFETY: the id is live, and the parameters are only read.
        check(unsafe { rdma_connect(self.id, &mut param) })
    }

    fn accept(&self, private_data: &[u8]) -> Result<()> {
        let mut param = parameters(private_data);
        // SAFETY: the id is live, and the parameters are only read.
        check(unsafe { rdma_accept(self.id, &mut param) })
    }

    fn event(&self) -> Result<Option<Event>> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is live, and `event` is a place for the event.
        match check(unsafe { rdma_get_cm_event(self.channel.0, &mut event) }) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno),
            Ok(()) => {}
        }
        // SAFETY: the event was just delivered, and is read before it is acknowledged.
        unsafe {
            let conn = (*event).param.conn;
            let private_data = if conn.private_data.is_null() {
                Vec::new()
            } else {
                let length = conn.private_data_len.into();
                core::slice::from_raw_parts(conn.private_data.cast::<u8>(), length).to_vec()
            };
            let kind = kind_of(&*event);
            rdma_ack_cm_event(event);
            Ok(Some(Event { kind, private_data }))
        }
    }
}

fn kind_of(event: &rdma_cm_event) -> EventKind {
    match event.event {
        RDMA_CM_EVENT_ADDR_RESOLVED => EventKind::AddressResolved,
        RDMA_CM_EVENT_ROUTE_RESOLVED => EventKind::RouteResolved,
        RDMA_CM_EVENT_CONNECT_REQUEST => EventKind::ConnectRequest(Box::new(Request(event.id))),
        RDMA_CM_EVENT_ESTABLISHED => EventKind::Established,
        RDMA_CM_EVENT_REJECTED => EventKind::Rejected,
        RDMA_CM_EVENT_ADDR_ERROR
        | RDMA_CM_EVENT_ROUTE_ERROR
        | RDMA_CM_EVENT_CONNECT_ERROR
        | RDMA_CM_EVENT_UNREACHABLE => EventKind::Unreachable(match event.status {
            status @ ..0 => number(-status),
            _ => Errno::HOSTUNREACH,
        }),
        RDMA_CM_EVENT_DISCONNECTED => EventKind::Disconnected,
        RDMA_CM_EVENT_DEVICE_REMOVAL => EventKind::DeviceRemoved,
        _ => EventKind::Other,
    }
}

/// Returns the parameters that rdma-core's rsockets use: no READs, 7 retries.
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

impl cm::Request for Request {
    fn into_id(self: Box<Self>) -> Result<Box<dyn cm::Id>> {
        let channel = Channel::new()?;
        // SAFETY: the id and the channel are live.
        check(unsafe { rdma_migrate_id(self.0, channel.0) })?;
        let id = self.0;
        core::mem::forget(self);
        Ok(Box::new(Id { id, channel }))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the id is ours, and all its events were acknowledged.
        unsafe { rdma_destroy_id(self.id) };
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // SAFETY: the id is ours.
        unsafe {
            rdma_reject(self.0, ptr::null(), 0);
            rdma_destroy_id(self.0);
        }
    }
}
