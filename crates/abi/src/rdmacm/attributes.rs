//! What a connection means for its queue pair: attributes, and the moves.

use core::ffi::c_int;
use std::sync::Arc;

use ferroce_cm::QpParameters;

use super::id::{Id, Inner, State, id_of};
use super::no_address;
use super::{Outcome, checked, finish};
use crate::errno::refuse;
use crate::ffi::*;
use crate::qp::ibv_modify_qp;

/// READs and atomics, where `rdma_accept` has decided: those we serve, those we
/// have outstanding.
pub(crate) type Depths = (u8, u8);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    if qp_attr.is_null() || qp_attr_mask.is_null() {
        return finish(Err(refuse(
            libc::EINVAL,
            "rdma_init_qp_attr: an argument is NULL",
        )));
    }
    // SAFETY: the program's id and structures.
    finish(unsafe {
        id_of(id).and_then(|id| {
            let (attr, mask) = attributes(id, (*qp_attr).qp_state)?;
            *qp_attr = attr;
            *qp_attr_mask = mask as c_int;
            Ok(())
        })
    })
}

/// The attributes for a state, and which of them count.
fn attributes(id: &Id, state: ibv_qp_state) -> Outcome<(ibv_qp_attr, u32)> {
    let inner = id.inner();
    let mut attr: ibv_qp_attr = zeroed();
    attr.qp_state = state;
    if inner.device.is_none() {
        return Err(refuse(
            libc::EINVAL,
            "rdma_init_qp_attr: the id has no device, its address is not resolved",
        ));
    }
    let connected = inner.conn.is_some() && !id.datagrams();
    if !connected {
        attr.port_num = 1;
        let mut mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
        if id.datagrams() {
            attr.qkey = id.space.default_qkey().unwrap_or(0);
            mask |= IBV_QP_QKEY;
        } else {
            mask |= IBV_QP_ACCESS_FLAGS;
        }
        return Ok((attr, mask));
    }
    match state {
        IBV_QPS_INIT => {
            attr.port_num = 1;
            attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
            let served = match inner.qp {
                Some(qp) if inner.state == State::Connect => qp.responder_resources,
                _ => inner.responder_resources,
            };
            if served > 0 {
                attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
            }
            let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
            Ok((attr, mask))
        }
        IBV_QPS_RTR => {
            let qp = inner.qp.ok_or_else(|| refuse(libc::EINVAL, "rdma_init_qp_attr: the peer's queue pair is not known before the connection is accepted"))?;
            attr.ah_attr = way(&inner, &qp)?;
            attr.path_mtu = qp.path_mtu.into();
            attr.dest_qp_num = qp.remote_qpn;
            attr.rq_psn = qp.rq_psn;
            let mut mask =
                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            if matches!(id.qp_type, IBV_QPT_RC | IBV_QPT_XRC_RECV) {
                attr.max_dest_rd_atomic = qp.responder_resources;
                attr.min_rnr_timer = 0;
                mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            }
            Ok((attr, mask))
        }
        IBV_QPS_RTS => {
            let qp = inner.qp.ok_or_else(|| refuse(libc::EINVAL, "rdma_init_qp_attr: the peer's queue pair is not known before the connection is accepted"))?;
            attr.sq_psn = qp.sq_psn;
            let mut mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
            if matches!(id.qp_type, IBV_QPT_RC | IBV_QPT_XRC_SEND) {
                attr.retry_cnt = qp.retry_count;
                attr.rnr_retry = qp.rnr_retry_count;
                attr.max_rd_atomic = qp.initiator_depth;
                mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
            }
            if matches!(id.qp_type, IBV_QPT_RC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV) {
                attr.timeout = qp.timeout;
                mask |= IBV_QP_TIMEOUT;
            }
            Ok((attr, mask))
        }
        _ => Err(refuse(
            libc::EINVAL,
            format_args!("rdma_init_qp_attr: there are no attributes for state {state}"),
        )),
    }
}

/// The way to the peer of a connection.
fn way(inner: &Inner, qp: &QpParameters) -> Outcome<ibv_ah_attr> {
    let address = inner.address.ok_or_else(no_address)?;
    let sgid_index = sgid_index(inner)?;
    let mut way: ibv_ah_attr = zeroed();
    way.grh = ibv_global_route {
        dgid: super::address::gid(address.remote),
        flow_label: qp.flow_label,
        sgid_index,
        hop_limit: qp.hop_limit,
        traffic_class: qp.traffic_class,
    };
    way.sl = qp.sl;
    way.is_global = 1;
    way.port_num = 1;
    Ok(way)
}

/// Where our address stands in the GID table.
pub(crate) fn sgid_index(inner: &Inner) -> Outcome<u8> {
    let (device, address) = (inner.device, inner.address);
    let (Some(device), Some(address)) = (device, address) else {
        return Err(refuse(
            libc::EINVAL,
            "the id has no device or no address yet",
        ));
    };
    let link = device.link();
    let mut gids = link.gids.iter();
    let gid = gids.find(|gid| gid.address == address.local);
    let gid = gid.ok_or_else(|| {
        refuse(
            libc::EADDRNOTAVAIL,
            format_args!("{} is no longer in the GID table", address.local),
        )
    })?;
    u8::try_from(gid.index).map_err(|_| {
        refuse(
            libc::EADDRNOTAVAIL,
            format_args!("GID index {} is above 255", gid.index),
        )
    })
}

/// Moves the queue pair to INIT, RTR and RTS.
pub(crate) fn to_ready(id: &Id, depths: Option<Depths>) -> Outcome {
    // SAFETY: the program's object; its threads call us.
    let qp = unsafe { (*id.c()).qp };
    if qp.is_null() {
        return Ok(());
    }
    let step = |state, change: &dyn Fn(&mut ibv_qp_attr)| {
        let (mut attr, mask) = attributes(id, state)?;
        change(&mut attr);
        // SAFETY: a queue pair of ours.
        checked(unsafe { ibv_modify_qp(qp, &raw mut attr, mask as c_int) })
    };
    step(IBV_QPS_INIT, &|_| {})?;
    step(IBV_QPS_RTR, &|attr| {
        if let Some((served, _)) = depths {
            attr.max_dest_rd_atomic = served;
        }
    })?;
    step(IBV_QPS_RTS, &|attr| {
        if let Some((_, outstanding)) = depths {
            attr.max_rd_atomic = outstanding;
        }
    })
}

/// Moves a new queue pair to INIT; one for datagrams on to RTS.
pub(crate) fn to_init(id: &Id, qp: *mut ibv_qp) -> Outcome {
    let modify = |attr: &mut ibv_qp_attr, mask: u32| {
        // SAFETY: a queue pair of ours.
        checked(unsafe { ibv_modify_qp(qp, attr, mask as c_int) })
    };
    let (mut attr, mask) = attributes(id, IBV_QPS_INIT)?;
    modify(&mut attr, mask)?;
    if id.datagrams() {
        attr.qp_state = IBV_QPS_RTR;
        modify(&mut attr, IBV_QP_STATE)?;
        attr.qp_state = IBV_QPS_RTS;
        attr.sq_psn = 0;
        modify(&mut attr, IBV_QP_STATE | IBV_QP_SQ_PSN)?;
    }
    Ok(())
}

/// Moves the queue pair, if there is one, to ERR.
pub(crate) fn to_error(id: &Arc<Id>) -> Outcome {
    // SAFETY: the program's object; its threads call us.
    let qp = unsafe { (*id.c()).qp };
    if qp.is_null() {
        return Ok(());
    }
    let mut attr: ibv_qp_attr = zeroed();
    attr.qp_state = IBV_QPS_ERR;
    // SAFETY: a queue pair of ours.
    checked(unsafe { ibv_modify_qp(qp, &raw mut attr, IBV_QP_STATE as c_int) })
}
