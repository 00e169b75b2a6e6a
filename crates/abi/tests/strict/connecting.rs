//! Checks of `ibv_create_qp`, `ibv_modify_qp` and `ibv_create_ah`.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use ferroce_testnet::deadline;

use crate::common::ferroced::set_lids;
use crate::common::pair::{connected, gid, queue_pair, way};
use crate::common::{V4, V6, errno, on_loopback, refused, zeros};
use crate::fixture::{Program, run, run_strict, set_link, start};

/// Moves a queue pair to RTR with one attribute changed.
unsafe fn to_rtr(qp: *mut ibv_qp, change: impl FnOnce(&mut ibv_qp_attr)) -> i32 {
    let mut attr: ibv_qp_attr = zeros();
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = (*qp).qp_num;
    attr.min_rnr_timer = 12;
    attr.max_dest_rd_atomic = 1;
    attr.ah_attr = way(V4);
    change(&mut attr);
    let mask = IBV_QP_STATE
        | IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    ibv_modify_qp(qp, &mut attr, mask as i32)
}

/// Moves a queue pair to RTS with these timeouts.
unsafe fn to_rts(qp: *mut ibv_qp, timeout: u8, retry_cnt: u8, rnr_retry: u8) -> i32 {
    let mut attr: ibv_qp_attr = zeros();
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = timeout;
    attr.retry_cnt = retry_cnt;
    attr.rnr_retry = rnr_retry;
    attr.max_rd_atomic = 1;
    let mask = IBV_QP_STATE
        | IBV_QP_TIMEOUT
        | IBV_QP_RETRY_CNT
        | IBV_QP_RNR_RETRY
        | IBV_QP_SQ_PSN
        | IBV_QP_MAX_QP_RD_ATOMIC;
    ibv_modify_qp(qp, &mut attr, mask as i32)
}

unsafe fn new_qp(program: &Program) -> *mut ibv_qp {
    queue_pair(program.pd, program.cqs[0], IBV_QPT_RC)
}

#[test]
fn usual_connection_has_no_findings() {
    let name = "connecting::usual_connection_has_no_findings";
    run_strict(name, "error", |program| unsafe {
        connected(program.pd, program.cqs);
        program.warnings.assert_none();
    });
}

#[test]
fn address_without_grh_is_found() {
    run_strict(
        "connecting::address_without_grh_is_found",
        "on",
        |program| unsafe {
            set_lids("rxe0", true);
            // The program hears of the change in its own time.
            deadline::until("the LID", || {
                let mut port: ibv_port_attr = zeros();
                assert_eq!(
                    ibv_query_port(program.context, 1, (&raw mut port).cast()),
                    0
                );
                port.lid != 0
            });
            let by_lid = |attr: &mut ibv_qp_attr| {
                attr.ah_attr.is_global = 0;
                attr.ah_attr.dlid = 1;
            };
            assert_eq!(to_rtr(new_qp(program), by_lid), 0, "it works here");
            program.warnings.assert("lid", 1);
        },
    );
}

#[test]
fn address_without_grh_is_refused() {
    run_strict(
        "connecting::address_without_grh_is_refused",
        "error",
        |program| unsafe {
            let mut attr = way(V4);
            attr.is_global = 0;
            refused(ibv_create_ah(program.pd, &mut attr), libc::EINVAL);
            program.warnings.assert("lid", 1);
            assert!(
                program
                    .warnings
                    .text()
                    .contains("ibv_create_ah fails with EINVAL")
            );
        },
    );
}

#[test]
fn gid_index_of_another_family_is_found() {
    let name = "connecting::gid_index_of_another_family_is_found";
    run_strict(name, "on", |program| unsafe {
        let mut attr = way(V6);
        attr.grh.dgid = gid(V4);
        refused(ibv_create_ah(program.pd, &mut attr), libc::EINVAL);
        program.warnings.assert("gid-type", 1);
    });
}

#[test]
fn path_mtu_above_the_port_is_found() {
    let name = "connecting::path_mtu_above_the_port_is_found";
    on_loopback(name, |_ferroced| unsafe {
        std::env::set_var("FERROCE_STRICT", "on");
        set_link(Some(1024), None, None);
        let program = start();
        assert_eq!(
            to_rtr(new_qp(&program), |attr| attr.path_mtu = IBV_MTU_4096),
            0
        );
        program.warnings.assert("path-mtu", 1);
    });
}

#[test]
fn extreme_timeouts_are_found_once_for_each_place() {
    let name = "connecting::extreme_timeouts_are_found_once_for_each_place";
    run_strict(name, "on", |program| unsafe {
        for _ in 0..core::hint::black_box(3) {
            let qp = new_qp(program);
            assert_eq!(to_rtr(qp, |_| {}), 0);
            assert_eq!(to_rts(qp, 0, 7, 7), 0);
        }
        program.warnings.assert("timeout", 1);
        let qp = new_qp(program);
        assert_eq!(to_rtr(qp, |_| {}), 0);
        assert_eq!(to_rts(qp, 14, 0, 7), 0);
        program.warnings.assert("timeout", 2);
    });
}

#[test]
fn extreme_timeouts_are_refused() {
    run_strict(
        "connecting::extreme_timeouts_are_refused",
        "error",
        |program| unsafe {
            let qp = new_qp(program);
            assert_eq!(to_rtr(qp, |_| {}), 0);
            assert_eq!(to_rts(qp, 31, 7, 7), libc::EINVAL);
            program.warnings.assert("timeout", 1);
            assert_eq!(to_rts(qp, 14, 7, 7), 0, "the state is as before");
        },
    );
}

#[test]
fn inline_data_beyond_adapters_is_found() {
    run_strict(
        "connecting::inline_data_beyond_adapters_is_found",
        "on",
        |program| unsafe {
            let mut init: ibv_qp_init_attr = zeros();
            init.send_cq = program.cqs[0];
            init.recv_cq = program.cqs[0];
            init.qp_type = IBV_QPT_RC;
            init.cap.max_send_wr = 1;
            init.cap.max_inline_data = 4096;
            refused(ibv_create_qp(program.pd, &mut init), libc::EINVAL);
            program.warnings.assert("inline", 1);
        },
    );
}

#[test]
fn link_sets_the_mode_and_the_environment_overrides_it() {
    let name = "connecting::link_sets_the_mode_and_the_environment_overrides_it";
    on_loopback(name, |_ferroced| unsafe {
        set_link(None, Some("error"), None);
        let program = start();
        let mut attr = way(V4);
        attr.is_global = 0;
        refused(ibv_create_ah(program.pd, &mut attr), libc::EINVAL);
        program.warnings.assert("lid", 1);
    });
}

#[test]
fn environment_overrides_the_link() {
    on_loopback(
        "connecting::environment_overrides_the_link",
        |_ferroced| unsafe {
            std::env::set_var("FERROCE_STRICT", "off");
            set_link(None, Some("error"), None);
            let program = start();
            let mut attr = way(V4);
            attr.is_global = 0;
            refused(ibv_create_ah(program.pd, &mut attr), libc::EINVAL);
            program.warnings.assert_none();
        },
    );
}

#[test]
fn unknown_mode_is_named() {
    run("connecting::unknown_mode_is_named", &[], |program| unsafe {
        program.warnings.assert_none();
        std::env::set_var("FERROCE_STRICT", "yes");
        // The variable was read when the first device was opened.
        let list = ibv_get_device_list(ptr::null_mut());
        assert!(!ibv_open_device(*list).is_null());
        program.warnings.assert_none();
    });
}

/// Returns an id that is resolved to port 1 of this host, where no program listens.
unsafe fn resolved() -> *mut rdma_cm_id {
    let mut id = ptr::null_mut();
    let none = ptr::null_mut();
    assert_eq!(
        rdma_create_id(none, &mut id, ptr::null_mut(), RDMA_PS_TCP),
        0
    );
    let mut to: libc::sockaddr_in = zeros();
    to.sin_family = libc::AF_INET as u16;
    to.sin_port = 1_u16.to_be();
    to.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
    let to = (&raw mut to).cast();
    assert_eq!(rdma_resolve_addr(id, ptr::null_mut(), to, 1000), 0);
    assert_eq!(rdma_resolve_route(id, 1000), 0);
    let mut init: ibv_qp_init_attr = zeros();
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = 1;
    init.cap.max_recv_wr = 1;
    init.cap.max_send_sge = 1;
    init.cap.max_recv_sge = 1;
    assert_eq!(rdma_create_qp(id, ptr::null_mut(), &mut init), 0);
    id
}

fn params(responder_resources: u8, retry_count: u8) -> rdma_conn_param {
    let mut param: rdma_conn_param = zeros();
    param.responder_resources = responder_resources;
    param.initiator_depth = 1;
    param.retry_count = retry_count;
    param.rnr_retry_count = 6;
    param
}

#[test]
fn extreme_parameters_of_a_connection_are_found() {
    let name = "connecting::extreme_parameters_of_a_connection_are_found";
    run_strict(name, "on", |program| unsafe {
        let refused = |param: &mut rdma_conn_param| {
            assert_eq!(rdma_connect(resolved(), param), -1);
            assert_eq!(errno(), libc::ECONNREFUSED, "nobody listens");
        };
        refused(&mut params(RDMA_MAX_RESP_RES, 7));
        program.warnings.assert_none();
        refused(&mut params(17, 0));
        program.warnings.assert("depth", 1);
        program.warnings.assert("timeout", 1);
    });
}

#[test]
fn extreme_parameters_of_a_connection_are_refused() {
    let name = "connecting::extreme_parameters_of_a_connection_are_refused";
    run_strict(name, "error", |program| unsafe {
        let id = resolved();
        assert_eq!(rdma_connect(id, &mut params(17, 7)), -1);
        assert_eq!(errno(), libc::EINVAL);
        program.warnings.assert("depth", 1);
    });
}
