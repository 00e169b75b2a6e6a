//! qperf: bandwidth, latency and verified atomics.

use super::Ports;
use crate::case::Case;
use crate::place::LINK_V4;

const TESTS: [&str; 21] = [
    "rc_bw",
    "rc_bi_bw",
    "rc_lat",
    "uc_bw",
    "uc_bi_bw",
    "uc_lat",
    "ud_bw",
    "ud_bi_bw",
    "ud_lat",
    "rc_rdma_read_bw",
    "rc_rdma_read_lat",
    "rc_rdma_write_bw",
    "rc_rdma_write_lat",
    "rc_rdma_write_poll_lat",
    "uc_rdma_write_bw",
    "uc_rdma_write_lat",
    "uc_rdma_write_poll_lat",
    "rc_compare_swap_mr",
    "rc_fetch_add_mr",
    "ver_rc_compare_swap",
    "ver_rc_fetch_add",
];

/// Tests that connect through librdmacm.
const CONNECTED: [&str; 6] = [
    "rc_bw",
    "rc_lat",
    "rc_rdma_read_bw",
    "rc_rdma_write_lat",
    "rc_fetch_add_mr",
    "ver_rc_compare_swap",
];

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(19_200);
    let case = |test: &'static str| {
        let client = format!("qperf {{peer}} -lp {{port}} -t 1 -i rxe0 {test}");
        let case = Case::with_tcp_server("qperf", ports.next(), "qperf -lp {port}", &client);
        case.expect(test).by_lid()
    };
    let mut cases: Vec<Case> = TESTS.map(case).into();
    cases.extend(CONNECTED.map(|test| {
        let client = format!("qperf {LINK_V4} -lp {{port}} -t 1 -cm 1 {test}");
        Case::with_tcp_server("qperf", ports.next(), "qperf -lp {port}", &client).expect(test)
    }));
    cases
}
