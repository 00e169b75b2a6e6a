//! Steps of a connection, for both ends.

use core::ffi::c_void;
use core::net::SocketAddr;
use core::ptr;
use std::os::fd::BorrowedFd;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use ferroce_testnet::deadline;
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::common::{errno, made, zeros};

/// Asserts that a call succeeded.
#[track_caller]
pub(crate) fn good(code: i32) {
    assert_eq!(code, 0, "errno {}", errno());
}

/// Asserts that a call was refused with this errno.
#[track_caller]
pub(crate) fn bad(code: i32, why: i32) {
    let errno = errno();
    assert_eq!((code, errno), (-1, why));
}

/// Returns an address as a C structure.
pub(crate) fn address(text: &str) -> sockaddr_storage {
    let mut storage: sockaddr_storage = zeros();
    let to = &raw mut storage;
    match text.parse().expect("an address") {
        SocketAddr::V4(v4) => unsafe {
            (*to.cast::<sockaddr_in>()).sin_family = libc::AF_INET as u16;
            (*to.cast::<sockaddr_in>()).sin_port = v4.port().to_be();
            (*to.cast::<sockaddr_in>()).sin_addr.s_addr = v4.ip().to_bits().to_be();
        },
        SocketAddr::V6(v6) => unsafe {
            (*to.cast::<sockaddr_in6>()).sin6_family = libc::AF_INET6 as u16;
            (*to.cast::<sockaddr_in6>()).sin6_port = v6.port().to_be();
            (*to.cast::<sockaddr_in6>()).sin6_addr.s6_addr = v6.ip().octets();
        },
    }
    storage
}

pub(crate) fn raw(storage: &mut sockaddr_storage) -> *mut sockaddr {
    ptr::from_mut(storage).cast()
}

/// Returns an address with the source port of an id.
pub(crate) unsafe fn at_port(text: &str, id: *mut rdma_cm_id) -> sockaddr_storage {
    let mut storage = address(text);
    (*(&raw mut storage).cast::<sockaddr_in>()).sin_port = rdma_get_src_port(id);
    storage
}

pub(crate) fn channel() -> *mut rdma_event_channel {
    made(unsafe { rdma_create_event_channel() })
}

pub(crate) unsafe fn new_id(channel: *mut rdma_event_channel, ps: u32) -> *mut rdma_cm_id {
    let mut id = ptr::null_mut();
    good(rdma_create_id(channel, &mut id, ptr::null_mut(), ps));
    id
}

/// Waits for the next event of a channel.
#[track_caller]
pub(crate) fn next(channel: *mut rdma_event_channel) -> *mut rdma_cm_event {
    let mut event = ptr::null_mut();
    unsafe {
        deadline::readable(BorrowedFd::borrow_raw((*channel).fd), "an event");
        good(rdma_get_cm_event(channel, &mut event));
    }
    event
}

/// Waits for the next event, which must be this one with status 0, and acknowledges it.
#[track_caller]
pub(crate) fn expect(channel: *mut rdma_event_channel, wanted: u32) -> rdma_cm_event {
    let event = next(channel);
    let copy = unsafe { *event };
    assert_eq!((copy.event, copy.status), (wanted, 0));
    good(unsafe { rdma_ack_cm_event(event) });
    copy
}

/// Creates a listener on this address.
pub(crate) unsafe fn listener(
    channel: *mut rdma_event_channel,
    ps: u32,
    text: &str,
) -> *mut rdma_cm_id {
    let id = new_id(channel, ps);
    good(rdma_bind_addr(id, raw(&mut address(text))));
    good(rdma_listen(id, 8));
    assert_ne!(rdma_get_src_port(id), 0);
    id
}

/// Creates an id that is resolved to an address.
pub(crate) unsafe fn resolved(
    channel: *mut rdma_event_channel,
    ps: u32,
    to: &mut sockaddr_storage,
) -> *mut rdma_cm_id {
    let id = new_id(channel, ps);
    good(rdma_resolve_addr(id, ptr::null_mut(), raw(to), 1000));
    let event = expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(event.id, id);
    assert!(!(*id).verbs.is_null() && !(*id).pd.is_null());
    assert_eq!((*id).port_num, 1);
    good(rdma_resolve_route(id, 1000));
    expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    assert_eq!((*id).route.num_paths, 1);
    id
}

/// Creates the queue pair of an id, with completion queues of its own.
pub(crate) unsafe fn queue_pair(id: *mut rdma_cm_id) {
    let mut init: ibv_qp_init_attr = zeros();
    init.qp_type = (*id).qp_type;
    init.cap.max_send_wr = 4;
    init.cap.max_recv_wr = 4;
    init.cap.max_send_sge = 1;
    init.cap.max_recv_sge = 1;
    good(rdma_create_qp(id, ptr::null_mut(), &mut init));
    assert!(!(*id).send_cq.is_null() && !(*id).recv_cq_channel.is_null());
}

/// Returns parameters of a connection.
pub(crate) fn param(data: &[u8]) -> rdma_conn_param {
    let mut param: rdma_conn_param = zeros();
    param.private_data = data.as_ptr().cast::<c_void>();
    param.private_data_len = data.len() as u8;
    param.responder_resources = 2;
    param.initiator_depth = 3;
    param.retry_count = 5;
    param.rnr_retry_count = 6;
    param
}

/// Returns the private data of an event that is not acknowledged yet.
pub(crate) unsafe fn data<'a>(event: *mut rdma_cm_event) -> &'a [u8] {
    let conn = &(*event).param.conn;
    core::slice::from_raw_parts(conn.private_data.cast(), conn.private_data_len.into())
}

/// Connects two ids on one channel: the active one, the passive one.
pub(crate) unsafe fn connect(
    channel: *mut rdma_event_channel,
    to: &mut sockaddr_storage,
) -> (*mut rdma_cm_id, *mut rdma_cm_id) {
    let active = resolved(channel, RDMA_PS_TCP, to);
    queue_pair(active);
    good(rdma_connect(active, &mut param(b"hello")));
    let passive = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
    queue_pair(passive);
    good(rdma_accept(passive, &mut param(b"welcome")));
    for _ in 0..2 {
        let event = expect(channel, RDMA_CM_EVENT_ESTABLISHED);
        assert!(event.id == active || event.id == passive);
    }
    (active, passive)
}

/// Destroys an id and its queue pair.
pub(crate) unsafe fn destroy(id: *mut rdma_cm_id) {
    if !(*id).qp.is_null() {
        rdma_destroy_qp(id);
    }
    good(rdma_destroy_id(id));
}
