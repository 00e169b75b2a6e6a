//! Profiles: attributes and limits of real adapters.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::inline::{post_send, slot};
use crate::common::pair::{QKEY, element, make_ready, queue_pair, request, way};
use crate::common::{V4, made, on_loopback, refused, zeros};
use crate::fixture::{Program, run, set_link, start};

fn with_profile(name: &str, profile: &str, body: impl FnOnce(&Program)) {
    run(name, &[("FERROCE_PROFILE", profile)], body);
}

unsafe fn attributes(program: &Program) -> ibv_device_attr {
    let mut attr = zeros();
    assert_eq!(ibv_query_device(program.context, &mut attr), 0);
    attr
}

fn init(program: &Program, kind: u32) -> ibv_qp_init_attr {
    let mut init: ibv_qp_init_attr = zeros();
    init.send_cq = program.cqs[0];
    init.recv_cq = program.cqs[0];
    init.qp_type = kind;
    init.cap.max_send_wr = 1;
    init.cap.max_recv_wr = 1;
    init.cap.max_send_sge = 1;
    init.cap.max_recv_sge = 1;
    init
}

#[test]
fn mlx5_shows_and_enforces_its_limits() {
    let name = "profiles::mlx5_shows_and_enforces_its_limits";
    with_profile(name, "mlx5", |program| unsafe {
        let attr = attributes(program);
        assert_eq!(
            (attr.vendor_id, attr.max_sge, attr.max_qp_rd_atom),
            (0x02c9, 30, 16)
        );
        assert_eq!((attr.max_qp_wr, attr.max_cqe), (32_768, 4_194_303));
        let mut order = init(program, IBV_QPT_RC);
        order.cap.max_send_sge = 31;
        refused(ibv_create_qp(program.pd, &mut order), libc::EINVAL);
        order.cap.max_send_sge = 30;
        let qp = made(ibv_create_qp(program.pd, &mut order));
        assert!(order.cap.max_send_sge <= 30, "{}", order.cap.max_send_sge);
        assert_eq!(ibv_destroy_qp(qp), 0);
        order.cap.max_send_wr = 32_769;
        refused(ibv_create_qp(program.pd, &mut order), libc::EINVAL);
        let qp = queue_pair(program.pd, program.cqs[0], IBV_QPT_RC);
        let mut attr: ibv_qp_attr = zeros();
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = IBV_MTU_1024;
        attr.dest_qp_num = (*qp).qp_num;
        attr.max_dest_rd_atomic = 17;
        attr.ah_attr = way(V4);
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        assert_eq!(ibv_modify_qp(qp, &mut attr, mask as i32), libc::EINVAL);
        attr.max_dest_rd_atomic = 16;
        assert_eq!(ibv_modify_qp(qp, &mut attr, mask as i32), 0);
        program.warnings.assert_none();
    });
}

#[test]
fn efa_has_datagrams_only() {
    with_profile(
        "profiles::efa_has_datagrams_only",
        "efa",
        |program| unsafe {
            let attr = attributes(program);
            assert_eq!((attr.vendor_id, attr.atomic_cap), (0x1d0f, IBV_ATOMIC_NONE));
            for kind in [IBV_QPT_RC, IBV_QPT_UC] {
                refused(
                    ibv_create_qp(program.pd, &mut init(program, kind)),
                    libc::EOPNOTSUPP,
                );
            }
            let mut order: ibv_srq_init_attr = zeros();
            order.attr.max_wr = 1;
            refused(ibv_create_srq(program.pd, &mut order), libc::EOPNOTSUPP);
            let mut order = init(program, IBV_QPT_UD);
            order.cap.max_inline_data = 33;
            refused(ibv_create_qp(program.pd, &mut order), libc::EINVAL);
        },
    );
}

#[test]
fn efa_refuses_unsignaled_sends() {
    with_profile(
        "profiles::efa_refuses_unsignaled_sends",
        "efa",
        |program| unsafe {
            let mut order = init(program, IBV_QPT_UD);
            let qp = made(ibv_create_qp(program.pd, &mut order));
            let mut attr: ibv_qp_attr = zeros();
            attr.qp_state = IBV_QPS_INIT;
            attr.port_num = 1;
            attr.qkey = QKEY;
            let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
            assert_eq!(ibv_modify_qp(qp, &mut attr, mask as i32), 0);
            make_ready(qp);
            let ah = made(ibv_create_ah(program.pd, &mut way(V4)));
            let mut sge = element(program.memory, 8, program.lkey());
            for (flags, errno) in [(0, libc::EINVAL), (IBV_SEND_SIGNALED, 0)] {
                let mut wr = request(1, IBV_WR_SEND);
                wr.send_flags = flags;
                wr.sg_list = &mut sge;
                wr.num_sge = 1;
                wr.wr.ud = ibv_send_wr_ud {
                    ah,
                    remote_qpn: (*qp).qp_num,
                    remote_qkey: QKEY,
                };
                let mut bad = ptr::null_mut();
                assert_eq!(post_send(qp, &mut wr, &mut bad), errno);
            }
        },
    );
}

#[test]
fn efa_counts_its_queue_pairs() {
    with_profile(
        "profiles::efa_counts_its_queue_pairs",
        "efa",
        |program| unsafe {
            for _ in 0..attributes(program).max_qp {
                made(ibv_create_qp(program.pd, &mut init(program, IBV_QPT_UD)));
            }
            refused(
                ibv_create_qp(program.pd, &mut init(program, IBV_QPT_UD)),
                libc::ENOMEM,
            );
        },
    );
}

#[test]
fn rxe_has_the_limits_of_the_kernel() {
    with_profile(
        "profiles::rxe_has_the_limits_of_the_kernel",
        "rxe",
        |program| unsafe {
            let attr = attributes(program);
            assert_eq!((attr.max_cqe, attr.device_cap_flags), (32_767, 0x0122_3c76));
            let nothing = ptr::null_mut();
            let more = ibv_create_cq(program.context, 32_768, nothing, nothing.cast(), 0);
            refused(more, libc::EINVAL);
            assert_eq!(ibv_resize_cq(program.cqs[0], 32_768), libc::EINVAL);
            let access = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND) as i32;
            let region = ibv_reg_mr(program.pd, program.memory.cast(), 4096, access);
            refused(region, libc::EOPNOTSUPP);
            let mut dm: ibv_alloc_dm_attr = zeros();
            dm.length = 64;
            let dm = slot!(program.context, alloc_dm(program.context, &mut dm));
            refused(dm, libc::EOPNOTSUPP);
            let mut attr: ibv_device_attr_ex = zeros();
            let size = size_of::<ibv_device_attr_ex>();
            let query = crate::common::inline::verbs(program.context).query_device_ex;
            assert_eq!(
                query.unwrap()(program.context, ptr::null(), &mut attr, size),
                0
            );
            assert_eq!(
                (attr.odp_caps.general_caps, attr.completion_timestamp_mask),
                (0, 0)
            );
        },
    );
}

#[test]
fn link_has_a_profile_for_all_programs() {
    on_loopback(
        "profiles::link_has_a_profile_for_all_programs",
        |_ferroced| unsafe {
            set_link(None, None, Some("mlx5"));
            assert_eq!(attributes(&start()).vendor_id, 0x02c9);
            set_link(None, None, Some("off"));
            assert_eq!(attributes(&start()).vendor_id, 0xff_ffff);
        },
    );
}
