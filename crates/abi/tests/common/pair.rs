//! Two connected queue pairs of one process.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use ferroce_testnet::deadline;

use super::inline::{poll_cq, post_recv, post_send};
use super::{V4, made, zeros};

const EVERYTHING: u32 = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC;
pub(crate) const QKEY: u32 = 0x1111;

/// Returns the GID at an index of the table of `lo`.
pub(crate) fn gid(index: u8) -> ibv_gid {
    let address = match index {
        V4 => core::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped(),
        _ => core::net::Ipv6Addr::LOCALHOST,
    };
    ibv_gid {
        raw: address.octets(),
    }
}

/// Returns the address of this host.
pub(crate) fn way(index: u8) -> ibv_ah_attr {
    let mut attr: ibv_ah_attr = zeros();
    attr.is_global = 1;
    attr.port_num = 1;
    attr.grh.dgid = gid(index);
    attr.grh.sgid_index = index;
    attr
}

/// Creates a queue pair with one completion queue.
pub(crate) unsafe fn queue_pair(pd: *mut ibv_pd, cq: *mut ibv_cq, kind: u32) -> *mut ibv_qp {
    let mut init: ibv_qp_init_attr = zeros();
    init.send_cq = cq;
    init.recv_cq = cq;
    init.qp_type = kind;
    init.cap.max_send_wr = 64;
    init.cap.max_recv_wr = 64;
    init.cap.max_send_sge = 2;
    init.cap.max_recv_sge = 2;
    init.cap.max_inline_data = 64;
    let qp = made(ibv_create_qp(pd, &mut init));
    let mut attr: ibv_qp_attr = zeros();
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = EVERYTHING;
    attr.qkey = QKEY;
    let what = match kind {
        IBV_QPT_UD => IBV_QP_QKEY,
        _ => IBV_QP_ACCESS_FLAGS,
    };
    modify(qp, &mut attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | what);
    qp
}

unsafe fn modify(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: u32) {
    let mask = (mask | IBV_QP_STATE) as i32;
    assert_eq!(ibv_modify_qp(qp, attr, mask), 0);
}

/// Moves a datagram queue pair to RTS.
pub(crate) unsafe fn make_ready(qp: *mut ibv_qp) {
    let mut attr: ibv_qp_attr = zeros();
    attr.qp_state = IBV_QPS_RTR;
    modify(qp, &mut attr, 0);
    attr.qp_state = IBV_QPS_RTS;
    modify(qp, &mut attr, IBV_QP_SQ_PSN);
}

/// Connects a queue pair to the one with this number.
pub(crate) unsafe fn connect(qp: *mut ibv_qp, to: u32) {
    let mut attr: ibv_qp_attr = zeros();
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = to;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 1;
    attr.ah_attr = way(V4);
    let rtr = IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    modify(qp, &mut attr, rtr);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 4;
    let rts = IBV_QP_TIMEOUT
        | IBV_QP_RETRY_CNT
        | IBV_QP_RNR_RETRY
        | IBV_QP_SQ_PSN
        | IBV_QP_MAX_QP_RD_ATOMIC;
    modify(qp, &mut attr, rts);
}

/// Creates two connected queue pairs, each with its completion queue.
pub(crate) unsafe fn connected(pd: *mut ibv_pd, cqs: [*mut ibv_cq; 2]) -> [*mut ibv_qp; 2] {
    let qps = cqs.map(|cq| queue_pair(pd, cq, IBV_QPT_RC));
    connect(qps[0], (*qps[1]).qp_num);
    connect(qps[1], (*qps[0]).qp_num);
    qps
}

/// Returns a scatter/gather element.
pub(crate) fn element(addr: *const u8, length: u32, lkey: u32) -> ibv_sge {
    ibv_sge {
        addr: addr as u64,
        length,
        lkey,
    }
}

pub(crate) unsafe fn receive(qp: *mut ibv_qp, wr_id: u64, mut sge: ibv_sge) {
    let mut wr: ibv_recv_wr = zeros();
    wr.wr_id = wr_id;
    wr.sg_list = &mut sge;
    wr.num_sge = 1;
    let mut bad = ptr::null_mut();
    assert_eq!(post_recv(qp, &mut wr, &mut bad), 0);
}

/// Returns a signaled work request.
pub(crate) fn request(wr_id: u64, opcode: u32) -> ibv_send_wr {
    let mut wr: ibv_send_wr = zeros();
    wr.wr_id = wr_id;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr
}

pub(crate) unsafe fn post(qp: *mut ibv_qp, mut wr: ibv_send_wr, mut sge: ibv_sge) {
    wr.sg_list = &mut sge;
    wr.num_sge = i32::from(sge.length > 0);
    let mut bad = ptr::null_mut();
    assert_eq!(post_send(qp, &mut wr, &mut bad), 0);
}

/// Returns a WRITE to the peer's memory.
pub(crate) unsafe fn write(qp: *mut ibv_qp, sge: ibv_sge, remote_addr: u64, rkey: u32) {
    let mut wr = request(1, IBV_WR_RDMA_WRITE);
    wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
    post(qp, wr, sge);
}

/// Waits for the next completion.
#[track_caller]
pub(crate) fn completion(cq: *mut ibv_cq) -> ibv_wc {
    let mut wcs: [ibv_wc; 1] = zeros();
    deadline::until("a completion", || unsafe { poll_cq(cq, &mut wcs) } == 1);
    wcs[0]
}

/// Waits for the next completion, which must be a success.
#[track_caller]
pub(crate) fn success(cq: *mut ibv_cq) -> ibv_wc {
    let wc = completion(cq);
    assert_eq!(wc.status, IBV_WC_SUCCESS, "work request {}", wc.wr_id);
    wc
}
