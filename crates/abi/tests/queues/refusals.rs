//! Invalid arguments are refused with an errno, and have no effect.

use core::ptr;

use ferroce_abi::ffi::*;

use crate::support::verbs::{self, errno, post_recv, post_send, zeroed};
use crate::support::{World, complete, connect, on_loopback, receive_wr, send_wr};

#[test]
fn invalid_queue_pairs_are_refused() {
    on_loopback("refusals::invalid_queue_pairs_are_refused", || {
        let world = World::open();
        let refused = |kind, change: &dyn Fn(&mut ibv_qp_init_attr)| {
            let mut init = world.init(kind);
            change(&mut init);
            assert!(verbs::create_qp(world.pd, &raw mut init).is_null());
            errno()
        };
        let nothing = |_: &mut ibv_qp_init_attr| {};
        for kind in [0, 1, 5, 6, 7, 11, 0x7fff_ffff, IBV_QPT_XRC_RECV] {
            assert_eq!(refused(kind, &nothing), libc::EINVAL, "type {kind}");
        }
        for kind in [IBV_QPT_RAW_PACKET, IBV_QPT_DRIVER] {
            assert_eq!(refused(kind, &nothing), libc::EOPNOTSUPP);
        }
        let wrong: [&dyn Fn(&mut ibv_qp_init_attr); 9] = [
            &|init| init.send_cq = ptr::null_mut(),
            &|init| init.recv_cq = ptr::null_mut(),
            &|init| init.cap.max_send_wr = u32::MAX,
            &|init| init.cap.max_recv_wr = u32::MAX,
            &|init| init.cap.max_recv_wr = (1 << 20) + 1,
            &|init| init.cap.max_send_sge = 33,
            &|init| init.cap.max_recv_sge = u32::MAX,
            &|init| init.cap.max_inline_data = 513,
            &|init| init.cap.max_inline_data = u32::MAX,
        ];
        for (which, wrong) in wrong.into_iter().enumerate() {
            assert_eq!(refused(IBV_QPT_RC, wrong), libc::EINVAL, "wrong {which}");
        }
        let mut init = world.init(IBV_QPT_RC);
        init.cap = zeroed();
        let qp = verbs::create_qp(world.pd, &raw mut init);
        assert!(!qp.is_null(), "queues of no size are possible");
        assert_eq!(verbs::destroy_qp(qp), 0);
        init.cap = ibv_qp_cap {
            max_send_wr: 1 << 20,
            max_recv_wr: 1 << 20,
            max_send_sge: 32,
            max_recv_sge: 32,
            max_inline_data: 512,
        };
        let qp = verbs::create_qp(world.pd, &raw mut init);
        assert!(!qp.is_null(), "room that is not used costs nothing");
        assert_eq!(verbs::destroy_qp(qp), 0);
    });
}

/// As in rdma-core's rxe provider.
#[test]
fn vendor_options_of_queue_pairs_are_not_supported() {
    on_loopback(
        "refusals::vendor_options_of_queue_pairs_are_not_supported",
        || {
            let world = World::open();
            for kind in [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD] {
                let end = world.end(kind);
                let mut ece = ibv_ece {
                    vendor_id: 0x02c9,
                    options: 5,
                    comp_mask: 0,
                };
                assert_eq!(verbs::query_ece(end.qp, &raw mut ece), libc::EOPNOTSUPP);
                assert_eq!(verbs::set_ece(end.qp, &raw mut ece), libc::EOPNOTSUPP);
                let left = (ece.vendor_id, ece.options, ece.comp_mask);
                assert_eq!(left, (0x02c9, 5, 0), "untouched");
            }
        },
    );
}

#[test]
fn null_arguments_are_refused() {
    on_loopback("refusals::null_arguments_are_refused", || {
        let world = World::open();
        let mut init = world.init(IBV_QPT_RC);
        let null = ptr::null_mut;
        assert!(verbs::create_qp(ptr::null_mut(), &raw mut init).is_null());
        assert!(verbs::create_qp(world.pd, null()).is_null());
        assert!(verbs::create_qp_ex(world.context, ptr::null_mut()).is_null());
        assert!(verbs::create_srq(world.pd, ptr::null_mut()).is_null());
        assert!(verbs::create_srq_ex(world.context, ptr::null_mut()).is_null());
        assert!(verbs::open_xrcd(world.context, ptr::null_mut()).is_null());
        assert!(verbs::open_qp(world.context, ptr::null_mut()).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!(verbs::destroy_qp(ptr::null_mut()), libc::EINVAL);
        assert_eq!(verbs::destroy_srq(ptr::null_mut()), libc::EINVAL);
        assert!(verbs::qp_to_qp_ex(ptr::null_mut()).is_null());
        let end = world.end(IBV_QPT_RC);
        let mut bad = ptr::null_mut();
        assert_eq!(
            verbs::post_send_list(end.qp, ptr::null_mut(), &raw mut bad),
            libc::EINVAL
        );
        let mut wr = send_wr(1, IBV_WR_SEND, &mut []);
        assert_eq!(
            verbs::post_send_list(end.qp, &raw mut wr, ptr::null_mut()),
            libc::EINVAL
        );
    });
}

/// As rdma-core does: programs print `%m`.
#[test]
fn functions_that_return_an_errno_also_set_it() {
    let name = "refusals::functions_that_return_an_errno_also_set_it";
    on_loopback(name, || {
        let world = World::open();
        let end = world.end(IBV_QPT_RC);
        let both = |call: &dyn Fn() -> i32| {
            // SAFETY: the location is this thread's.
            unsafe { *libc::__errno_location() = 0 };
            (call(), errno())
        };
        let invalid = (libc::EINVAL, libc::EINVAL);
        let unsupported = (libc::EOPNOTSUPP, libc::EOPNOTSUPP);
        let busy = (libc::EBUSY, libc::EBUSY);
        assert_eq!(both(&|| end.modify(&mut zeroed(), IBV_QP_PORT)), invalid);
        assert_eq!(
            both(&|| end.modify(&mut zeroed(), IBV_QP_RATE_LIMIT)),
            unsupported
        );
        assert_eq!(both(&|| verbs::dealloc_pd(world.pd)), busy);
        assert_eq!(both(&|| verbs::destroy_cq(end.cq)), busy);
        assert_eq!(
            both(&|| verbs::query_ece(end.qp, ptr::null_mut())),
            unsupported
        );
        assert_eq!(both(&|| verbs::destroy_qp(ptr::null_mut())), invalid);
        let post = || {
            let mut wr = send_wr(1, IBV_WR_SEND, &mut []);
            let mut bad = ptr::null_mut();
            verbs::post_send_list(end.qp, &raw mut wr, &raw mut bad)
        };
        assert_eq!(both(&post), invalid, "RESET");
    });
}

#[test]
fn invalid_shared_receive_queues_are_refused() {
    on_loopback(
        "refusals::invalid_shared_receive_queues_are_refused",
        || {
            let world = World::open();
            let mut init: ibv_srq_init_attr = zeroed();
            for (max_wr, max_sge) in [
                (0, 1),
                (u32::MAX, 1),
                ((1 << 20) + 1, 1),
                (1, 28),
                (1, u32::MAX),
            ] {
                (init.attr.max_wr, init.attr.max_sge) = (max_wr, max_sge);
                assert!(verbs::create_srq(world.pd, &raw mut init).is_null());
                assert_eq!(errno(), libc::EINVAL);
            }
            let mut init: ibv_srq_init_attr_ex = zeroed();
            init.attr.max_wr = 1;
            init.pd = world.pd;
            let types = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
            for (mask, kind, expected) in [
                (0, 0, libc::EINVAL),
                (types, IBV_SRQT_XRC, libc::EINVAL),
                (types, 9, libc::EINVAL),
                (types, IBV_SRQT_TM, libc::EOPNOTSUPP),
                (1 << 9, 0, libc::EOPNOTSUPP),
            ] {
                (init.comp_mask, init.srq_type) = (mask, kind);
                assert!(verbs::create_srq_ex(world.context, &raw mut init).is_null());
                assert_eq!(errno(), expected, "mask {mask:#x}, type {kind}");
            }
        },
    );
}

#[test]
fn invalid_work_requests_are_refused() {
    on_loopback("refusals::invalid_work_requests_are_refused", || {
        let world = World::open();
        let (one, other) = (world.end(IBV_QPT_RC), world.end(IBV_QPT_RC));
        let mut wr = [send_wr(1, IBV_WR_SEND, &mut [])];
        let invalid = Err((0, libc::EINVAL));
        assert_eq!(post_send(one.qp, &mut wr), invalid, "RESET");
        assert_eq!(
            post_recv(one.qp, &mut [receive_wr(1, &mut [])]),
            invalid,
            "RESET"
        );
        connect(&one, &other);
        let mut sge = [one.memory.sge(0, 8)];
        let good = send_wr(1, IBV_WR_SEND, &mut sge);
        let mut many = [one.memory.sge(0, 8); 33];
        let wrong: [&dyn Fn(&mut ibv_send_wr); 11] = [
            &|wr| wr.opcode = IBV_WR_TSO,
            &|wr| wr.opcode = IBV_WR_DRIVER1,
            &|wr| wr.opcode = IBV_WR_FLUSH,
            &|wr| wr.opcode = u32::MAX,
            &|wr| wr.opcode = IBV_WR_BIND_MW,
            &|wr| wr.num_sge = -1,
            &|wr| wr.num_sge = 33,
            &|wr| wr.num_sge = i32::MAX,
            &|wr| wr.sg_list = ptr::null_mut(),
            &|wr| {
                wr.opcode = IBV_WR_RDMA_READ;
                wr.send_flags |= IBV_SEND_INLINE;
            },
            &|wr| {
                wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
                wr.wr.atomic.remote_addr = 4;
            },
        ];
        for (which, wrong) in wrong.into_iter().enumerate() {
            let mut wr = [good];
            if which == 6 {
                wr[0].sg_list = many.as_mut_ptr();
            }
            wrong(&mut wr[0]);
            assert_eq!(post_send(one.qp, &mut wr), invalid, "wrong {which}");
        }
        let mut huge = [one.memory.sge(0, 1 << 19), one.memory.sge(0, 1 << 19)];
        let mut wr = [send_wr(1, IBV_WR_SEND, &mut huge)];
        wr[0].send_flags |= IBV_SEND_INLINE;
        assert_eq!(post_send(one.qp, &mut wr), invalid, "too much inline");
        sge[0].addr = 8;
        let mut wr = [send_wr(1, IBV_WR_SEND, &mut sge)];
        wr[0].send_flags |= IBV_SEND_INLINE;
        assert_eq!(post_send(one.qp, &mut wr), Err((0, libc::EFAULT)));
        // The queue pair still works.
        other.receive(2, 0, 8);
        let mut sge = [one.memory.sge(0, 8)];
        let mut wr = [send_wr(3, IBV_WR_SEND, &mut sge)];
        assert_eq!(post_send(one.qp, &mut wr), Ok(()));
        assert_eq!((one.done().wr_id, other.done().wr_id), (3, 2));
    });
}

#[test]
fn receives_are_checked_in_every_state() {
    on_loopback("refusals::receives_are_checked_in_every_state", || {
        let world = World::open();
        let (one, other) = (world.end(IBV_QPT_RC), world.end(IBV_QPT_RC));
        connect(&one, &other);
        let mut attr: ibv_qp_attr = zeroed();
        attr.qp_state = IBV_QPS_ERR;
        assert_eq!(one.modify(&mut attr, IBV_QP_STATE), 0);
        // The queues allow four elements.
        let mut sges = [one.memory.sge(0, 8); 5];
        let mut wrs = [receive_wr(1, &mut sges)];
        assert_eq!(post_recv(one.qp, &mut wrs), Err((0, libc::EINVAL)));
        wrs[0].num_sge = 4;
        assert_eq!(post_recv(one.qp, &mut wrs), Ok(()));
        let wc = complete(one.cq);
        assert_eq!((wc.wr_id, wc.status), (1, IBV_WC_WR_FLUSH_ERR));
    });
}
