//! Shared receive queues and XRC.

use std::os::fd::AsRawFd;

use ferroce_abi::ffi::*;

use crate::support::verbs::{self, errno, post_send, post_srq_recv, zeroed};
use crate::support::{World, complete, connect, on_loopback, pattern, receive_wr, send_wr};

fn srq_init(max_wr: u32) -> ibv_srq_init_attr {
    ibv_srq_init_attr {
        attr: ibv_srq_attr {
            max_wr,
            max_sge: 2,
            srq_limit: 0,
        },
        ..zeroed()
    }
}

#[test]
fn queue_pairs_share_a_receive_queue() {
    on_loopback("shared::queue_pairs_share_a_receive_queue", || {
        let world = World::open();
        let srq = verbs::create_srq(world.pd, &mut srq_init(16));
        assert!(!srq.is_null());
        let memory = world.memory(4096);
        let mut sges = [0, 1].map(|half| memory.sge(half * 100, 100));
        let mut wrs = [1, 2, 3].map(|wr_id| receive_wr(wr_id, &mut sges));
        assert_eq!(post_srq_recv(srq, &mut wrs), Ok(()));
        let ends = [(); 2].map(|()| {
            let mut init = world.init(IBV_QPT_RC);
            init.srq = srq;
            let qp = verbs::create_qp(world.pd, &raw mut init);
            assert!(!qp.is_null());
            assert_eq!(init.cap.max_recv_wr, 0, "it has no queue of its own");
            (world.with(qp, init.send_cq), world.end(IBV_QPT_RC))
        });
        for (taken, (with_srq, peer)) in (1..).zip(&ends) {
            connect(with_srq, peer);
            peer.memory.put(0, &pattern(taken, 150));
            let mut sges = [peer.memory.sge(0, 150)];
            let mut wrs = [send_wr(9, IBV_WR_SEND, &mut sges)];
            assert_eq!(post_send(peer.qp, &mut wrs), Ok(()));
            assert_eq!(with_srq.done().wr_id, u64::from(taken));
            assert_eq!(memory.get(0, 150), pattern(taken, 150));
        }
        assert_eq!(verbs::destroy_srq(srq), libc::EBUSY);
        for (with_srq, _) in &ends {
            let mut wrs = [receive_wr(1, &mut [])];
            let refused = verbs::post_recv(with_srq.qp, &mut wrs);
            assert_eq!(refused, Err((0, libc::EINVAL)));
            assert_eq!(verbs::destroy_qp(with_srq.qp), 0);
        }
        assert_eq!(verbs::destroy_srq(srq), 0);
    });
}

#[test]
fn shared_receive_queue_is_resized_and_reports_its_limit() {
    on_loopback(
        "shared::shared_receive_queue_is_resized_and_reports_its_limit",
        || {
            let world = World::open();
            let srq = verbs::create_srq(world.pd, &mut srq_init(4));
            let mut wrs = [receive_wr(1, &mut []); 5];
            assert_eq!(post_srq_recv(srq, &mut wrs), Err((4, libc::ENOMEM)));
            wrs[0].num_sge = -1;
            assert_eq!(post_srq_recv(srq, &mut wrs[..1]), Err((0, libc::EINVAL)));
            let modify = |max_wr, srq_limit, mask: u32| {
                let mut attr = ibv_srq_attr {
                    max_wr,
                    max_sge: 0,
                    srq_limit,
                };
                verbs::modify_srq(srq, &raw mut attr, mask as i32)
            };
            assert_eq!(
                modify(2, 0, IBV_SRQ_MAX_WR),
                libc::EINVAL,
                "four are posted"
            );
            assert_eq!(modify(0, 5, IBV_SRQ_LIMIT), libc::EINVAL, "more than fit");
            assert_eq!(modify(0, 0, 1 << 7), libc::EINVAL);
            assert_eq!(modify(8, 9, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT), libc::EINVAL);
            assert_eq!(modify(8, 4, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT), 0);
            let mut attr: ibv_srq_attr = zeroed();
            assert_eq!(verbs::query_srq(srq, &raw mut attr), 0);
            assert_eq!((attr.max_wr, attr.max_sge, attr.srq_limit), (8, 2, 4));

            let mut init = world.init(IBV_QPT_RC);
            init.srq = srq;
            let qp = verbs::create_qp(world.pd, &raw mut init);
            let (one, peer) = (world.with(qp, init.send_cq), world.end(IBV_QPT_RC));
            connect(&one, &peer);
            let mut wrs = [send_wr(9, IBV_WR_SEND, &mut [])];
            assert_eq!(post_send(peer.qp, &mut wrs), Ok(()));
            one.done();
            let mut event: ibv_async_event = zeroed();
            assert_eq!(verbs::get_async_event(world.context, &mut event), 0);
            assert_eq!(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
            // SAFETY: the event is one of a shared receive queue.
            assert_eq!(unsafe { event.element.srq }, srq);
            verbs::ack_async_event(&mut event);
            assert_eq!(verbs::destroy_qp(qp), 0);
            assert_eq!(verbs::destroy_srq(srq), 0);
        },
    );
}

fn xrcd_of(world: &World, fd: i32, oflags: i32) -> *mut ibv_xrcd {
    let mut attr = ibv_xrcd_init_attr {
        comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
        fd,
        oflags,
    };
    verbs::open_xrcd(world.context, &raw mut attr)
}

#[test]
fn xrc_send_names_the_shared_receive_queue() {
    on_loopback("shared::xrc_send_names_the_shared_receive_queue", || {
        let world = World::open();
        let xrcd = xrcd_of(&world, -1, libc::O_CREAT);
        assert!(!xrcd.is_null());
        let memory = world.memory(8192);
        let cq = verbs::create_cq(world.context, 16);
        let srqs = [0, 1].map(|index| {
            let mut init = ibv_srq_init_attr_ex {
                attr: srq_init(8).attr,
                comp_mask: IBV_SRQ_INIT_ATTR_TYPE
                    | IBV_SRQ_INIT_ATTR_PD
                    | IBV_SRQ_INIT_ATTR_XRCD
                    | IBV_SRQ_INIT_ATTR_CQ,
                srq_type: IBV_SRQT_XRC,
                pd: world.pd,
                xrcd,
                cq,
                ..zeroed()
            };
            let srq = verbs::create_srq_ex(world.context, &raw mut init);
            assert!(!srq.is_null());
            let mut sges = [memory.sge(index * 4096, 4096)];
            let mut wrs = [receive_wr(index as u64, &mut sges)];
            assert_eq!(post_srq_recv(srq, &mut wrs), Ok(()));
            srq
        });

        let mut init = ibv_qp_init_attr_ex {
            qp_type: IBV_QPT_XRC_RECV,
            comp_mask: IBV_QP_INIT_ATTR_XRCD,
            xrcd,
            ..zeroed()
        };
        let target = verbs::create_qp_ex(world.context, &raw mut init);
        assert!(!target.is_null());
        let target = world.with(target, cq);
        let ops = u64::from(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE);
        let source = world.end_ex(IBV_QPT_XRC_SEND, ops);
        connect(&source, &target);

        // In the other order, to show that the number selects the queue.
        for index in [1usize, 0] {
            let mut number = 0;
            assert_eq!(verbs::get_srq_num(srqs[index], &mut number), 0);
            source.memory.put(0, &pattern(index as u32, 2000));
            let mut sges = [source.memory.sge(0, 2000)];
            let mut wrs = [send_wr(7, IBV_WR_SEND, &mut sges)];
            wrs[0].qp_type.xrc.remote_srqn = number;
            assert_eq!(post_send(source.qp, &mut wrs), Ok(()));
            source.done();
            let wc = complete(cq);
            assert_eq!((wc.status, wc.wr_id), (IBV_WC_SUCCESS, index as u64));
            assert_eq!(memory.get(index * 4096, 2000), pattern(index as u32, 2000));
        }
        let mut wrs = [send_wr(7, IBV_WR_SEND, &mut [])];
        assert_eq!(post_send(target.qp, &mut wrs), Err((0, libc::EINVAL)));

        // A second object of the same target, which lives until both are destroyed.
        let mut open = ibv_qp_open_attr {
            comp_mask: IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
            qp_num: target.number(),
            xrcd,
            qp_type: IBV_QPT_XRC_RECV,
            ..zeroed()
        };
        let opened = verbs::open_qp(world.context, &raw mut open);
        assert!(!opened.is_null());
        // SAFETY: the queue pair is live.
        let seen = unsafe { ((*opened).qp_num, (*opened).state) };
        assert_eq!(seen, (target.number(), IBV_QPS_RTS));
        open.qp_num += 1;
        assert!(verbs::open_qp(world.context, &raw mut open).is_null());
        assert_eq!(errno(), libc::EINVAL);

        assert_eq!(verbs::destroy_qp(target.qp), 0);
        assert_eq!(verbs::close_xrcd(xrcd), libc::EBUSY);
        assert_eq!(verbs::destroy_qp(opened), 0);
        assert_eq!(verbs::destroy_cq(cq), libc::EBUSY);
        for srq in srqs {
            assert_eq!(verbs::destroy_srq(srq), 0);
        }
        assert_eq!(verbs::close_xrcd(xrcd), 0);
        assert_eq!(verbs::destroy_cq(cq), 0);
    });
}

#[test]
fn xrc_domain_is_shared_by_file() {
    on_loopback("shared::xrc_domain_is_shared_by_file", || {
        let world = World::open();
        let file = std::fs::File::open("/proc/self/exe").expect("this program");
        let fd = file.as_raw_fd();
        assert!(xrcd_of(&world, fd, 0).is_null());
        assert_eq!(errno(), libc::EAGAIN, "nobody has made it");
        let one = xrcd_of(&world, fd, libc::O_CREAT);
        let two = xrcd_of(&world, fd, 0);
        assert!(!one.is_null() && !two.is_null());
        assert!(xrcd_of(&world, fd, libc::O_CREAT | libc::O_EXCL).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert!(xrcd_of(&world, 9999, libc::O_CREAT).is_null());
        assert_eq!(errno(), libc::EBADF);

        let mut init = ibv_qp_init_attr_ex {
            qp_type: IBV_QPT_XRC_RECV,
            comp_mask: IBV_QP_INIT_ATTR_XRCD,
            xrcd: one,
            ..zeroed()
        };
        let qp = verbs::create_qp_ex(world.context, &raw mut init);
        // SAFETY: the queue pair is live.
        let qp_num = unsafe { (*qp).qp_num };
        let mut open = ibv_qp_open_attr {
            comp_mask: IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
            qp_num,
            xrcd: two,
            qp_type: IBV_QPT_XRC_RECV,
            ..zeroed()
        };
        let opened = verbs::open_qp(world.context, &raw mut open);
        assert!(!opened.is_null(), "found through the other object");
        assert_eq!(verbs::close_xrcd(one), libc::EBUSY);
        assert_eq!(verbs::destroy_qp(qp), 0);
        assert_eq!(verbs::close_xrcd(one), 0);
        assert_eq!(verbs::close_xrcd(two), libc::EBUSY);
        assert_eq!(verbs::destroy_qp(opened), 0);
        assert_eq!(verbs::close_xrcd(two), 0);
    });
}
