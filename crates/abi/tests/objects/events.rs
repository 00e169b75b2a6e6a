//! Completion events, and completions in extended queues.

use core::ffi::c_void;
use core::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use ferroce_testnet::deadline;

use crate::common::inline::{poll_cq, req_notify_cq, slot};
use crate::common::pair::{connected, element, post, receive, request, success};
use crate::common::{errno, made, pages, polled, with_device, zeros};

/// A connected pair, of which the second end has a completion channel.
struct Fixture {
    context: *mut ibv_context,
    channel: *mut ibv_comp_channel,
    cqs: [*mut ibv_cq; 2],
    qps: [*mut ibv_qp; 2],
    mr: *mut ibv_mr,
}

const WORD: *mut c_void = 0x77 as *mut c_void;

fn with_pair(
    name: &str,
    create: impl FnOnce(*mut ibv_context, *mut ibv_comp_channel) -> *mut ibv_cq,
    body: impl FnOnce(&Fixture),
) {
    with_device(name, |context| unsafe {
        let pd = made(ibv_alloc_pd(context));
        let channel = made(ibv_create_comp_channel(context));
        let plain = made(ibv_create_cq(
            context,
            64,
            ptr::null_mut(),
            ptr::null_mut(),
            0,
        ));
        let cqs = [plain, made(create(context, channel))];
        let qps = connected(pd, cqs);
        let mr = made(ibv_reg_mr(pd, pages(2).cast(), 8192, 1));
        body(&Fixture {
            context,
            channel,
            cqs,
            qps,
            mr,
        });
        for (qp, cq) in qps.into_iter().zip(cqs) {
            assert_eq!(ibv_destroy_qp(qp), 0);
            assert_eq!(ibv_destroy_cq(cq), 0);
        }
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}

fn queue(context: *mut ibv_context, channel: *mut ibv_comp_channel) -> *mut ibv_cq {
    unsafe { ibv_create_cq(context, 64, WORD, channel, 0) }
}

impl Fixture {
    /// Sends a short message from the first end to the second.
    unsafe fn send(&self, wr_id: u64, more: u32) {
        let sge = element((*self.mr).addr.cast(), 32, (*self.mr).lkey);
        receive(self.qps[1], wr_id, sge);
        let mut wr = request(wr_id, IBV_WR_SEND_WITH_IMM);
        wr.send_flags |= more;
        wr.imm.imm_data = 0x0102_0304;
        post(self.qps[0], wr, sge);
        success(self.cqs[0]);
    }

    unsafe fn event(&self) -> Result<(), i32> {
        let (mut cq, mut word) = (ptr::null_mut(), ptr::null_mut());
        match ibv_get_cq_event(self.channel, &mut cq, &mut word) {
            0 => {
                assert_eq!((cq, word), (self.cqs[1], WORD));
                Ok(())
            }
            _ => Err(errno()),
        }
    }

    unsafe fn do_not_wait(&self) {
        libc::fcntl((*self.channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
    }
}

#[test]
fn each_arming_yields_one_event() {
    with_pair("events::each_arming_yields_one_event", queue, |f| unsafe {
        assert_eq!(req_notify_cq(f.cqs[1], 0), 0);
        f.send(1, 0);
        f.send(2, 0);
        assert_eq!(f.event(), Ok(()));
        f.do_not_wait();
        assert_eq!(f.event(), Err(libc::EAGAIN));
        // A completion before the arming makes no event.
        assert_eq!(req_notify_cq(f.cqs[1], 0), 0);
        assert_eq!(f.event(), Err(libc::EAGAIN));
        f.send(3, 0);
        for wr_id in 1..4 {
            assert_eq!(success(f.cqs[1]).wr_id, wr_id);
        }
        deadline::until("an event", || f.event().is_ok());
        ibv_ack_cq_events(f.cqs[1], 2);
        assert_eq!((*f.cqs[1]).comp_events_completed, 2);
    });
}

/// As the kernel's event files do. A program that also polls for POLLOUT would spin.
#[test]
fn channels_report_pollin_only() {
    let name = "events::channels_report_pollin_only";
    with_pair(name, queue, |f| unsafe {
        assert_eq!(polled((*f.context).async_fd), 0);
        assert_eq!(polled((*f.channel).fd), 0);
        assert_eq!(req_notify_cq(f.cqs[1], 0), 0);
        f.send(1, 0);
        success(f.cqs[1]);
        deadline::until("an event", || polled((*f.channel).fd) != 0);
        assert_eq!(polled((*f.channel).fd), libc::POLLIN);
        assert_eq!(f.event(), Ok(()));
        assert_eq!(polled((*f.channel).fd), 0);
        ibv_ack_cq_events(f.cqs[1], 1);
    });
}

#[test]
fn solicited_arming_ignores_other_completions() {
    with_pair(
        "events::solicited_arming_ignores_other_completions",
        queue,
        |f| unsafe {
            f.do_not_wait();
            assert_eq!(req_notify_cq(f.cqs[1], 1), 0);
            f.send(1, 0);
            success(f.cqs[1]);
            assert_eq!(f.event(), Err(libc::EAGAIN));
            f.send(2, IBV_SEND_SOLICITED);
            success(f.cqs[1]);
            deadline::until("an event", || f.event().is_ok());
            ibv_ack_cq_events(f.cqs[1], 1);
        },
    );
}

/// Events that were not read are removed with their queue.
#[test]
fn unread_events_are_removed_with_their_queue() {
    with_pair(
        "events::unread_events_are_removed_with_their_queue",
        queue,
        |f| unsafe {
            let (mut init, pd) = (zeros::<ibv_qp_init_attr>(), (*f.qps[0]).pd);
            let cq = made(queue(f.context, f.channel));
            init.send_cq = cq;
            init.recv_cq = cq;
            init.qp_type = IBV_QPT_RC;
            init.cap.max_send_wr = 1;
            init.cap.max_recv_wr = 1;
            init.cap.max_recv_sge = 1;
            let qp = made(ibv_create_qp(pd, &mut init));
            assert_eq!(req_notify_cq(cq, 0), 0);
            let mut attr: ibv_qp_attr = zeros();
            attr.qp_state = IBV_QPS_INIT;
            attr.port_num = 1;
            let init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
            assert_eq!(ibv_modify_qp(qp, &mut attr, init as i32), 0);
            receive(qp, 5, element((*f.mr).addr.cast(), 32, (*f.mr).lkey));
            attr.qp_state = IBV_QPS_ERR;
            assert_eq!(ibv_modify_qp(qp, &mut attr, IBV_QP_STATE as i32), 0);
            let mut poll = libc::pollfd {
                fd: (*f.channel).fd,
                events: libc::POLLIN,
                revents: 0,
            };
            assert_eq!(libc::poll(&mut poll, 1, 10_000), 1);
            assert_eq!(ibv_destroy_qp(qp), 0);
            assert_eq!(ibv_destroy_cq(cq), 0);
            assert_eq!(libc::poll(&mut poll, 1, 0), 0);
            f.do_not_wait();
            assert_eq!(f.event(), Err(libc::EAGAIN));
        },
    );
}

#[test]
fn destroy_waits_for_the_last_acknowledgement() {
    let name = "events::destroy_waits_for_the_last_acknowledgement";
    with_device(name, |context| unsafe {
        let pd = made(ibv_alloc_pd(context));
        let channel = made(ibv_create_comp_channel(context));
        let cqs = [(); 2].map(|()| made(queue(context, channel)));
        let qps = connected(pd, cqs);
        let mr = made(ibv_reg_mr(pd, pages(2).cast(), 8192, 1));
        assert_eq!(req_notify_cq(cqs[1], 0), 0);
        let sge = element((*mr).addr.cast(), 32, (*mr).lkey);
        receive(qps[1], 1, sge);
        post(qps[0], request(1, IBV_WR_SEND), sge);
        let (mut cq, mut word) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(ibv_get_cq_event(channel, &mut cq, &mut word), 0);
        for qp in qps {
            assert_eq!(ibv_destroy_qp(qp), 0);
        }
        let gone = AtomicBool::new(false);
        let address = cqs[1].expose_provenance();
        #[allow(clippy::disallowed_methods)] // the program's other thread
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let cq = ptr::with_exposed_provenance_mut(address);
                assert_eq!(ibv_destroy_cq(cq), 0);
                gone.store(true, Ordering::Release);
            });
            libc::usleep(50_000);
            assert!(!gone.load(Ordering::Acquire));
            ibv_ack_cq_events(cq, 1);
        });
        assert_eq!(ibv_destroy_cq(cqs[0]), 0);
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}

#[test]
fn resize_below_the_number_of_completions_is_refused() {
    let name = "events::resize_below_the_number_of_completions_is_refused";
    with_pair(name, queue, |f| unsafe {
        for wr_id in 0..5 {
            f.send(wr_id, 0);
        }
        deadline::until("five completions", || ibv_resize_cq(f.cqs[1], 3) != 0);
        assert_eq!(ibv_resize_cq(f.cqs[1], 3), libc::EINVAL);
        assert_eq!(ibv_resize_cq(f.cqs[1], 7), 0);
        assert_eq!((*f.cqs[1]).cqe, 7);
        for wr_id in 0..5 {
            assert_eq!(success(f.cqs[1]).wr_id, wr_id);
        }
    });
}

#[test]
fn reset_removes_unpolled_completions() {
    let name = "events::reset_removes_unpolled_completions";
    with_pair(name, queue, |f| unsafe {
        let (mr, mut attr) = (&*f.mr, zeros::<ibv_qp_attr>());
        receive(f.qps[1], 1, element(mr.addr.cast(), 32, mr.lkey));
        for state in [IBV_QPS_ERR, IBV_QPS_RESET] {
            attr.qp_state = state;
            assert_eq!(ibv_modify_qp(f.qps[1], &mut attr, IBV_QP_STATE as i32), 0);
        }
        assert_eq!(poll_cq(f.cqs[1], &mut [zeros()]), 0);
    });
}

/// As with the kernel's driver: libfabric polls for the last messages of an endpoint after it has
/// destroyed the queue pair.
#[test]
fn completions_of_a_destroyed_queue_pair_can_be_polled() {
    let name = "events::completions_of_a_destroyed_queue_pair_can_be_polled";
    with_pair(name, queue, |f| unsafe {
        let mr = &*f.mr;
        let [near, far] = connected(mr.pd, f.cqs);
        let sge = element(mr.addr.cast(), 32, mr.lkey);
        receive(far, 1, sge);
        post(near, request(2, IBV_WR_SEND), sge);
        success(f.cqs[0]);
        assert_eq!(ibv_destroy_qp(far), 0);
        assert_eq!(success(f.cqs[1]).wr_id, 1);
        assert_eq!(ibv_destroy_qp(near), 0);
    });
}

fn extended(context: *mut ibv_context, channel: *mut ibv_comp_channel) -> *mut ibv_cq {
    let mut attr: ibv_cq_init_attr_ex = zeros();
    attr.cqe = 64;
    attr.cq_context = WORD;
    attr.channel = channel;
    attr.wc_flags = u64::from(
        IBV_WC_STANDARD_FLAGS
            | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
            | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    );
    unsafe { slot!(context, create_cq_ex(context, &mut attr)).cast() }
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut now: libc::timespec = zeros();
    unsafe { libc::clock_gettime(id, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[test]
fn extended_queue_reads_completions_field_by_field() {
    let name = "events::extended_queue_reads_completions_field_by_field";
    with_pair(name, extended, |f| unsafe {
        let before = (clock(libc::CLOCK_MONOTONIC), clock(libc::CLOCK_REALTIME));
        assert_eq!(req_notify_cq(f.cqs[1], 0), 0);
        for wr_id in 10..13 {
            f.send(wr_id, 0);
        }
        assert_eq!(f.event(), Ok(()));
        ibv_ack_cq_events(f.cqs[1], 1);
        let cq = f.cqs[1].cast::<ibv_cq_ex>();
        let c = &*cq;
        let mut none: ibv_poll_cq_attr = zeros();
        let mut seen = 0;
        while seen < 3 {
            let mut got = (c.start_poll.unwrap())(cq, &mut none);
            if got == libc::ENOENT {
                continue;
            }
            while got == 0 {
                assert_eq!((*cq).status, IBV_WC_SUCCESS);
                assert_eq!((*cq).wr_id, 10 + seen);
                seen += 1;
                assert_eq!((c.read_opcode.unwrap())(cq), IBV_WC_RECV);
                assert_eq!((c.read_byte_len.unwrap())(cq), 32);
                assert_eq!((c.read_imm_data.unwrap())(cq), 0x0102_0304);
                assert_eq!((c.read_qp_num.unwrap())(cq), (*f.qps[1]).qp_num);
                let flags = IBV_WC_GRH | IBV_WC_WITH_IMM;
                assert_eq!((c.read_wc_flags.unwrap())(cq), flags);
                for zero in [c.read_vendor_err, c.read_slid, c.read_flow_tag] {
                    assert_eq!((zero.unwrap())(cq), 0);
                }
                let stamps = (
                    (c.read_completion_ts.unwrap())(cq),
                    (c.read_completion_wallclock_ns.unwrap())(cq),
                );
                let after = (clock(libc::CLOCK_MONOTONIC), clock(libc::CLOCK_REALTIME));
                // The two clocks are read one after the other.
                const SLACK: u64 = 50_000_000;
                assert!((before.0..=after.0).contains(&stamps.0));
                assert!((before.1 - SLACK..=after.1 + SLACK).contains(&stamps.1));
                got = (c.next_poll.unwrap())(cq);
            }
            assert_eq!(got, libc::ENOENT);
            (c.end_poll.unwrap())(cq);
        }
        // `ibv_poll_cq` works too.
        f.send(20, 0);
        assert_eq!(success(f.cqs[1]).wr_id, 20);
    });
}
