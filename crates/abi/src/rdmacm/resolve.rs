//! Addresses and ports: bound, resolved, listened on.

use core::ffi::c_int;
use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;

use ferroce_cm::Address;
use ferroce_cm::ports::Host;
use ferroce_control::{CmAnswer, CmCall};
use libc::sockaddr;

use super::address::{any, host, read, with_port};
use super::channel::Happening;
use super::devices::{self, CmDevice};
use super::event::complete;
use super::id::{Id, Port, State, id_of};
use super::line::Line;
use super::neighbour::Search;
use super::no_port;
use super::unexpected;
use super::{Outcome, finish, lookup, path};
use crate::errno::refuse;
use crate::ffi::*;

/// How long somebody is looked for where nobody says how long, as in librdmacm.
pub(crate) const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Most requests that may wait for a program, as in the kernel.
const MAX_BACKLOG: u32 = 1024;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: the program's id and address.
    finish(unsafe { id_of(id).and_then(|id| bind(id, read(addr)?)) })
}

pub(crate) fn bind(id: &Arc<Id>, address: SocketAddr) -> Outcome {
    id.advance(State::Idle, State::Bound)?;
    let bound = bind_now(id, address, None);
    if bound.is_err() {
        id.inner().state = State::Idle;
    }
    bound
}

/// Gives an id that is bound to a loopback address the device of a link there, which
/// datagrams of rsockets need: they have no connection to bring one.
pub(crate) fn adopt_device(id: &Arc<Id>) -> Outcome {
    let source = id.inner().port.ok_or_else(no_port)?.source;
    if source.ip.is_loopback() {
        id.set_device(devices::by_address(source)?);
    }
    Ok(())
}

fn bind_now(id: &Arc<Id>, address: SocketAddr, destination: Option<(Host, u16)>) -> Outcome {
    let source = host(address);
    let device = device_of(source)?;
    let port = take_port(id, source, address.port(), destination)?;
    if let Some(device) = device {
        id.set_device(device);
    }
    id.set_addresses(with_port(source, port.number), None);
    Ok(())
}

/// The device of an address; none for a wildcard, nor for loopback: as in the kernel an
/// id that is only bound there has no device before it is connected. libfabric finds out
/// that way that such an address says nothing about devices.
fn device_of(source: Host) -> Outcome<Option<&'static CmDevice>> {
    if source.ip.is_unspecified() || source.ip.is_loopback() {
        return Ok(None);
    }
    match devices::by_address(source) {
        Ok(device) => Ok(Some(device)),
        Err(errno) => {
            lookup::check_local(source)?;
            Err(errno)
        }
    }
}

fn take_port(
    id: &Arc<Id>,
    source: Host,
    number: u16,
    destination: Option<(Host, u16)>,
) -> Outcome<Port> {
    let options = id.inner().options;
    let call = || {
        Ok(CmCall::Bind {
            space: id.space,
            source,
            port: number,
            destination,
            reuse: options.reuse,
            af_only: options.af_only,
        })
    };
    match Line::get()?.insist(call, Some(id))? {
        CmAnswer::Bound { port, number } => {
            let port = Port {
                name: port,
                number,
                source,
                destination,
                borrowed: false,
            };
            id.inner().port = Some(port);
            Ok(port)
        }
        _ => Err(unexpected()),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    let timeout = Duration::from_millis(u64::from(timeout_ms.cast_unsigned()));
    // SAFETY: the program's id and addresses.
    finish(unsafe {
        id_of(id).and_then(|id| {
            let source = match src_addr.is_null() {
                true => None,
                false => Some(read(src_addr)?),
            };
            resolve(id, source, read(dst_addr)?, timeout)
        })
    })
}

pub(crate) fn resolve(
    id: &Arc<Id>,
    source: Option<SocketAddr>,
    destination: SocketAddr,
    timeout: Duration,
) -> Outcome {
    let before = id.inner().state;
    let bound = match before {
        State::Idle => {
            let source = source.unwrap_or(SocketAddr::new(any(destination.ip()), 0));
            if source.is_ipv4() != destination.is_ipv4() {
                return Err(refuse(
                    libc::EINVAL,
                    "rdma_resolve_addr: source and destination are of different families",
                ));
            }
            source
        }
        State::Bound => {
            let port = id.inner().port.ok_or_else(no_port)?;
            if port.source.ip.is_ipv4() != destination.is_ipv4() {
                return Err(refuse(
                    libc::EINVAL,
                    "rdma_resolve_addr: the id is bound to an address of the other family",
                ));
            }
            with_port(port.source, port.number)
        }
        _ => {
            return Err(refuse(
                libc::EINVAL,
                "rdma_resolve_addr: the id has been resolved, listens or is connected",
            ));
        }
    };
    // A source that is not ours is refused at once, one that leads nowhere by an event.
    device_of(host(bound))?;
    match resolve_now(id, before, bound, destination) {
        Ok(None) => found(id, true),
        Ok(Some(search)) => {
            let line = Line::get()?;
            if let Err(error) = search.go_on(id, line, timeout, found) {
                tracing::warn!("nobody is looked for: {error}");
                found(id, true);
            }
        }
        Err(Refusal::Now(errno)) => return Err(errno),
        Err(Refusal::Event(errno)) => {
            id.post(Happening::Plain(RDMA_CM_EVENT_ADDR_ERROR, -errno));
        }
    }
    complete(id)
}

/// Somebody is there, or time is up: then another try is possible.
fn found(id: &Arc<Id>, yes: bool) {
    let (state, event, status) = match yes {
        true => (State::AddressResolved, RDMA_CM_EVENT_ADDR_RESOLVED, 0),
        false => (State::Bound, RDMA_CM_EVENT_ADDR_ERROR, -libc::ETIMEDOUT),
    };
    id.inner().state = state;
    id.post(Happening::Plain(event, status));
}

/// How the program is told.
enum Refusal {
    Now(c_int),
    Event(c_int),
}

fn resolve_now(
    id: &Arc<Id>,
    before: State,
    bound: SocketAddr,
    destination: SocketAddr,
) -> Result<Option<Search>, Refusal> {
    let mut to = host(destination);
    if to.ip.is_unspecified() {
        to = devices::first(to.ip.is_ipv4()).map_err(Refusal::Event)?;
    }
    let destination = with_port(to, destination.port());
    let source = lookup::source_for(destination, host(bound)).map_err(Refusal::Event)?;
    let device = devices::by_address(source).map_err(Refusal::Event)?;
    let route = (to, destination.port());
    let port = match before {
        State::Idle => take_port(id, source, bound.port(), Some(route)).map_err(Refusal::Now)?,
        _ => set_route(id, source, route).map_err(Refusal::Now)?,
    };
    {
        let mut inner = id.inner();
        inner.state = State::Resolving;
        inner.address = Some(Address {
            local: source.ip,
            remote: to.ip,
        });
    }
    id.set_device(device);
    id.set_addresses(with_port(source, port.number), Some(destination));
    let ours = to.ip.is_multicast() || lookup::check_local(to).is_ok();
    Ok(match ours {
        true => None,
        false => Search::start(source, destination),
    })
}

fn set_route(id: &Arc<Id>, source: Host, destination: (Host, u16)) -> Outcome<Port> {
    let call = || {
        Ok(CmCall::SetRoute {
            port: id.inner().port.ok_or_else(no_port)?.name,
            source,
            destination,
        })
    };
    Line::get()?.insist(call, None)?;
    let mut inner = id.inner();
    let port = inner.port.as_mut().ok_or_else(no_port)?;
    port.source = source;
    port.destination = Some(destination);
    Ok(*port)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: the program's id.
    finish(unsafe { id_of(id).and_then(route) })
}

pub(crate) fn route(id: &Arc<Id>) -> Outcome {
    start_route(id)?;
    complete(id)
}

/// As [`route`], and leaves it to the caller to wait.
pub(crate) fn start_route(id: &Arc<Id>) -> Outcome {
    id.advance(State::AddressResolved, State::RouteResolved)?;
    let (event, status) = match path::set(id, None) {
        Ok(()) => (RDMA_CM_EVENT_ROUTE_RESOLVED, 0),
        Err(errno) => {
            id.inner().state = State::AddressResolved;
            (RDMA_CM_EVENT_ROUTE_ERROR, -errno)
        }
    };
    id.post(Happening::Plain(event, status));
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: the program's id.
    finish(unsafe { id_of(id).and_then(|id| listen(id, backlog)) })
}

pub(crate) fn listen(id: &Arc<Id>, backlog: c_int) -> Outcome {
    if id.inner().state == State::Idle {
        bind(id, SocketAddr::from(([0, 0, 0, 0], 0)))?;
    }
    id.advance(State::Bound, State::Listen)?;
    let backlog = match u32::try_from(backlog) {
        Ok(some @ 1..MAX_BACKLOG) => some,
        _ => MAX_BACKLOG,
    };
    let call = || {
        Ok(CmCall::Listen {
            port: id.inner().port.ok_or_else(no_port)?.name,
            backlog,
        })
    };
    let listening = Line::get().and_then(|line| line.insist(call, None));
    let mut inner = id.inner();
    match listening {
        Ok(_) => inner.backlog = Some(backlog),
        Err(_) => inner.state = State::Bound,
    }
    listening.map(drop)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: the program's id.
    unsafe { port_of((&raw const (*id).route.addr.src).cast()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: the program's id.
    unsafe { port_of((&raw const (*id).route.addr.dst).cast()) }
}

unsafe fn port_of(address: *const sockaddr) -> __be16 {
    // SAFETY: by contract room for any address.
    unsafe { read(address) }.map_or(0, |address| address.port().to_be())
}
