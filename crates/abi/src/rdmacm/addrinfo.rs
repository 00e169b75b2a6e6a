//! `rdma_getaddrinfo`, by way of the system's resolver.
//!
//! The C library allocates the lists: programs free parts of them.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use libc::{addrinfo, sockaddr, socklen_t};

use super::event::complete;
use super::id::{AddrInfo, id_of};
use super::{Outcome, finish, last_errno, refused};
use crate::errno::{minus_one, refuse, set_errno};
use crate::ffi::*;
use crate::provoke::provoke;

/// `AF_IB`: addresses of InfiniBand ports, which RoCE does not have.
const AF_IB: c_int = 27;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    provoke!("rdma_getaddrinfo" => minus_one);
    if res.is_null() || (node.is_null() && service.is_null() && hints.is_null()) {
        return minus_one(refuse(
            libc::EINVAL,
            "rdma_getaddrinfo: neither node, service nor hints, or no place for the result",
        ));
    }
    if let Err(error) = ferroce_rdmacm::check_links() {
        return minus_one(refused("rdma_getaddrinfo")(error));
    }
    // SAFETY: the program passes NULL or whole strings and hints, and a pointer for the
    // list. The list was just allocated.
    unsafe {
        let hints = hints.as_ref();
        if hints.is_some_and(|hints| hints.ai_flags & RAI_SA != 0) {
            let nonsense = !node.is_null() || hints.is_some_and(|h| h.ai_flags & RAI_DNS != 0);
            let errno = match nonsense {
                true => libc::EOPNOTSUPP,
                false => libc::ENOENT,
            };
            let why = "rdma_getaddrinfo: there is no subnet administrator to ask (RAI_SA)";
            return minus_one(refuse(errno, why));
        }
        let list = libc::calloc(1, size_of::<rdma_addrinfo>()).cast::<rdma_addrinfo>();
        if list.is_null() {
            return minus_one(refuse(
                libc::ENOMEM,
                "rdma_getaddrinfo: the process has no memory left",
            ));
        }
        let code = fill(&mut *list, node, service, hints);
        if code != 0 {
            rdma_freeaddrinfo(list);
            return code;
        }
        *res = list;
        0
    }
}

/// Fills a list of one entry. Returns 0, or the result of the call.
///
/// # Safety
///
/// The strings are NULL or end with NUL. The addresses in the hints have their lengths.
unsafe fn fill(
    list: &mut rdma_addrinfo,
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> c_int {
    // SAFETY: the strings are NULL or end with NUL, and the hints are whole. `found` is the
    // list of a successful `getaddrinfo`, freed once.
    unsafe {
        if !node.is_null() || !service.is_null() {
            let ask = hints.map(to_system);
            let ask = ask.as_ref().map_or(ptr::null(), ptr::from_ref);
            let mut found: *mut addrinfo = ptr::null_mut();
            let code = libc::getaddrinfo(node, service, ask, &raw mut found);
            if code != 0 {
                return code;
            }
            let converted = from_system(list, hints, &*found);
            libc::freeaddrinfo(found);
            if !converted {
                return minus_one(refuse(
                    libc::ENOMEM,
                    "rdma_getaddrinfo: the process has no memory left",
                ));
            }
        } else if let Some(hints) = hints {
            list.ai_flags = hints.ai_flags;
            list.ai_family = hints.ai_family;
            list.ai_qp_type = hints.ai_qp_type;
            list.ai_port_space = hints.ai_port_space;
            let to = (&mut list.ai_dst_addr, &mut list.ai_dst_len);
            if !copy(to, hints.ai_dst_addr, hints.ai_dst_len) {
                return minus_one(refuse(
                    libc::ENOMEM,
                    "rdma_getaddrinfo: the process has no memory left",
                ));
            }
        }
        if let Some(hints) = hints
            && list.ai_src_len == 0
        {
            let to = (&mut list.ai_src_addr, &mut list.ai_src_len);
            if !copy(to, hints.ai_src_addr, hints.ai_src_len) {
                return minus_one(refuse(
                    libc::ENOMEM,
                    "rdma_getaddrinfo: the process has no memory left",
                ));
            }
        }
        0
    }
}

/// Returns the hints for the system's resolver.
fn to_system(hints: &rdma_addrinfo) -> addrinfo {
    let passive = hints.ai_flags & RAI_PASSIVE != 0;
    // SAFETY: all bytes zero is a valid `addrinfo`, without restrictions.
    let mut ask: addrinfo = unsafe { core::mem::zeroed() };
    if passive {
        ask.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        ask.ai_flags |= libc::AI_NUMERICHOST;
    }
    if hints.ai_family != AF_IB {
        ask.ai_family = hints.ai_family;
    }
    ask.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    ask.ai_protocol = match (hints.ai_port_space.cast_unsigned(), ask.ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (RDMA_PS_UDP | RDMA_PS_IPOIB, _) | (RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    ask
}

/// Copies the first result of the resolver. Returns false without memory.
///
/// # Safety
///
/// `found` is a result of `getaddrinfo`.
unsafe fn from_system(
    list: &mut rdma_addrinfo,
    hints: Option<&rdma_addrinfo>,
    found: &addrinfo,
) -> bool {
    list.ai_qp_type = match (hints.map_or(0, |hints| hints.ai_qp_type), found.ai_socktype) {
        (0, libc::SOCK_STREAM) => IBV_QPT_RC.cast_signed(),
        (0, libc::SOCK_DGRAM) => IBV_QPT_UD.cast_signed(),
        (hint, _) => hint,
    };
    list.ai_port_space = match (
        hints.map_or(0, |hints| hints.ai_port_space),
        found.ai_protocol,
    ) {
        (0, libc::IPPROTO_TCP) => RDMA_PS_TCP.cast_signed(),
        (0, libc::IPPROTO_UDP) => RDMA_PS_UDP.cast_signed(),
        (hint, _) => hint,
    };
    list.ai_family = found.ai_family;
    // SAFETY: the name is NULL or ends with NUL, and the address has `ai_addrlen` bytes.
    unsafe {
        let name = match found.ai_canonname.is_null() {
            true => ptr::null_mut(),
            false => libc::strdup(found.ai_canonname),
        };
        let to = if found.ai_flags & libc::AI_PASSIVE != 0 {
            list.ai_flags = RAI_PASSIVE;
            list.ai_src_canonname = name;
            (&mut list.ai_src_addr, &mut list.ai_src_len)
        } else {
            list.ai_dst_canonname = name;
            (&mut list.ai_dst_addr, &mut list.ai_dst_len)
        };
        copy(to, found.ai_addr, found.ai_addrlen)
    }
}

/// Copies an address, if there is one. Returns false without memory.
///
/// # Safety
///
/// `from` is NULL, or has `len` bytes.
unsafe fn copy(
    (to, to_len): (&mut *mut sockaddr, &mut socklen_t),
    from: *const sockaddr,
    len: socklen_t,
) -> bool {
    if from.is_null() || len == 0 {
        return true;
    }
    // SAFETY: the address has `len` bytes, and so has the copy.
    unsafe {
        let copy = libc::malloc(len as usize);
        if copy.is_null() {
            return false;
        }
        ptr::copy_nonoverlapping(from.cast::<u8>(), copy.cast(), len as usize);
        (*to, *to_len) = (copy.cast(), len);
    }
    true
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(mut res: *mut rdma_addrinfo) {
    // SAFETY: the list is NULL, or `rdma_getaddrinfo` made it and the program gives it back.
    // Each part was allocated on its own, or is NULL.
    unsafe {
        while let Some(one) = res.as_ref() {
            let next = one.ai_next;
            let parts: [*mut c_void; 6] = [
                one.ai_connect,
                one.ai_route,
                one.ai_src_canonname.cast(),
                one.ai_dst_canonname.cast(),
                one.ai_src_addr.cast(),
                one.ai_dst_addr.cast(),
            ];
            for part in parts {
                libc::free(part);
            }
            libc::free(res.cast());
            res = next;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: the program passes NULL or whole strings and hints.
    finish(unsafe { start(id, node, service, hints) })
}

/// Resolves names for an id, and queues the event.
///
/// # Safety
///
/// As [`rdma_getaddrinfo`]: the strings and hints are NULL or whole.
unsafe fn start(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Outcome {
    let id = id_of(id)?;
    // SAFETY: the hints are NULL or whole.
    let flags = unsafe { hints.as_ref() }.map_or(0, |hints| hints.ai_flags);
    {
        let mut extra = id.extra();
        if extra.addrinfo.is_some() {
            return Err(refuse(
                libc::EBUSY,
                "rdma_resolve_addrinfo: the id has addresses already",
            ));
        }
        extra.addrinfo = Some(AddrInfo::Resolving);
    }
    let mut list = ptr::null_mut();
    let found = if flags & RAI_SA != 0 {
        Err(refuse(
            libc::ENOTSUP,
            "rdma_resolve_addrinfo: there is no subnet administrator to ask (RAI_SA)",
        ))
    } else {
        set_errno(0);
        // SAFETY: the strings and hints are NULL or whole, and `list` is a pointer here.
        match unsafe { rdma_getaddrinfo(node, service, hints, &raw mut list) } {
            0 => Ok(()),
            -1 => Err(last_errno()),
            code => Err(code),
        }
    };
    if found.is_err() {
        id.extra().addrinfo = None;
        return found;
    }
    id.extra().addrinfo = Some(AddrInfo::Resolved(list));
    let posted = id.id.post_user_event(RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0, 0);
    posted.map_err(refused("rdma_resolve_addrinfo"))?;
    complete(&id)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    info: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: the program passes NULL or a pointer for the list.
    let Some(info) = (unsafe { info.as_mut() }) else {
        return minus_one(refuse(
            libc::EINVAL,
            "rdma_query_addrinfo: the pointer for the result is NULL",
        ));
    };
    finish(id_of(id).and_then(|id| {
        let mut extra = id.extra();
        match extra.addrinfo.take() {
            Some(AddrInfo::Resolved(list)) => {
                *info = list;
                Ok(())
            }
            other => {
                extra.addrinfo = other;
                Err(refuse(
                    libc::ENOENT,
                    "rdma_query_addrinfo: the id has no addresses",
                ))
            }
        }
    }))
}
