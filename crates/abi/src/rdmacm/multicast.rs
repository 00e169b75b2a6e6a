//! Multicast groups. On RoCE nobody is asked: a group's address is its GID, and
//! attaching the queue pair makes the system join it.

use core::ffi::{c_int, c_void};
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use ferroce_cm::multicast::{MULTICAST_QPN, RoceVersion, mgid};
use libc::sockaddr;

use super::address::read;
use super::channel::Happening;
use super::event::complete;
use super::id::{Id, State, id_of};
use super::path::HOP_LIMIT;
use super::{Outcome, checked, finish};
use super::{no_device, no_port};
use crate::errno::refuse;
use crate::event_count::EventCount;
use crate::ffi::*;
use crate::mcast::{ibv_attach_mcast, ibv_detach_mcast};

/// What the kernel says to IPv6 groups; a number without a name in C.
const ENOTSUPP: c_int = 524;

/// A group that an id has joined.
#[derive(Debug)]
pub(crate) struct Group {
    address: SocketAddr,
    mgid: [u8; 16],
    send_only: bool,
    sgid_index: u8,
    traffic_class: u8,
    qkey: u32,
    /// The program's, for the event.
    context: Context,
    attached: AtomicBool,
    pub(crate) events: EventCount,
}

#[derive(Debug)]
struct Context(*mut c_void);

// SAFETY: handed back to the program, and never followed.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Group {
    /// Attaches the queue pair of the id, if it has one and is to receive.
    pub(crate) fn attach(&self, id: &Id) -> Outcome {
        // SAFETY: the program's object; its threads call us.
        let qp = unsafe { (*id.c()).qp };
        if qp.is_null() || self.send_only {
            return Ok(());
        }
        let gid = ibv_gid { raw: self.mgid };
        // SAFETY: a queue pair of ours.
        checked(unsafe { ibv_attach_mcast(qp, &raw const gid, 0) })?;
        self.attached.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn leave(&self, id: &Id) {
        // SAFETY: the program's object; its threads call us.
        let qp = unsafe { (*id.c()).qp };
        if !qp.is_null() && self.attached.swap(false, Ordering::Relaxed) {
            let gid = ibv_gid { raw: self.mgid };
            // SAFETY: a queue pair of ours.
            unsafe { ibv_detach_mcast(qp, &raw const gid, 0) };
        }
    }

    /// What the event says.
    pub(crate) fn param(&self) -> rdma_ud_param {
        let mut param: rdma_ud_param = zeroed();
        param.private_data = self.context.0;
        param.ah_attr.grh = ibv_global_route {
            dgid: ibv_gid { raw: self.mgid },
            flow_label: 0,
            sgid_index: self.sgid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: self.traffic_class,
        };
        param.ah_attr.is_global = 1;
        param.ah_attr.port_num = 1;
        param.qp_num = MULTICAST_QPN;
        param.qkey = self.qkey;
        param
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program's id and address.
    finish(unsafe { id_of(id).and_then(|id| join(id, read(addr)?, false, context)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    const BOTH: u32 = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    // SAFETY: by contract NULL or valid.
    let Some(attr) = (unsafe { mc_join_attr.as_ref() }) else {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_join_multicast_ex: the attributes are NULL",
        )));
    };
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
    // SAFETY: the program's id and address.
    finish(unsafe { id_of(id).and_then(|id| join(id, read(attr.addr)?, send_only, context)) })
}

fn join(id: &Arc<Id>, address: SocketAddr, send_only: bool, context: *mut c_void) -> Outcome {
    let group = {
        let mut inner = id.inner();
        let device = inner.device.ok_or_else(no_device)?;
        if !id.datagrams() || matches!(inner.state, State::Idle | State::Listen) {
            return Err(refuse(
                libc::EINVAL,
                "rdma_join_multicast: needs a bound id for datagrams",
            ));
        }
        let link = device.link();
        let source = inner.port.ok_or_else(no_port)?.source.ip;
        let same = |ip: &IpAddr| ip.is_ipv4() == address.is_ipv4();
        let mut gids = link.gids.iter();
        let gid =
            gids.find(|gid| gid.address == source || source.is_unspecified() && same(&gid.address));
        let index = gid
            .ok_or_else(|| {
                refuse(
                    libc::ENODEV,
                    format_args!(
                        "rdma_join_multicast: {source} is not in the GID table of the link"
                    ),
                )
            })?
            .index;
        let mgid = mgid(address.ip(), RoceVersion::V2).map_err(|_| ENOTSUPP)?;
        let group = Arc::new(Group {
            address,
            mgid: mgid.0,
            send_only,
            sgid_index: u8::try_from(index).map_err(|_| {
                refuse(libc::ENODEV, format_args!("GID index {index} is above 255"))
            })?,
            traffic_class: inner.options.tos,
            qkey: id.space.default_qkey().unwrap_or(0),
            context: Context(context),
            attached: AtomicBool::new(false),
            events: EventCount::default(),
        });
        inner.groups.push(Arc::clone(&group));
        group
    };
    id.post(Happening::Joined(group));
    complete(id)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: the program's id and address.
    finish(unsafe {
        id_of(id).and_then(|id| {
            let address = read(addr)?;
            let group = {
                let mut inner = id.inner();
                let mut groups = inner.groups.iter();
                let place = groups.position(|group| group.address == address);
                inner.groups.remove(place.ok_or_else(|| {
                    refuse(
                        libc::EADDRNOTAVAIL,
                        "rdma_leave_multicast: the id is not in this group",
                    )
                })?)
            };
            group.leave(id);
            id.channel().forget(&group);
            group.events.wait();
            Ok(())
        })
    })
}
