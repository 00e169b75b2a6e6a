//! Checks of buffers that change, and of regions that end, before their completion.

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use ferroce_testnet::deadline;

use crate::common::pair::{completion, connected, element, post, receive, request, success, write};
use crate::fixture::{Program, run_strict};

/// Sends 8 bytes; the receive is posted after `meanwhile`, so that the send waits.
unsafe fn send(program: &Program, meanwhile: impl FnOnce()) -> ibv_wc {
    let [qp, peer] = connected(program.pd, program.cqs);
    let from = element(program.memory, 8, program.lkey());
    post(qp, request(1, IBV_WR_SEND), from);
    meanwhile();
    let to = element(program.memory.add(8192), 8, program.lkey());
    receive(peer, 2, to);
    completion(program.cqs[0])
}

#[test]
fn buffer_that_changes_before_its_completion_is_found() {
    let name = "memory::buffer_that_changes_before_its_completion_is_found";
    run_strict(name, "on", |program| unsafe {
        let wc = send(program, || program.memory.add(3).write_volatile(1));
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        program.warnings.assert("buffer-in-use", 1);
        let text = program.warnings.text();
        assert!(text.contains("posted by: "), "{text}");
    });
}

#[test]
fn buffer_that_changes_before_its_completion_fails_the_send() {
    let name = "memory::buffer_that_changes_before_its_completion_fails_the_send";
    run_strict(name, "error", |program| unsafe {
        let wc = send(program, || program.memory.add(3).write_volatile(1));
        assert_eq!(wc.status, IBV_WC_GENERAL_ERR);
        program.warnings.assert("buffer-in-use", 1);
    });
}

#[test]
fn buffer_may_change_after_its_completion() {
    let name = "memory::buffer_may_change_after_its_completion";
    run_strict(name, "error", |program| unsafe {
        let wc = send(program, || program.memory.add(8).write_volatile(1));
        assert_eq!(wc.status, IBV_WC_SUCCESS, "a byte beside the buffer");
        program.memory.write_volatile(1);
        program.warnings.assert_none();
    });
}

/// `ibv_rc_pingpong` receives into the buffer that it sends from.
#[test]
fn buffer_that_the_adapter_changes_is_no_finding() {
    let name = "memory::buffer_that_the_adapter_changes_is_no_finding";
    run_strict(name, "error", |program| unsafe {
        let [qp, peer] = connected(program.pd, program.cqs);
        let buffer = element(program.memory, 8, program.lkey());
        let other = element(program.memory.add(4096), 8, program.lkey());
        program.memory.add(4096).write_bytes(9, 8);
        // The send waits for a receive, and meanwhile the peer's message arrives in its buffer.
        receive(qp, 1, buffer);
        post(qp, request(2, IBV_WR_SEND), buffer);
        post(peer, request(3, IBV_WR_SEND), other);
        success(program.cqs[1]);
        assert_eq!(program.memory.read_volatile(), 9);
        let place = element(program.memory.add(8192), 8, program.lkey());
        receive(peer, 4, place);
        success(program.cqs[0]);
        success(program.cqs[0]);
        program.warnings.assert_none();
    });
}

#[test]
fn region_with_outstanding_work_is_found() {
    let name = "memory::region_with_outstanding_work_is_found";
    run_strict(name, "on", |program| unsafe {
        let [qp, _] = connected(program.pd, program.cqs);
        receive(qp, 1, element(program.memory, 8, program.lkey()));
        assert_eq!(ibv_dereg_mr(program.mr), 0);
        program.warnings.assert("deregistered", 1);
    });
}

#[test]
fn region_with_outstanding_work_stays_registered() {
    let name = "memory::region_with_outstanding_work_stays_registered";
    run_strict(name, "error", |program| unsafe {
        let [qp, _] = connected(program.pd, program.cqs);
        receive(qp, 1, element(program.memory, 8, program.lkey()));
        assert_eq!(ibv_dereg_mr(program.mr), libc::EBUSY);
        program.warnings.assert("deregistered", 1);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_dereg_mr(program.mr), 0, "without the queue pair");
    });
}

#[test]
fn region_of_a_failed_queue_pair_may_end() {
    let name = "memory::region_of_a_failed_queue_pair_may_end";
    run_strict(name, "error", |program| unsafe {
        let [qp, _] = connected(program.pd, program.cqs);
        receive(qp, 1, element(program.memory, 8, program.lkey()));
        let mut attr: ibv_qp_attr = crate::common::zeros();
        attr.qp_state = IBV_QPS_ERR;
        assert_eq!(ibv_modify_qp(qp, &mut attr, IBV_QP_STATE as i32), 0);
        assert_eq!(ibv_dereg_mr(program.mr), 0);
        program.warnings.assert_none();
    });
}

/// A program that polls the last byte of a WRITE, without a completion, finds old bytes before
/// it.
#[test]
fn last_byte_of_a_write_arrives_before_the_others() {
    let name = "memory::last_byte_of_a_write_arrives_before_the_others";
    run_strict(name, "error", |program| unsafe {
        const LENGTH: usize = 1024;
        let [qp, _] = connected(program.pd, program.cqs);
        let target = program.memory.add(4096);
        let mut round = 0;
        deadline::until("a WRITE whose last byte is there before the first", || {
            round = round % 200 + 1;
            program.memory.write_bytes(round, LENGTH);
            let from = element(program.memory, LENGTH as u32, program.lkey());
            write(qp, from, target as u64, (*program.mr).rkey);
            while target.add(LENGTH - 1).read_volatile() != round {
                core::hint::spin_loop();
            }
            let is_early = target.read_volatile() != round;
            success(program.cqs[0]);
            assert_eq!(target.read_volatile(), round, "the completion comes last");
            is_early
        });
        program.warnings.assert_none();
    });
}
