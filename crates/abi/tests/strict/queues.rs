//! Checks of the sizes of queues, of single work requests, and of forked children.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use ferroce_testnet::deadline;

use crate::common::inline::{poll_cq, post_recv, post_send, slot};
use crate::common::pair::{
    QKEY, connected, element, make_ready, post, queue_pair, receive, request, success, way, write,
};
use crate::common::{V4, made, zeros};
use crate::fixture::{Program, run_strict};

/// Size of the send queues of `pair::queue_pair`.
const SENDS: usize = 64;

/// Returns a WRITE of 8 bytes within the program's memory.
unsafe fn unsignaled(program: &Program, qp: *mut ibv_qp) -> i32 {
    let mut sge = element(program.memory, 8, program.lkey());
    let mut wr = request(1, IBV_WR_RDMA_WRITE);
    wr.send_flags = 0;
    wr.sg_list = &mut sge;
    wr.num_sge = 1;
    wr.wr.rdma = ibv_send_wr_rdma {
        remote_addr: program.memory as u64 + 4096,
        rkey: (*program.mr).rkey,
    };
    let mut bad = ptr::null_mut();
    post_send(qp, &mut wr, &mut bad)
}

#[test]
fn unsignaled_work_that_frees_no_slot_is_found() {
    let name = "queues::unsignaled_work_that_frees_no_slot_is_found";
    run_strict(name, "on", |program| unsafe {
        let [qp, _] = connected(program.pd, program.cqs);
        for _ in 0..SENDS {
            assert_eq!(unsignaled(program, qp), 0);
        }
        program.warnings.assert_none();
        // Acknowledged work makes room here.
        let mut none = [];
        deadline::until("room in the queue", || {
            poll_cq(program.cqs[0], &mut none);
            unsignaled(program, qp) == 0
        });
        // `until` calls the closure at two places, and each has its warning.
        let text = program.warnings.text();
        assert!(text.contains("[sq-size]"), "{text}");
        assert!(text.contains("none of them is signaled"), "{text}");
    });
}

#[test]
fn unsignaled_work_that_frees_no_slot_is_refused() {
    let name = "queues::unsignaled_work_that_frees_no_slot_is_refused";
    run_strict(name, "error", |program| unsafe {
        let [qp, _] = connected(program.pd, program.cqs);
        for _ in 0..SENDS {
            assert_eq!(unsignaled(program, qp), 0);
        }
        assert_eq!(unsignaled(program, qp), libc::ENOMEM);
        program.warnings.assert("sq-size", 1);
    });
}

#[test]
fn polled_completion_of_a_signaled_send_makes_room() {
    let name = "queues::polled_completion_of_a_signaled_send_makes_room";
    run_strict(name, "error", |program| unsafe {
        let [qp, _] = connected(program.pd, program.cqs);
        let place = program.memory as u64 + 4096;
        for _ in 0..4 {
            for _ in 1..SENDS {
                assert_eq!(unsignaled(program, qp), 0);
            }
            let sge = element(program.memory, 8, program.lkey());
            write(qp, sge, place, (*program.mr).rkey);
            success(program.cqs[0]);
        }
        program.warnings.assert_none();
    });
}

#[test]
fn completion_queue_that_is_too_small_is_found() {
    let name = "queues::completion_queue_that_is_too_small_is_found";
    run_strict(name, "on", |program| unsafe {
        let nothing = ptr::null_mut();
        let cq = made(ibv_create_cq(
            program.context,
            7,
            nothing,
            nothing.cast(),
            0,
        ));
        let qp = queue_pair(program.pd, cq, IBV_QPT_RC);
        let room = (*cq).cqe;
        for wr_id in 0..room {
            receive(qp, wr_id as u64, element(program.memory, 8, program.lkey()));
        }
        program.warnings.assert_none();
        receive(qp, 99, element(program.memory, 8, program.lkey()));
        program.warnings.assert("cq-size", 1);
    });
}

unsafe fn post_one(qp: *mut ibv_qp, mut sge: ibv_sge) -> i32 {
    let mut wr: ibv_recv_wr = zeros();
    wr.sg_list = &mut sge;
    wr.num_sge = 1;
    let mut bad = ptr::null_mut();
    let errno = post_recv(qp, &mut wr, &mut bad);
    assert_eq!(bad.is_null(), errno == 0);
    errno
}

#[test]
fn receive_without_room_for_the_grh_is_refused() {
    let name = "queues::receive_without_room_for_the_grh_is_refused";
    run_strict(name, "error", |program| unsafe {
        let qp = queue_pair(program.pd, program.cqs[0], IBV_QPT_UD);
        make_ready(qp);
        assert_eq!(post_one(qp, element(program.memory, 40, program.lkey())), 0);
        program.warnings.assert_none();
        let short = element(program.memory, 39, program.lkey());
        assert_eq!(post_one(qp, short), libc::EINVAL);
        program.warnings.assert("grh-room", 1);
    });
}

#[test]
fn datagram_that_does_not_fit_its_receive_is_found() {
    let name = "queues::datagram_that_does_not_fit_its_receive_is_found";
    run_strict(name, "on", |program| unsafe {
        let qp = queue_pair(program.pd, program.cqs[0], IBV_QPT_UD);
        make_ready(qp);
        receive(qp, 1, element(program.memory, 40 + 63, program.lkey()));
        let mut wr = request(2, IBV_WR_SEND);
        wr.wr.ud = ibv_send_wr_ud {
            ah: made(ibv_create_ah(program.pd, &mut way(V4))),
            remote_qpn: (*qp).qp_num,
            remote_qkey: QKEY,
        };
        let sge = element(program.memory.add(4096), 64, program.lkey());
        post(qp, wr, sge);
        success(program.cqs[0]);
        let mut none = [];
        deadline::until("the warning", || {
            poll_cq(program.cqs[0], &mut none);
            program.warnings.text().contains("[grh-room]")
        });
        let text = program.warnings.text();
        let what = "a datagram of 64 bytes was dropped: the receive of queue pair ";
        assert!(text.contains(what), "{text}");
        assert!(
            text.contains(" has 103 bytes, and 104 are needed with the GRH"),
            "{text}"
        );
    });
}

#[test]
fn unaligned_atomic_is_found() {
    run_strict(
        "queues::unaligned_atomic_is_found",
        "error",
        |program| unsafe {
            let [qp, _] = connected(program.pd, program.cqs);
            let mut sge = element(program.memory, 8, program.lkey());
            for (offset, errno) in [(0, 0), (4, libc::EINVAL)] {
                let mut wr = request(1, IBV_WR_ATOMIC_FETCH_AND_ADD);
                wr.sg_list = &mut sge;
                wr.num_sge = 1;
                wr.wr.atomic = ibv_send_wr_atomic {
                    remote_addr: program.memory as u64 + 4096 + offset,
                    rkey: (*program.mr).rkey,
                    compare_add: 1,
                    swap: 0,
                };
                let mut bad = ptr::null_mut();
                assert_eq!(post_send(qp, &mut wr, &mut bad), errno);
            }
            program.warnings.assert("unaligned-atomic", 1);
            success(program.cqs[0]);
        },
    );
}

#[test]
fn extended_queue_pairs_and_completion_queues_are_checked() {
    let name = "queues::extended_queue_pairs_and_completion_queues_are_checked";
    run_strict(name, "error", |program| unsafe {
        let mut attr: ibv_cq_init_attr_ex = zeros();
        attr.cqe = 16;
        let cq = slot!(program.context, create_cq_ex(program.context, &mut attr));
        let cq = made(cq);
        let mut init: ibv_qp_init_attr_ex = zeros();
        init.qp_type = IBV_QPT_RC;
        init.send_cq = cq.cast();
        init.recv_cq = cq.cast();
        init.cap.max_send_wr = 4;
        init.cap.max_recv_wr = 1;
        init.cap.max_send_sge = 1;
        init.cap.max_recv_sge = 1;
        init.pd = program.pd;
        init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        let ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
        init.send_ops_flags = ops.into();
        let qp = made(slot!(
            program.context,
            create_qp_ex(program.context, &mut init)
        ));
        let mut attr: ibv_qp_attr = zeros();
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = 1;
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        assert_eq!(ibv_modify_qp(qp, &mut attr, mask as i32), 0);
        crate::common::pair::connect(qp, (*qp).qp_num);
        let ex = ibv_qp_to_qp_ex(qp);
        let (place, rkey) = (program.memory as u64 + 4096, (*program.mr).rkey);
        let atomic = |offset: u64| {
            ((*ex).wr_start.unwrap())(ex);
            (*ex).wr_id = 5;
            (*ex).wr_flags = IBV_SEND_SIGNALED;
            ((*ex).wr_atomic_fetch_add.unwrap())(ex, rkey, place + offset, 1);
            ((*ex).wr_set_sge.unwrap())(ex, program.lkey(), program.memory as u64, 8);
            ((*ex).wr_complete.unwrap())(ex)
        };
        assert_eq!(atomic(1), libc::EINVAL);
        program.warnings.assert("unaligned-atomic", 1);
        // Five rounds through a send queue of four: polled completions make room.
        for _ in 0..5 {
            assert_eq!(atomic(0), 0);
            deadline::until("a completion", || {
                let found = ((*cq).start_poll.unwrap())(cq, &mut zeros());
                if found == 0 {
                    assert_eq!((*cq).status, IBV_WC_SUCCESS);
                    ((*cq).end_poll.unwrap())(cq);
                }
                found == 0
            });
        }
        program.warnings.assert("sq-size", 0);
    });
}

#[test]
fn queue_pair_in_a_forked_child_is_found() {
    let name = "queues::queue_pair_in_a_forked_child_is_found";
    run_strict(name, "error", |program| unsafe {
        let [qp, _] = connected(program.pd, program.cqs);
        let child = libc::fork();
        if child == 0 {
            let errno = unsignaled(program, qp);
            libc::_exit(i32::from(errno != libc::EFAULT));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0, "{}", program.warnings.text());
        program.warnings.assert("fork", 1);
        assert_eq!(unsignaled(program, qp), 0, "the parent may go on");
    });
}
