//! An EFA adapter, for programs that use its UD queue pairs through standard verbs.
//!
//! Amazon's devices report limits that differ between generations. The rules of the provider
//! (no RC, no shared receive queues, every send signaled, 32 bytes inline) hold for all of
//! them. The numbers of objects were not compared with a device. SRD queue pairs need
//! `efadv_create_qp_ex`, which this device does not have.

use super::{Kind, Limits, Profile};

pub(super) const PROFILE: Profile = Profile {
    name: "efa",
    kinds: &[Kind::Ud],
    must_signal: true,
    limits: Limits {
        vendor_id: 0x1d0f,
        vendor_part_id: 0xefa0,
        max_mr_size: 1 << 40,
        page_size_cap: 0xffff_f000,
        device_cap_flags: 0,
        has_persistent_ops: false,
        max_qp: 256,
        max_qp_wr: 4096,
        max_recv_wr: 8192,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_sge_rd: 1,
        max_inline_data: 32,
        max_cq: 512,
        max_cqe: 32_768,
        max_mr: 65_536,
        max_mw: 0,
        max_pd: 256,
        max_qp_rd_atom: 0,
        max_res_rd_atom: 0,
        has_atomics: false,
        max_mcast_grp: 0,
        max_mcast_qp_attach: 0,
        max_total_mcast_qp_attach: 0,
        max_ah: 65_536,
        max_srq: 0,
        max_srq_wr: 0,
        max_srq_sge: 0,
        max_pkeys: 1,
        local_ca_ack_delay: 0,
        odp_general: 0,
        odp_rc: 0,
        odp_ud: 0,
        has_timestamps: false,
        max_dm_size: 0,
        max_msg_sz: 4096,
        // EFA has one GID. This device keeps its table, so that programs find the IPv4 GID.
        gid_tbl_len: 256,
    },
};
