//! Conversions of attributes, flags and types between C and the engine.
//!
//! Values that the engine's types cannot hold are refused here, with the errno of the
//! kernel. The engine checks all other values.

use core::ffi::{c_int, c_uint};
use core::net::IpAddr;

use ferroce_device::transport::{
    Access, AddressVector, AttrMask, QpAttr, QpCap, QpQuery, QpState, QpType, SendFlags,
};
use ferroce_device::{AhAttr, Device};
use ferroce_wire::{Mtu, Psn};

use crate::errno::refuse;
use crate::ffi::*;

/// The bits of `ibv_qp_attr_mask` that `ibv_modify_qp` accepts.
const STANDARD_BITS: u32 = (1 << 21) - 1;

/// Converts the type of a queue pair.
pub(crate) fn qp_type(c: ibv_qp_type) -> Result<QpType, c_int> {
    Ok(match c {
        IBV_QPT_RC => QpType::Rc,
        IBV_QPT_UC => QpType::Uc,
        IBV_QPT_UD => QpType::Ud,
        IBV_QPT_XRC_SEND => QpType::XrcInitiator,
        IBV_QPT_XRC_RECV => QpType::XrcTarget,
        IBV_QPT_RAW_PACKET | IBV_QPT_DRIVER => {
            return Err(refuse(
                libc::EOPNOTSUPP,
                format_args!("queue pair type {c}: this device has no raw packet and driver types"),
            ));
        }
        _ => {
            return Err(refuse(
                libc::EINVAL,
                format_args!("queue pair type {c} is unknown"),
            ));
        }
    })
}

pub(crate) fn qp_state(c: ibv_qp_state) -> Result<QpState, c_int> {
    Ok(match c {
        IBV_QPS_RESET => QpState::Reset,
        IBV_QPS_INIT => QpState::Init,
        IBV_QPS_RTR => QpState::Rtr,
        IBV_QPS_RTS => QpState::Rts,
        IBV_QPS_SQD => QpState::Sqd,
        IBV_QPS_SQE => QpState::Sqe,
        IBV_QPS_ERR => QpState::Err,
        _ => {
            return Err(refuse(
                libc::EINVAL,
                format_args!("queue pair state {c} is unknown"),
            ));
        }
    })
}

/// Returns a state's number in C.
pub(crate) fn c_qp_state(state: QpState) -> ibv_qp_state {
    state as ibv_qp_state
}

/// Converts the mask of `ibv_modify_qp`. Programs treat XRC queue pairs like RC and set
/// attributes that only the other end has; these are ignored, as in the kernel.
pub(crate) fn attr_mask(c: c_int, qp_type: ibv_qp_type) -> Result<AttrMask, c_int> {
    let bits = c as u32;
    if bits & !STANDARD_BITS != 0 {
        return Err(refuse(
            libc::EOPNOTSUPP,
            format_args!("ibv_modify_qp: mask {bits:#x} has unknown bits"),
        ));
    }
    let ignored = match qp_type {
        IBV_QPT_XRC_SEND => AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
        IBV_QPT_XRC_RECV => AttrMask::MAX_QP_RD_ATOMIC | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY,
        _ => AttrMask::empty(),
    };
    Ok(AttrMask::from_bits_retain(bits).difference(ignored))
}

/// Converts the attributes that `mask` names. [`ah_attr`] converts the address of the peer.
pub(crate) fn qp_attr(c: &ibv_qp_attr, mask: AttrMask) -> Result<QpAttr, c_int> {
    let mut attr = QpAttr {
        en_sqd_async_notify: c.en_sqd_async_notify != 0,
        access: Access::from_bits_retain(c.qp_access_flags),
        pkey_index: c.pkey_index,
        port: c.port_num,
        qkey: c.qkey,
        timeout: c.timeout,
        retry_cnt: c.retry_cnt,
        rnr_retry: c.rnr_retry,
        rq_psn: Psn::new(c.rq_psn),
        max_rd_atomic: c.max_rd_atomic,
        min_rnr_timer: c.min_rnr_timer,
        sq_psn: Psn::new(c.sq_psn),
        max_dest_rd_atomic: c.max_dest_rd_atomic,
        dest_qpn: c.dest_qp_num,
        ..QpAttr::default()
    };
    if mask.contains(AttrMask::STATE) {
        attr.state = qp_state(c.qp_state)?;
    }
    if mask.contains(AttrMask::CUR_STATE) {
        attr.cur_state = qp_state(c.cur_qp_state)?;
    }
    if mask.contains(AttrMask::PATH_MTU) {
        attr.path_mtu = Mtu::from_enum(c.path_mtu).ok_or_else(|| {
            refuse(
                libc::EINVAL,
                format_args!(
                    "path MTU {}: the enumeration has 1 (256 bytes) to 5 (4096 bytes)",
                    c.path_mtu
                ),
            )
        })?;
    }
    Ok(attr)
}

/// Converts the result of a query.
pub(crate) fn c_qp_attr(query: &QpQuery) -> ibv_qp_attr {
    let attr = &query.attr;
    ibv_qp_attr {
        qp_state: c_qp_state(attr.state),
        cur_qp_state: c_qp_state(attr.cur_state),
        path_mtu: attr.path_mtu.to_enum(),
        path_mig_state: IBV_MIG_MIGRATED,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn.value(),
        sq_psn: attr.sq_psn.value(),
        dest_qp_num: attr.dest_qpn,
        qp_access_flags: attr.access.bits(),
        cap: c_qp_cap(&query.cap),
        ah_attr: attr.av.as_ref().map_or_else(zeroed, c_ah_attr),
        pkey_index: attr.pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify.into(),
        sq_draining: attr.sq_draining.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        ..zeroed()
    }
}

/// Converts the sizes that a program asks for.
pub(crate) fn qp_cap(c: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: c.max_send_wr,
        max_recv_wr: c.max_recv_wr,
        max_send_sge: c.max_send_sge,
        max_recv_sge: c.max_recv_sge,
        max_inline_data: c.max_inline_data,
    }
}

/// Converts the sizes of a queue pair.
pub(crate) fn c_qp_cap(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// Converts the address of a peer.
///
/// An address without a GRH has only a LID and is refused, as by rxe. A link with the
/// option `lids` maps LIDs to IPv4 addresses of its own network, for programs that know
/// InfiniBand only, such as qperf.
pub(crate) fn ah_attr(c: &ibv_ah_attr, device: &Device) -> Result<AhAttr, c_int> {
    let (sgid_index, dgid) = match c.is_global {
        0 => {
            let link = device.link();
            let (own, theirs) = link.by_lid(c.dlid).ok_or_else(|| {
                let (name, lid) = (&link.name, c.dlid);
                let why = match link.lids {
                    true => {
                        format!("LID {lid} stands for no address in the IPv4 network of {name}")
                    }
                    false => format!(
                        "the address has no GRH (is_global is 0), and RoCE has no LIDs: choose a \
                         GID index (`ferroce gids`; -g of ibv_rc_pingpong, -x of perftest), or \
                         `ferroce link set {name} lids on` for a program that cannot"
                    ),
                };
                refuse(libc::EINVAL, why)
            })?;
            let index = u8::try_from(own.index).map_err(|_| {
                refuse(
                    libc::EINVAL,
                    format_args!("GID index {} is above 255", own.index),
                )
            })?;
            (index, theirs.to_ipv6_mapped().octets())
        }
        _ => (c.grh.sgid_index, raw_gid(&c.grh.dgid)),
    };
    Ok(AhAttr {
        sgid_index,
        dgid,
        flow_label: c.grh.flow_label & 0xf_ffff,
        hop_limit: c.grh.hop_limit,
        traffic_class: c.grh.traffic_class,
        sl: c.sl,
        port: c.port_num,
    })
}

/// Converts the address of a peer for a program.
pub(crate) fn c_ah_attr(av: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: gid_of(av.destination),
            flow_label: av.flow_label,
            sgid_index: av.sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        sl: av.sl,
        is_global: 1,
        port_num: av.port,
        ..zeroed()
    }
}

/// Returns the GID of an IP address.
pub(crate) fn gid_of(address: IpAddr) -> ibv_gid {
    let v6 = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    ibv_gid { raw: v6.octets() }
}

/// Returns the bytes of a GID.
pub(crate) fn raw_gid(gid: &ibv_gid) -> [u8; 16] {
    // SAFETY: all fields of the union are 16 bytes of integers.
    unsafe { gid.raw }
}

/// Converts the flags of a work request. Unknown flags are ignored.
#[inline]
pub(crate) fn send_flags(c: c_uint) -> SendFlags {
    SendFlags::from_bits_truncate(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_numbers_are_refused_with_the_errno_of_the_kernel() {
        assert_eq!(qp_type(IBV_QPT_RAW_PACKET), Err(libc::EOPNOTSUPP));
        for c in [0, 1, 5, 7, 11, u32::MAX] {
            assert_eq!(qp_type(c), Err(libc::EINVAL));
        }
        assert_eq!(
            attr_mask(IBV_QP_RATE_LIMIT as c_int, IBV_QPT_RC),
            Err(libc::EOPNOTSUPP)
        );
        assert_eq!(attr_mask(-1, IBV_QPT_RC), Err(libc::EOPNOTSUPP));
        let refused = |attr: ibv_qp_attr, mask| qp_attr(&attr, mask) == Err(libc::EINVAL);
        let mut attr: ibv_qp_attr = zeroed();
        attr.qp_state = IBV_QPS_UNKNOWN;
        attr.path_mtu = 6;
        assert!(refused(attr, AttrMask::STATE));
        assert!(refused(attr, AttrMask::PATH_MTU));
        assert!(
            !refused(attr, AttrMask::empty()),
            "attributes that the mask does not name are ignored"
        );
    }

    #[test]
    fn xrc_ignores_attributes_of_the_other_end() {
        let both = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MAX_QP_RD_ATOMIC;
        for (qp_type, left) in [
            (IBV_QPT_RC, both),
            (IBV_QPT_XRC_SEND, IBV_QP_MAX_QP_RD_ATOMIC),
            (IBV_QPT_XRC_RECV, IBV_QP_MAX_DEST_RD_ATOMIC),
        ] {
            assert_eq!(attr_mask(both as c_int, qp_type).unwrap().bits(), left);
        }
    }

    #[test]
    fn gid_of_an_ipv4_address_is_ipv4_mapped() {
        let gid = gid_of(IpAddr::from([10, 0, 0, 7]));
        assert_eq!(raw_gid(&gid)[10..], [0xff, 0xff, 10, 0, 0, 7]);
    }
}
