//! Profiles: attributes of a real adapter in queries, and its limits in verbs that create.

use core::ffi::c_int;

use ferroce_device::transport::QpType;
use ferroce_strict::{Kind, Profile, QpSizes, Refusal};

use crate::ffi::*;
use crate::strict::Settings;
use crate::strict::hooks::refused;

/// Runs a check of the profile, if there is one.
pub(crate) fn check(
    settings: &Settings,
    check: impl FnOnce(&'static Profile) -> Result<(), Refusal>,
) -> Result<(), c_int> {
    match settings.profile {
        None => Ok(()),
        Some(profile) => check(profile).map_err(|refusal| refused(&refusal)),
    }
}

/// Checks a new queue pair; `live` is the number of those that exist.
pub(crate) fn check_qp(
    settings: &Settings,
    qp_type: QpType,
    init: &ibv_qp_init_attr,
    live: usize,
) -> Result<(), c_int> {
    check(settings, |profile| {
        let kind = match qp_type {
            QpType::Rc => Kind::Rc,
            QpType::Uc => Kind::Uc,
            QpType::Ud | QpType::Gsi => Kind::Ud,
            QpType::XrcInitiator | QpType::XrcTarget => Kind::Xrc,
        };
        let sizes = match qp_type {
            // An XRC target has no queues; programs may leave these fields uninitialised.
            QpType::XrcTarget => QpSizes::default(),
            _ => QpSizes {
                max_send_wr: init.cap.max_send_wr,
                max_recv_wr: init.cap.max_recv_wr,
                max_send_sge: init.cap.max_send_sge,
                max_recv_sge: init.cap.max_recv_sge,
                max_inline_data: init.cap.max_inline_data,
            },
        };
        let has_srq = qp_type != QpType::XrcTarget && !init.srq.is_null();
        profile.check_qp(kind, &sizes, has_srq)?;
        profile.check_count("queue pairs", live, profile.limits().max_qp)
    })
}

/// Refuses the operations of `ibv_create_qp_ex` that the adapter lacks.
pub(crate) fn check_send_ops(settings: &Settings, ops: u64) -> Result<(), c_int> {
    const PERSISTENT: u32 = IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE;
    check(settings, |profile| {
        let missing = !profile.limits().has_persistent_ops && ops & u64::from(PERSISTENT) != 0;
        match missing {
            false => Ok(()),
            true => Err(Refusal {
                errno: ferroce_strict::RefusalErrno::NotSupported,
                why: format!("{} has neither flushes nor atomic writes", profile.name()),
            }),
        }
    })
}

/// Refuses a feature that the adapter lacks.
pub(crate) fn check_feature(
    settings: &Settings,
    what: &str,
    is_there: impl FnOnce(&ferroce_strict::Limits) -> bool,
) -> Result<(), c_int> {
    check(settings, |profile| match is_there(profile.limits()) {
        true => Ok(()),
        false => Err(Refusal {
            errno: ferroce_strict::RefusalErrno::NotSupported,
            why: format!("{} has no {what}", profile.name()),
        }),
    })
}

/// Lowers the sizes that a program is told to those of the adapter.
pub(crate) fn lower_cap(settings: &Settings, cap: &mut ibv_qp_cap) {
    if let Some(profile) = settings.profile {
        let limits = profile.limits();
        cap.max_send_sge = cap.max_send_sge.min(limits.max_send_sge);
        cap.max_inline_data = cap.max_inline_data.min(limits.max_inline_data);
    }
}

/// Replaces the attributes of `ibv_query_device`.
pub(crate) fn apply(settings: &Settings, attr: &mut ibv_device_attr) {
    let Some(profile) = settings.profile else {
        return;
    };
    let limits = profile.limits();
    let int = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
    *attr = ibv_device_attr {
        max_mr_size: limits.max_mr_size,
        page_size_cap: limits.page_size_cap,
        vendor_id: limits.vendor_id,
        vendor_part_id: limits.vendor_part_id,
        max_qp: int(limits.max_qp),
        max_qp_wr: int(limits.max_qp_wr),
        device_cap_flags: limits.device_cap_flags,
        max_sge: int(limits.max_send_sge.min(limits.max_recv_sge)),
        max_sge_rd: int(limits.max_sge_rd),
        max_cq: int(limits.max_cq),
        max_cqe: int(limits.max_cqe),
        max_mr: int(limits.max_mr),
        max_pd: int(limits.max_pd),
        max_qp_rd_atom: int(limits.max_qp_rd_atom),
        max_res_rd_atom: int(limits.max_res_rd_atom),
        max_qp_init_rd_atom: int(limits.max_qp_rd_atom),
        atomic_cap: match limits.has_atomics {
            true => IBV_ATOMIC_HCA,
            false => IBV_ATOMIC_NONE,
        },
        max_mw: int(limits.max_mw),
        max_mcast_grp: int(limits.max_mcast_grp),
        max_mcast_qp_attach: int(limits.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(limits.max_total_mcast_qp_attach),
        max_ah: int(limits.max_ah),
        max_srq: int(limits.max_srq),
        max_srq_wr: int(limits.max_srq_wr),
        max_srq_sge: int(limits.max_srq_sge),
        max_pkeys: limits.max_pkeys,
        local_ca_ack_delay: limits.local_ca_ack_delay,
        ..*attr
    };
}

/// Replaces the attributes of `ibv_query_device_ex`.
pub(crate) fn apply_ex(settings: &Settings, attr: &mut ibv_device_attr_ex) {
    let Some(profile) = settings.profile else {
        return;
    };
    let limits = profile.limits();
    apply(settings, &mut attr.orig_attr);
    attr.odp_caps.general_caps &= limits.odp_general;
    let transports = &mut attr.odp_caps.per_transport_caps;
    transports.rc_odp_caps &= limits.odp_rc;
    transports.uc_odp_caps = 0;
    transports.ud_odp_caps &= limits.odp_ud;
    attr.xrc_odp_caps &= match profile.has(Kind::Xrc) {
        true => limits.odp_rc,
        false => 0,
    };
    if !limits.has_timestamps {
        attr.completion_timestamp_mask = 0;
        attr.hca_core_clock = 0;
    }
    let persistent = match limits.has_persistent_ops {
        true => crate::query::FLUSH_AND_ATOMIC_WRITE,
        false => 0,
    };
    attr.device_cap_flags_ex = u64::from(limits.device_cap_flags) | persistent;
    attr.max_dm_size = attr.max_dm_size.min(limits.max_dm_size);
}

/// Replaces the attributes of `ibv_query_port`.
pub(crate) fn apply_port(settings: &Settings, attr: &mut ibv_port_attr) {
    if let Some(profile) = settings.profile {
        let limits = profile.limits();
        attr.max_msg_sz = attr.max_msg_sz.min(limits.max_msg_sz);
        attr.gid_tbl_len = attr.gid_tbl_len.min(limits.gid_tbl_len as c_int);
    }
}
