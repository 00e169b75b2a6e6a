//! Checks of `ibv_create_qp`, `ibv_modify_qp`, `ibv_create_ah`, `rdma_connect` and `rdma_accept`.

use core::ffi::c_int;
use std::sync::Arc;

use ferroce_device::transport::AttrMask;
use ferroce_device::{Device, Qp};
use ferroce_rdmacm::ConnParams;
use ferroce_strict::connect::{
    Attributes, Connection, PeerAddress, check_address, check_attributes, check_connection,
    check_inline,
};
use ferroce_strict::{QpId, QpTrack};

use super::memory::{self, device_id};
use super::{Settings, ledger};
use crate::ah::unmapped;
use crate::context::ContextObject;
use crate::convert;
use crate::ffi::*;

/// Checks the sizes of a new queue pair.
pub(crate) fn check_new_qp(settings: &Settings, cap: &ibv_qp_cap) -> Result<(), c_int> {
    let finding = check_inline(cap.max_inline_data);
    settings.report("ibv_create_qp", libc::EINVAL, finding)
}

/// Notes a new queue pair.
pub(crate) fn add_qp(device: &Arc<Device>, qp: &Arc<Qp>, base: &ibv_qp, signals_all: bool) {
    let id = (device_id(device), qp.qpn());
    let track = QpTrack {
        max_send_wr: qp.cap().max_send_wr,
        send_cq: base.send_cq.addr(),
        recv_cq: base.recv_cq.addr(),
        srq: (!base.srq.is_null()).then(|| base.srq.addr()),
        signals_all,
        is_datagram: base.qp_type == IBV_QPT_UD,
    };
    ledger().add_qp(id, track);
    memory::add_qp(id, qp);
}

/// Forgets a queue pair.
pub(crate) fn remove_qp(device: &Arc<Device>, qpn: u32) {
    let id: QpId = (device_id(device), qpn);
    ledger().remove_qp(id);
    memory::remove_qp(id);
}

/// Notes the size of a completion queue.
pub(crate) fn set_cq(cq: *mut ibv_cq, capacity: u32) {
    ledger().set_cq(cq.addr(), capacity);
}

/// Forgets a completion queue.
pub(crate) fn remove_cq(cq: *mut ibv_cq) {
    ledger().remove_cq(cq.addr());
}

/// Forgets a shared receive queue.
pub(crate) fn remove_srq(srq: *mut ibv_srq) {
    ledger().remove_srq(srq.addr());
}

/// Checks the attributes of `ibv_modify_qp`.
pub(crate) fn check_modify(
    settings: &Settings,
    device: &Device,
    c: &ibv_qp_attr,
    mask: AttrMask,
) -> Result<(), c_int> {
    const VERB: &str = "ibv_modify_qp";
    if !settings.is_strict() || device.link().is_iwarp() {
        return Ok(());
    }
    if mask.contains(AttrMask::AV) {
        check_peer(settings, device, VERB, &c.ah_attr)?;
    }
    let named = |flag, value| mask.contains(flag).then_some(value);
    let attributes = Attributes {
        timeout: named(AttrMask::TIMEOUT, c.timeout),
        retry_cnt: named(AttrMask::RETRY_CNT, c.retry_cnt),
        rnr_retry: named(AttrMask::RNR_RETRY, c.rnr_retry),
        path_mtu: mask
            .contains(AttrMask::PATH_MTU)
            .then(|| 128_u32.checked_shl(c.path_mtu).unwrap_or(0)),
    };
    let findings = check_attributes(&attributes, device.link().active_mtu);
    settings.report(VERB, libc::EINVAL, findings)
}

/// Checks the parameters of a connection.
pub(crate) fn check_params(
    context: &ContextObject,
    verb: &str,
    params: &ConnParams,
) -> Result<(), c_int> {
    if !context.settings.is_strict() || context.device.link().is_iwarp() {
        return Ok(());
    }
    let findings = check_connection(&Connection {
        responder_resources: params.responder_resources,
        initiator_depth: params.initiator_depth,
        retry_count: params.retry_count,
        rnr_retry_count: params.rnr_retry_count,
    });
    context.settings.report(verb, libc::EINVAL, findings)
}

/// Notes a change of state.
pub(crate) fn modified(device: &Arc<Device>, qpn: u32, state: ibv_qp_state) {
    let id = (device_id(device), qpn);
    match state {
        IBV_QPS_RESET => ledger().reset_qp(id),
        IBV_QPS_ERR => ledger().fail_qp(id),
        _ => {}
    }
}

/// Checks the address of a peer.
pub(crate) fn check_peer(
    settings: &Settings,
    device: &Device,
    verb: &str,
    c: &ibv_ah_attr,
) -> Result<(), c_int> {
    if !settings.is_strict() || device.link().is_iwarp() {
        return Ok(());
    }
    let link = device.link();
    let gid = link.gid(c.grh.sgid_index.into());
    let peer = PeerAddress {
        is_global: c.is_global != 0,
        dlid: c.dlid,
        sgid_index: c.grh.sgid_index,
        source: gid.map(|gid| gid.address),
        destination: unmapped(convert::raw_gid(&c.grh.dgid)),
    };
    settings.report(verb, libc::EINVAL, check_address(&peer))
}
