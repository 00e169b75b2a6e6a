//! `ibv_post_send`: every opcode, with a check of the data.

use core::ffi::c_int;

use ferroce_abi::ffi::*;

use crate::support::verbs::{self, post_recv, post_send, zeroed};
use crate::support::{End, QKEY, World, connect, on_loopback, pattern, receive_wr, send_wr};

const LENGTH: usize = 3000;
const IMM: u32 = 0x0403_0201;
const THERE: usize = 128;

fn pair(world: &World, kind: ibv_qp_type) -> (End, End) {
    let (one, other) = (world.end(kind), world.end(kind));
    connect(&one, &other);
    (one, other)
}

/// Posts one work request and waits for its completion.
fn perform(end: &End, mut wr: ibv_send_wr, opcode: ibv_wc_opcode) {
    assert_eq!(post_send(end.qp, core::slice::from_mut(&mut wr)), Ok(()));
    let wc = end.done();
    assert_eq!(
        (wc.wr_id, wc.opcode, wc.qp_num),
        (wr.wr_id, opcode, end.number())
    );
}

fn at(wr: &mut ibv_send_wr, to: &End, offset: usize) {
    wr.wr.rdma = ibv_send_wr_rdma {
        remote_addr: to.memory.address(offset),
        rkey: to.memory.rkey(),
    };
}

fn sends(one: &End, other: &End) {
    one.memory.put(0, &pattern(1, LENGTH));
    let mut sges = [one.memory.sge(0, 1000), one.memory.sge(1000, LENGTH - 1000)];
    other.receive(7, 0, LENGTH);
    perform(one, send_wr(1, IBV_WR_SEND, &mut sges), IBV_WC_SEND);
    let wc = other.done();
    assert_eq!((wc.wr_id, wc.opcode), (7, IBV_WC_RECV));
    assert_eq!((wc.byte_len, wc.wc_flags), (LENGTH as u32, IBV_WC_GRH));
    assert_eq!(other.memory.get(0, LENGTH), pattern(1, LENGTH));

    let mut wr = send_wr(2, IBV_WR_SEND_WITH_IMM, &mut sges[..1]);
    wr.imm.imm_data = IMM;
    other.receive(8, 0, LENGTH);
    perform(one, wr, IBV_WC_SEND);
    let wc = other.done();
    assert_eq!((wc.wr_id, wc.wc_flags), (8, IBV_WC_GRH | IBV_WC_WITH_IMM));
    // SAFETY: all fields of the union are integers.
    assert_eq!(unsafe { wc.imm.imm_data }, IMM);
}

fn inline(one: &End, other: &End) {
    // Inline data needs no key, and may be overwritten after the post.
    let mut data = pattern(2, 100);
    let mut sges = [
        ibv_sge {
            addr: data.as_ptr() as u64,
            length: 60,
            lkey: 0,
        },
        ibv_sge {
            addr: data[60..].as_ptr() as u64,
            length: 40,
            lkey: 0,
        },
    ];
    let mut wr = send_wr(3, IBV_WR_SEND, &mut sges);
    wr.send_flags |= IBV_SEND_INLINE;
    other.receive(9, 0, LENGTH);
    assert_eq!(post_send(one.qp, core::slice::from_mut(&mut wr)), Ok(()));
    data.fill(0);
    one.done();
    other.done();
    assert_eq!(other.memory.get(0, 100), pattern(2, 100));
}

fn writes(one: &End, other: &End) {
    one.memory.put(0, &pattern(3, LENGTH));
    let mut sges = [one.memory.sge(0, LENGTH)];
    let mut wr = send_wr(4, IBV_WR_RDMA_WRITE, &mut sges);
    at(&mut wr, other, THERE);
    perform(one, wr, IBV_WC_RDMA_WRITE);

    let mut sges = [one.memory.sge(0, 10)];
    let mut wr = send_wr(5, IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges);
    at(&mut wr, other, 8000);
    wr.imm.imm_data = IMM;
    other.receive(10, 0, 0);
    perform(one, wr, IBV_WC_RDMA_WRITE);
    let wc = other.done();
    assert_eq!((wc.wr_id, wc.opcode), (10, IBV_WC_RECV_RDMA_WITH_IMM));
    assert_eq!(
        (wc.byte_len, wc.wc_flags),
        (10, IBV_WC_GRH | IBV_WC_WITH_IMM)
    );
    // The immediate came after both writes.
    assert_eq!(other.memory.get(THERE, LENGTH), pattern(3, LENGTH));
    assert_eq!(other.memory.get(8000, 10), pattern(3, LENGTH)[..10]);
}

fn reads(one: &End, other: &End) {
    other.memory.put(THERE, &pattern(4, LENGTH));
    let mut sges = [one.memory.sge(0, 8), one.memory.sge(20, LENGTH - 8)];
    let mut wr = send_wr(6, IBV_WR_RDMA_READ, &mut sges);
    at(&mut wr, other, THERE);
    perform(one, wr, IBV_WC_RDMA_READ);
    let read = [one.memory.get(0, 8), one.memory.get(20, LENGTH - 8)].concat();
    assert_eq!(read, pattern(4, LENGTH));
}

fn atomics(one: &End, other: &End) {
    other.memory.put(0, &100u64.to_ne_bytes());
    let mut sges = [one.memory.sge(0, 8)];
    let mut wr = send_wr(7, IBV_WR_ATOMIC_FETCH_AND_ADD, &mut sges);
    wr.wr.atomic = ibv_send_wr_atomic {
        remote_addr: other.memory.address(0),
        compare_add: 11,
        swap: 0,
        rkey: other.memory.rkey(),
    };
    perform(one, wr, IBV_WC_FETCH_ADD);
    assert_eq!((one.memory.word(0), other.memory.word(0)), (100, 111));

    wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    wr.wr.atomic = ibv_send_wr_atomic {
        remote_addr: other.memory.address(0),
        compare_add: 111,
        swap: 5,
        rkey: other.memory.rkey(),
    };
    perform(one, wr, IBV_WC_COMP_SWAP);
    assert_eq!((one.memory.word(0), other.memory.word(0)), (111, 5));

    one.memory.put(0, &77u64.to_ne_bytes());
    let mut wr = send_wr(8, IBV_WR_ATOMIC_WRITE, &mut sges);
    at(&mut wr, other, 0);
    perform(one, wr, IBV_WC_ATOMIC_WRITE);
    assert_eq!(other.memory.word(0), 77);
}

/// Tests a window: one end binds it, the other writes through it, then it is invalidated.
fn windows(world: &World, one: &End, other: &End) {
    let mw = verbs::alloc_mw(world.pd, IBV_MW_TYPE_2);
    assert!(!mw.is_null());
    // SAFETY: the window is live.
    let rkey = unsafe { (*mw).rkey };
    let mut bind = send_wr(9, IBV_WR_BIND_MW, &mut []);
    bind.ext.bind_mw = ibv_send_wr_bind_mw {
        mw,
        rkey,
        bind_info: ibv_mw_bind_info {
            mr: other.memory.mr,
            addr: other.memory.address(512),
            length: 64,
            mw_access_flags: IBV_ACCESS_REMOTE_WRITE,
        },
    };
    perform(other, bind, IBV_WC_BIND_MW);

    one.memory.put(0, &pattern(5, 64));
    let mut sges = [one.memory.sge(0, 64)];
    let mut wr = send_wr(10, IBV_WR_RDMA_WRITE, &mut sges);
    wr.wr.rdma = ibv_send_wr_rdma {
        remote_addr: other.memory.address(512),
        rkey,
    };
    perform(one, wr, IBV_WC_RDMA_WRITE);

    let mut wr = send_wr(11, IBV_WR_SEND_WITH_INV, &mut []);
    wr.imm.invalidate_rkey = rkey;
    other.receive(12, 0, 0);
    perform(one, wr, IBV_WC_SEND);
    let wc = other.done();
    assert_eq!((wc.wr_id, wc.wc_flags), (12, IBV_WC_GRH | IBV_WC_WITH_INV));
    // SAFETY: all fields of the union are integers.
    assert_eq!(unsafe { wc.imm.invalidated_rkey }, rkey);
    assert_eq!(other.memory.get(512, 64), pattern(5, 64));

    perform(other, bind, IBV_WC_BIND_MW);
    let mut wr = send_wr(13, IBV_WR_LOCAL_INV, &mut []);
    wr.imm.invalidate_rkey = rkey;
    perform(other, wr, IBV_WC_LOCAL_INV);
}

#[test]
fn rc_supports_all_operations() {
    on_loopback("operations::rc_supports_all_operations", || {
        let world = World::open();
        let (one, other) = pair(&world, IBV_QPT_RC);
        for (one, other) in [(&one, &other), (&other, &one)] {
            sends(one, other);
            inline(one, other);
            writes(one, other);
            reads(one, other);
            atomics(one, other);
            windows(&world, one, other);
        }
    });
}

#[test]
fn uc_supports_send_and_write() {
    on_loopback("operations::uc_supports_send_and_write", || {
        let world = World::open();
        let (one, other) = pair(&world, IBV_QPT_UC);
        sends(&one, &other);
        inline(&one, &other);
        writes(&one, &other);
        let mut sges = [one.memory.sge(0, 8)];
        for opcode in [
            IBV_WR_RDMA_READ,
            IBV_WR_ATOMIC_FETCH_AND_ADD,
            IBV_WR_SEND_WITH_INV,
        ] {
            let mut wrs = [send_wr(1, opcode, &mut sges)];
            assert_eq!(post_send(one.qp, &mut wrs), Err((0, libc::EINVAL)));
        }
    });
}

#[test]
fn datagram_arrives_with_a_grh() {
    on_loopback("operations::datagram_arrives_with_a_grh", || {
        let world = World::open();
        let (one, other) = pair(&world, IBV_QPT_UD);
        one.memory.put(0, &pattern(6, 900));
        let mut sges = [one.memory.sge(0, 900)];
        let mut wr = send_wr(1, IBV_WR_SEND_WITH_IMM, &mut sges);
        wr.imm.imm_data = IMM;
        wr.wr.ud = ibv_send_wr_ud {
            ah: world.ah(),
            remote_qpn: other.number(),
            remote_qkey: QKEY,
        };
        other.receive(2, 0, 2000);
        perform(&one, wr, IBV_WC_SEND);
        let wc = other.done();
        assert_eq!((wc.byte_len, wc.src_qp), (940, one.number()));
        assert_eq!(wc.wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
        assert_eq!(other.memory.get(40, 900), pattern(6, 900));
        // An IPv4 header takes the last 20 of the 40 bytes.
        let header = other.memory.get(20, 20);
        assert_eq!((header[0], header[8]), (0x45, 64), "version and hop limit");
        wr.wr.ud.ah = core::ptr::null_mut();
        assert_eq!(
            post_send(one.qp, core::slice::from_mut(&mut wr)),
            Err((0, libc::EINVAL)),
            "no address"
        );
    });
}

#[test]
fn list_is_posted_up_to_the_first_invalid_request() {
    on_loopback(
        "operations::list_is_posted_up_to_the_first_invalid_request",
        || {
            let world = World::open();
            let (one, other) = pair(&world, IBV_QPT_RC);
            let mut sges = [other.memory.sge(0, 64)];
            let mut receives = [1, 2, 3, 4].map(|wr_id| receive_wr(wr_id, &mut sges));
            assert_eq!(post_recv(other.qp, &mut receives), Ok(()));

            let mut sges = [one.memory.sge(0, 64)];
            let mut wrs = [1, 2, 3, 4].map(|wr_id| send_wr(wr_id, IBV_WR_SEND, &mut sges));
            wrs[2].opcode = 99;
            assert_eq!(post_send(one.qp, &mut wrs), Err((2, libc::EINVAL)));
            for wr_id in [1, 2] {
                assert_eq!((one.done().wr_id, other.done().wr_id), (wr_id, wr_id));
            }

            // One work request more than the queue holds.
            let mut sges = [other.memory.sge(0, 64)];
            let mut receives = [receive_wr(1, &mut sges); 64];
            assert_eq!(post_recv(other.qp, &mut receives), Err((62, libc::ENOMEM)));
            receives[3].num_sge = 5;
            let few = &mut receives[3..4];
            assert_eq!(post_recv(other.qp, few), Err((0, libc::EINVAL)));

            // The peer does not answer, so the send queue does not drain.
            assert_eq!(verbs::destroy_qp(other.qp), 0);
            let mut wrs = vec![send_wr(1, IBV_WR_SEND, &mut []); 65];
            assert_eq!(post_send(one.qp, &mut wrs), Err((64, libc::ENOMEM)));
        },
    );
}

#[test]
fn unsignaled_send_completes_only_with_sq_sig_all() {
    on_loopback(
        "operations::unsignaled_send_completes_only_with_sq_sig_all",
        || {
            let world = World::open();
            for all in [0, 1] {
                let mut init = world.init(IBV_QPT_RC);
                init.sq_sig_all = all;
                let qp = verbs::create_qp(world.pd, &raw mut init);
                let (one, other) = (world.with(qp, init.send_cq), world.end(IBV_QPT_RC));
                connect(&one, &other);
                other.receive(1, 0, 0);
                other.receive(2, 0, 0);
                let mut wrs = [1, 2].map(|wr_id| send_wr(wr_id, IBV_WR_SEND, &mut []));
                wrs[0].send_flags = 0;
                assert_eq!(post_send(one.qp, &mut wrs), Ok(()));
                let first = if all == 1 { 1 } else { 2 };
                assert_eq!(one.done().wr_id, first);
                let mut attr: ibv_qp_attr = zeroed();
                let mut init: ibv_qp_init_attr = zeroed();
                let mask = IBV_QP_STATE as c_int;
                assert_eq!(
                    verbs::query_qp(one.qp, &raw mut attr, mask, &raw mut init),
                    0
                );
                assert_eq!(init.sq_sig_all, all);
            }
        },
    );
}

/// libiscsi has its scatter/gather elements in packed structures.
#[test]
fn unaligned_scatter_gather_lists_are_accepted() {
    #[repr(C, packed)]
    struct Packed {
        odd: u8,
        sge: ibv_sge,
    }
    #[repr(C, align(8))]
    struct Misaligned(Packed);
    on_loopback(
        "operations::unaligned_scatter_gather_lists_are_accepted",
        || {
            let world = World::open();
            let (one, other) = pair(&world, IBV_QPT_RC);
            one.memory.put(0, &pattern(9, 64));
            let [mut from, mut to] = [&one, &other].map(|end| {
                let sge = end.memory.sge(0, 64);
                Misaligned(Packed { odd: 0, sge })
            });
            let mut receive = receive_wr(1, &mut []);
            (receive.sg_list, receive.num_sge) = (&raw mut to.0.sge, 1);
            assert!(!receive.sg_list.is_aligned());
            assert_eq!(
                post_recv(other.qp, core::slice::from_mut(&mut receive)),
                Ok(())
            );
            let mut send = send_wr(2, IBV_WR_SEND, &mut []);
            (send.sg_list, send.num_sge) = (&raw mut from.0.sge, 1);
            assert_eq!(post_send(one.qp, core::slice::from_mut(&mut send)), Ok(()));
            assert_eq!((one.done().wr_id, other.done().wr_id), (2, 1));
            assert_eq!(other.memory.get(0, 64), pattern(9, 64));
        },
    );
}
