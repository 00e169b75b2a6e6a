//! `rdma_join_multicast` and `rdma_leave_multicast`.

use core::ffi::{c_int, c_void};
use core::net::SocketAddr;
use core::sync::atomic::AtomicPtr;

use libc::sockaddr;

use super::address::read;
use super::event::complete;
use super::id::{IdObject, id_of};
use super::{Outcome, finish, refused};
use crate::errno::refuse;
use crate::event_count::EventCount;
use crate::ffi::*;
use crate::object::argument;
use crate::provoke::provoke;

/// A multicast group that an id has joined.
#[derive(Debug)]
pub(crate) struct Membership {
    /// The program's pointer for events of the group; never followed.
    pub(crate) context: AtomicPtr<c_void>,
    /// Events that the program got, and those that it acknowledged.
    pub(crate) events: EventCount,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    provoke!("rdma_join_multicast" => minus_one);
    finish(id_of(id).and_then(|id| {
        // SAFETY: the program passes NULL or a whole address.
        let address = unsafe { read(addr) }?;
        join(&id, address, false, context)
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    provoke!("rdma_join_multicast" => minus_one);
    const BOTH: u32 = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    let attr =
        argument!(mc_join_attr, "rdma_join_multicast_ex: the attributes are NULL" => minus_one);
    if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
        return finish(Err(refuse(
            libc::ENOTSUP,
            format_args!(
                "rdma_join_multicast_ex: comp_mask {:#x} has unknown bits",
                attr.comp_mask
            ),
        )));
    }
    if attr.comp_mask != BOTH || attr.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_join_multicast_ex: needs an address and known flags",
        )));
    }
    let send_only = attr.join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
    finish(id_of(id).and_then(|id| {
        // SAFETY: the structure has NULL or a whole address.
        let address = unsafe { read(attr.addr) }?;
        join(&id, address, send_only, context)
    }))
}

fn join(id: &IdObject, address: SocketAddr, send_only: bool, context: *mut c_void) -> Outcome {
    let number = id.extra().add_membership(Membership {
        context: AtomicPtr::new(context),
        events: EventCount::default(),
    });
    if let Err(error) = id.id.join_multicast(address, send_only, number) {
        id.extra().memberships.remove(&number);
        return Err(refused("rdma_join_multicast")(error));
    }
    complete(id)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    finish(id_of(id).and_then(|id| {
        // SAFETY: the program passes NULL or a whole address.
        let address = unsafe { read(addr) }?;
        let left = id.id.leave_multicast(address);
        let number = left.map_err(refused("rdma_leave_multicast"))?;
        let membership = id.extra().memberships.remove(&number);
        if let Some(membership) = membership {
            membership.events.wait();
        }
        Ok(())
    }))
}
