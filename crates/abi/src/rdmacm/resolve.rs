//! `rdma_bind_addr`, `rdma_resolve_addr`, `rdma_resolve_route` and `rdma_listen`.

use core::ffi::c_int;
use core::net::SocketAddr;
use core::time::Duration;

use libc::sockaddr;

use super::address::read;
use super::event::complete;
use super::id::{IdObject, id_of, object_of};
use super::{Outcome, finish, refused};
use crate::ffi::*;
use crate::provoke::provoke;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    provoke!("rdma_bind_addr" => minus_one);
    finish(id_of(id).and_then(|id| {
        // SAFETY: the program passes NULL or a whole address.
        let address = unsafe { read(addr) }?;
        bind(&id, address)
    }))
}

pub(crate) fn bind(id: &IdObject, address: SocketAddr) -> Outcome {
    id.id.bind(address).map_err(refused("rdma_bind_addr"))?;
    id.publish()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    provoke!("rdma_resolve_addr" => minus_one);
    let timeout = Duration::from_millis(u64::from(timeout_ms.cast_unsigned()));
    finish(id_of(id).and_then(|id| {
        // SAFETY: the program passes NULL or whole addresses.
        let (source, destination) = unsafe {
            let source = match src_addr.is_null() {
                true => None,
                false => Some(read(src_addr)?),
            };
            (source, read(dst_addr)?)
        };
        resolve(&id, source, destination, timeout)
    }))
}

pub(crate) fn resolve(
    id: &IdObject,
    source: Option<SocketAddr>,
    destination: SocketAddr,
    timeout: Duration,
) -> Outcome {
    let resolved = id.id.resolve_addr(source, destination, timeout);
    resolved.map_err(refused("rdma_resolve_addr"))?;
    id.publish()?;
    complete(id)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    provoke!("rdma_resolve_route" => minus_one);
    finish(id_of(id).and_then(|id| route(&id)))
}

pub(crate) fn route(id: &IdObject) -> Outcome {
    start_route(id)?;
    complete(id)
}

/// Resolves the route as [`route`] does, and leaves it to the program to wait for the event.
pub(crate) fn start_route(id: &IdObject) -> Outcome {
    let resolved = id.id.resolve_route();
    resolved.map_err(refused("rdma_resolve_route"))?;
    id.publish()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    provoke!("rdma_listen" => minus_one);
    finish(id_of(id).and_then(|id| {
        let backlog = u32::try_from(backlog).unwrap_or(0);
        id.id.listen(backlog).map_err(refused("rdma_listen"))?;
        id.publish()
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> __be16 {
    port(object_of(id).ok().and_then(|id| id.id.local_addr()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> __be16 {
    port(object_of(id).ok().and_then(|id| id.id.peer_addr()))
}

/// Returns the port of an address in network byte order; 0 without an address.
fn port(address: Option<SocketAddr>) -> __be16 {
    address.map_or(0, |address| address.port().to_be())
}
