//! Functions that are still to come: each says `ENOSYS`.

use core::ffi::{c_char, c_int, c_void};

use libc::sockaddr;

use crate::errno::{minus_one, null};
use crate::ffi::*;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    null(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(_channel: *mut rdma_event_channel) {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    _channel: *mut rdma_event_channel,
    _id: *mut *mut rdma_cm_id,
    _context: *mut c_void,
    _ps: rdma_port_space,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    _id: *mut *mut rdma_cm_id,
    _res: *mut rdma_addrinfo,
    _pd: *mut ibv_pd,
    _qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(_id: *mut rdma_cm_id) {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(_id: *mut rdma_cm_id) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(_id: *mut rdma_cm_id, _addr: *mut sockaddr) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    _id: *mut rdma_cm_id,
    _src_addr: *mut sockaddr,
    _dst_addr: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(_id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    _id: *mut rdma_cm_id,
    _pd: *mut ibv_pd,
    _qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(
    _id: *mut rdma_cm_id,
    _qp_init_attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(_id: *mut rdma_cm_id) {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(
    _id: *mut rdma_cm_id,
    _pd: *mut ibv_pd,
    _attr: *mut ibv_srq_init_attr,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(
    _id: *mut rdma_cm_id,
    _attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(_id: *mut rdma_cm_id) {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(
    _id: *mut rdma_cm_id,
    _conn_param: *mut rdma_conn_param,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(_id: *mut rdma_cm_id) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(_id: *mut rdma_cm_id, _backlog: c_int) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(
    _listen: *mut rdma_cm_id,
    _id: *mut *mut rdma_cm_id,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(
    _id: *mut rdma_cm_id,
    _conn_param: *mut rdma_conn_param,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(
    _id: *mut rdma_cm_id,
    _private_data: *const c_void,
    _private_data_len: u8,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(
    _id: *mut rdma_cm_id,
    _private_data: *const c_void,
    _private_data_len: u8,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(_id: *mut rdma_cm_id, _event: ibv_event_type) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(_id: *mut rdma_cm_id) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast(
    _id: *mut rdma_cm_id,
    _addr: *mut sockaddr,
    _context: *mut c_void,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(_id: *mut rdma_cm_id, _addr: *mut sockaddr) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    _id: *mut rdma_cm_id,
    _attr: *mut rdma_cm_join_mc_attr_ex,
    _context: *mut c_void,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(
    _channel: *mut rdma_event_channel,
    _event: *mut *mut rdma_cm_event,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(_event: *mut rdma_cm_event) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(_id: *mut rdma_cm_id) -> __be16 {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(_id: *mut rdma_cm_id) -> __be16 {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(_num_devices: *mut c_int) -> *mut *mut ibv_context {
    null(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(_list: *mut *mut ibv_context) {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_event_str(_event: rdma_cm_event_type) -> *const c_char {
    c"UNKNOWN EVENT".as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    _id: *mut rdma_cm_id,
    _level: c_int,
    _optname: c_int,
    _optval: *mut c_void,
    _optlen: usize,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(
    _id: *mut rdma_cm_id,
    _channel: *mut rdma_event_channel,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    _node: *const c_char,
    _service: *const c_char,
    _hints: *const rdma_addrinfo,
    _res: *mut *mut rdma_addrinfo,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(_res: *mut rdma_addrinfo) {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    _id: *mut rdma_cm_id,
    _qp_attr: *mut ibv_qp_attr,
    _qp_attr_mask: *mut c_int,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addrinfo(
    _id: *mut rdma_cm_id,
    _node: *const c_char,
    _service: *const c_char,
    _hints: *const rdma_addrinfo,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_query_addrinfo(
    _id: *mut rdma_cm_id,
    _info: *mut *mut rdma_addrinfo,
) -> c_int {
    minus_one(libc::ENOSYS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_write_cm_event(
    _id: *mut rdma_cm_id,
    _event: rdma_cm_event_type,
    _status: c_int,
    _arg: u64,
) -> c_int {
    minus_one(libc::ENOSYS)
}
