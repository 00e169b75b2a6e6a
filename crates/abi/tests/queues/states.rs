//! Sizes, states, queries and users of queue pairs.

use core::ffi::c_int;
use core::ptr;

use ferroce_abi::exports::ibv_query_port;
use ferroce_abi::ffi::*;
use ferroce_testnet::{deadline, netdev};

use crate::support::end::{attributes, init_mask, rtr_mask, rts_mask};
use crate::support::verbs::{self, post_send, zeroed};
use crate::support::{End, World, complete, connect, on_loopback, pattern, send_wr};

fn query(end: &End) -> (ibv_qp_attr, ibv_qp_init_attr) {
    let (mut attr, mut init) = (zeroed(), zeroed());
    assert_eq!(verbs::query_qp(end.qp, &raw mut attr, -1, &raw mut init), 0);
    (attr, init)
}

#[test]
fn query_returns_the_attributes_that_were_set() {
    on_loopback("states::query_returns_the_attributes_that_were_set", || {
        let world = World::open();
        let mut init = world.init(IBV_QPT_RC);
        init.qp_context = ptr::without_provenance_mut(0x77);
        let asked = init.cap;
        let qp = verbs::create_qp(world.pd, &raw mut init);
        assert!(init.cap.max_send_wr >= asked.max_send_wr);
        assert!(init.cap.max_inline_data >= asked.max_inline_data);
        let end = world.with(qp, init.send_cq);
        assert_eq!(end.state(), IBV_QPS_RESET);
        // SAFETY: the queue pair is live.
        let c = unsafe { &*qp };
        assert_eq!(
            (c.context, c.pd, c.qp_context),
            (world.context, world.pd, init.qp_context)
        );
        assert_eq!(
            (c.send_cq, c.recv_cq, c.qp_type),
            (init.send_cq, init.recv_cq, IBV_QPT_RC)
        );

        let peer = world.end(IBV_QPT_RC);
        let mut attr = attributes(peer.number());
        attr.rq_psn = 0x12_3456;
        attr.sq_psn = 0x65_4321;
        for (state, mask) in [
            (IBV_QPS_INIT, init_mask(IBV_QPT_RC)),
            (IBV_QPS_RTR, rtr_mask(IBV_QPT_RC)),
            (IBV_QPS_RTS, rts_mask(IBV_QPT_RC)),
        ] {
            attr.qp_state = state;
            assert_eq!(end.modify(&mut attr, mask | IBV_QP_STATE), 0);
        }
        let (got, got_init) = query(&end);
        assert_eq!((got.qp_state, got.cur_qp_state), (IBV_QPS_RTS, IBV_QPS_RTS));
        assert_eq!((got.rq_psn, got.sq_psn), (0x12_3456, 0x65_4321));
        assert_eq!(
            (got.dest_qp_num, got.path_mtu),
            (peer.number(), IBV_MTU_1024)
        );
        assert_eq!(got.qp_access_flags, attr.qp_access_flags);
        assert_eq!((got.timeout, got.retry_cnt, got.rnr_retry), (14, 7, 7));
        assert_eq!((got.max_rd_atomic, got.max_dest_rd_atomic), (4, 4));
        assert_eq!(
            (got.min_rnr_timer, got.port_num, got.sq_draining),
            (1, 1, 0)
        );
        let way = &got.ah_attr;
        assert_eq!((way.is_global, way.port_num, way.grh.sgid_index), (1, 1, 1));
        // SAFETY: all fields of the union are 16 bytes.
        unsafe { assert_eq!(way.grh.dgid.raw, attr.ah_attr.grh.dgid.raw) };
        assert_eq!(got.cap.max_send_wr, init.cap.max_send_wr);
        assert_eq!(got_init.cap.max_recv_sge, init.cap.max_recv_sge);
        assert_eq!(
            (got_init.send_cq, got_init.qp_type),
            (init.send_cq, IBV_QPT_RC)
        );
        assert_eq!(got_init.qp_context, init.qp_context);
        assert_eq!(verbs::query_qp(qp, ptr::null_mut(), 0, ptr::null_mut()), 0);
    });
}

/// rxe accepts each of them, and a query returns the requested value.
#[test]
fn path_mtu_and_rnr_timer_have_the_limits_of_rxe() {
    let name = "states::path_mtu_and_rnr_timer_have_the_limits_of_rxe";
    on_loopback(name, || {
        netdev::set_mtu("lo", 1500);
        let world = World::open();
        let mut port: ibv_port_attr = zeroed();
        // SAFETY: the context is open.
        deadline::until("the port follows", || unsafe {
            assert_eq!(ibv_query_port(world.context, 1, (&raw mut port).cast()), 0);
            port.active_mtu == IBV_MTU_1024
        });
        let ends = [world.end(IBV_QPT_RC), world.end(IBV_QPT_RC)];
        for (end, peer) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            let mut attr = attributes(peer.number());
            attr.path_mtu = IBV_MTU_4096;
            attr.min_rnr_timer = 32;
            for (state, mask) in [
                (IBV_QPS_INIT, init_mask(IBV_QPT_RC)),
                (IBV_QPS_RTR, rtr_mask(IBV_QPT_RC)),
                (IBV_QPS_RTS, rts_mask(IBV_QPT_RC)),
            ] {
                attr.qp_state = state;
                assert_eq!(end.modify(&mut attr, mask | IBV_QP_STATE), 0);
            }
            let (got, _) = query(end);
            assert_eq!((got.path_mtu, got.min_rnr_timer), (IBV_MTU_4096, 32));
        }
        // A message of several packets arrives: no packet exceeds the netdev's MTU.
        let (from, to) = (&ends[0], &ends[1]);
        let length = 3 * 4096 + 1;
        from.memory.put(0, &pattern(7, length));
        let mut sges = [from.memory.sge(0, length)];
        let mut wrs = [send_wr(1, IBV_WR_RDMA_WRITE, &mut sges)];
        wrs[0].wr.rdma = ibv_send_wr_rdma {
            remote_addr: to.memory.address(0),
            rkey: to.memory.rkey(),
        };
        assert_eq!(post_send(from.qp, &mut wrs), Ok(()));
        assert_eq!(complete(from.cq).status, IBV_WC_SUCCESS);
        assert_eq!(to.memory.get(0, length), pattern(7, length));
        let mut attr: ibv_qp_attr = zeroed();
        assert_eq!(from.modify(&mut attr, IBV_QP_STATE), 0);
        assert_eq!(query(from).0.path_mtu, IBV_MTU_1024, "as a new one");
    });
}

#[test]
fn c_structure_follows_the_state() {
    on_loopback("states::c_structure_follows_the_state", || {
        let world = World::open();
        let (one, other) = (world.end(IBV_QPT_RC), world.end(IBV_QPT_RC));
        connect(&one, &other);
        // A wrong key moves the queue pair to ERR: only a query shows it.
        let mut sges = [one.memory.sge(0, 8)];
        let mut wrs = [send_wr(1, IBV_WR_RDMA_WRITE, &mut sges)];
        wrs[0].wr.rdma = ibv_send_wr_rdma {
            remote_addr: 0,
            rkey: 0x55,
        };
        assert_eq!(post_send(one.qp, &mut wrs), Ok(()));
        assert_eq!(complete(one.cq).status, IBV_WC_REM_ACCESS_ERR);
        assert_eq!(one.state(), IBV_QPS_RTS);
        assert_eq!(query(&one).0.qp_state, IBV_QPS_ERR);
        assert_eq!(one.state(), IBV_QPS_ERR);
        assert_eq!(post_send(one.qp, &mut wrs), Ok(()), "flushed");
        assert_eq!(complete(one.cq).status, IBV_WC_WR_FLUSH_ERR);
        let mut attr: ibv_qp_attr = zeroed();
        assert_eq!(one.modify(&mut attr, IBV_QP_STATE), 0);
        assert_eq!(one.state(), IBV_QPS_RESET);

        // The event of the other end must be acknowledged before its queue pair is destroyed.
        let mut event: ibv_async_event = zeroed();
        assert_eq!(verbs::get_async_event(world.context, &mut event), 0);
        assert_eq!(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
        // SAFETY: the event is one of a queue pair.
        assert_eq!(unsafe { event.element.qp }, other.qp);
        let waiting = other.qp as usize;
        #[allow(clippy::disallowed_methods, reason = "the program's other thread")]
        let destroyer = std::thread::spawn(move || {
            verbs::destroy_qp(ptr::with_exposed_provenance_mut(waiting))
        });
        verbs::ack_async_event(&mut event);
        assert_eq!(destroyer.join().expect("no panic"), 0);
    });
}

#[test]
fn objects_in_use_cannot_be_destroyed() {
    on_loopback("states::objects_in_use_cannot_be_destroyed", || {
        let world = World::open();
        let end = world.end(IBV_QPT_UD);
        end.ready(0);
        assert_eq!(verbs::destroy_cq(end.cq), libc::EBUSY);
        assert_eq!(verbs::dealloc_pd(world.pd), libc::EBUSY);
        let mut raw = [0; 16];
        raw[10..].copy_from_slice(&[0xff, 0xff, 239, 1, 2, 3]);
        let group = ibv_gid { raw };
        assert_eq!(verbs::attach_mcast(end.qp, &group, 0), 0);
        assert_eq!(verbs::destroy_qp(end.qp), libc::EBUSY);
        assert_eq!(verbs::detach_mcast(end.qp, &group, 0), 0);
        assert_eq!(verbs::destroy_qp(end.qp), 0);
        assert_eq!(verbs::destroy_cq(end.cq), 0);
    });
}

#[test]
fn modify_refuses_what_the_kernel_refuses() {
    on_loopback("states::modify_refuses_what_the_kernel_refuses", || {
        let world = World::open();
        let end = world.end(IBV_QPT_RC);
        let refused = |change: &dyn Fn(&mut ibv_qp_attr), mask: u32| {
            let mut attr = attributes(1);
            change(&mut attr);
            let errno = end.modify(&mut attr, mask);
            assert_ne!(errno, 0);
            errno
        };
        let init = IBV_QP_STATE | init_mask(IBV_QPT_RC);
        let to = |state| move |attr: &mut ibv_qp_attr| attr.qp_state = state;
        assert_eq!(refused(&to(99), init), libc::EINVAL);
        assert_eq!(refused(&to(IBV_QPS_RTS), init), libc::EINVAL);
        assert_eq!(refused(&to(IBV_QPS_INIT), IBV_QP_STATE), libc::EINVAL);
        assert_eq!(refused(&to(IBV_QPS_INIT), init | IBV_QP_QKEY), libc::EINVAL);
        assert_eq!(
            refused(&to(IBV_QPS_INIT), init | IBV_QP_RATE_LIMIT),
            libc::EOPNOTSUPP
        );
        let wrong: [&dyn Fn(&mut ibv_qp_attr); 3] = [
            &|attr| attr.port_num = 2,
            &|attr| attr.pkey_index = 1,
            &|attr| attr.qp_access_flags = u32::MAX,
        ];
        for wrong in wrong {
            let errno = refused(
                &|attr| {
                    attr.qp_state = IBV_QPS_INIT;
                    wrong(attr);
                },
                init,
            );
            assert_eq!(errno, libc::EINVAL);
        }
        let mut attr = attributes(1);
        attr.qp_state = IBV_QPS_INIT;
        assert_eq!(end.modify(&mut attr, init), 0);
        let rtr = IBV_QP_STATE | rtr_mask(IBV_QPT_RC);
        let wrong: [&dyn Fn(&mut ibv_qp_attr); 6] = [
            &|attr| attr.path_mtu = 0,
            &|attr| attr.path_mtu = 6,
            &|attr| attr.ah_attr.is_global = 0,
            &|attr| attr.ah_attr.grh.sgid_index = 200,
            &|attr| attr.dest_qp_num = 1 << 24,
            &|attr| attr.max_dest_rd_atomic = 255,
        ];
        for (which, wrong) in wrong.into_iter().enumerate() {
            let errno = refused(
                &|attr| {
                    attr.qp_state = IBV_QPS_RTR;
                    wrong(attr);
                },
                rtr,
            );
            assert_eq!(errno, libc::EINVAL, "wrong {which}");
        }
        assert_eq!(end.state(), IBV_QPS_INIT);
        assert_eq!(
            verbs::modify_qp(end.qp, ptr::null_mut(), init as c_int),
            libc::EINVAL
        );
    });
}
