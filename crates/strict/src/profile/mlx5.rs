//! A ConnectX-5 with RoCE, as `ibv_devinfo -v` prints it.

use super::{Kind, Limits, Profile};

/// SEND, RECV, WRITE, READ and SRQ_RECV of `ibv_odp_transport_cap_bits`.
const ODP_RC: u32 = 0b10_1111;
/// SEND.
const ODP_UD: u32 = 0b1;

pub(super) const PROFILE: Profile = Profile {
    name: "mlx5",
    kinds: &[Kind::Rc, Kind::Uc, Kind::Ud, Kind::Xrc],
    must_signal: false,
    limits: Limits {
        vendor_id: 0x02c9,
        vendor_part_id: 4119,
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_ffff_ffff_f000,
        // Without the bits of raw packets, checksums and flow steering, which this device lacks.
        device_cap_flags: 0x0132_1c36,
        has_persistent_ops: false,
        max_qp: 262_144,
        max_qp_wr: 32_768,
        max_recv_wr: 32_768,
        max_send_sge: 30,
        max_recv_sge: 30,
        max_sge_rd: 30,
        // 1008 bytes of a work request less its segments, for RC.
        max_inline_data: 828,
        max_cq: 16_777_216,
        max_cqe: 4_194_303,
        max_mr: 16_777_216,
        max_mw: 16_777_216,
        max_pd: 16_777_216,
        max_qp_rd_atom: 16,
        max_res_rd_atom: 4_194_304,
        has_atomics: true,
        max_mcast_grp: 2_097_152,
        max_mcast_qp_attach: 240,
        max_total_mcast_qp_attach: 503_316_480,
        max_ah: 2_147_483_647,
        max_srq: 8_388_608,
        max_srq_wr: 32_767,
        max_srq_sge: 31,
        max_pkeys: 128,
        local_ca_ack_delay: 16,
        odp_general: 0b11,
        odp_rc: ODP_RC,
        odp_ud: ODP_UD,
        has_timestamps: true,
        max_dm_size: 131_072,
        max_msg_sz: 1 << 30,
        gid_tbl_len: 256,
    },
};
