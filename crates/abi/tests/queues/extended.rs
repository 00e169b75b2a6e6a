//! `ibv_wr_*`: work requests built by function calls.

use core::ffi::c_void;

use ferroce_abi::ffi::*;

use crate::support::verbs;
use crate::support::{End, QKEY, World, connect, on_loopback, pattern};

const IMM: u32 = 0x0403_0201;
/// All operations of RC.
const ALL: u64 = (1 << 13) - 1 - (IBV_QP_EX_WITH_TSO as u64);

/// Calls a function pointer of the queue pair, as the inline functions do.
macro_rules! wr {
    ($end:expr, $name:ident $(, $arg:expr)*) => {{
        let qp = verbs::qp_to_qp_ex($end.qp);
        assert!(!qp.is_null());
        // SAFETY: the queue pair is live and extended.
        unsafe { ((*qp).$name.expect("filled"))(qp $(, $arg)*) }
    }};
}

/// Sets the `wr_id` and the flags of the next work request.
fn tag(end: &End, wr_id: u64, flags: u32) {
    let qp = verbs::qp_to_qp_ex(end.qp);
    // SAFETY: the queue pair is live and extended.
    unsafe {
        (*qp).wr_id = wr_id;
        (*qp).wr_flags = flags;
    }
}

/// Builds and posts one work request, and waits for its completion.
fn perform(end: &End, wr_id: u64, opcode: ibv_wc_opcode, build: impl FnOnce()) {
    wr!(end, wr_start);
    tag(end, wr_id, IBV_SEND_SIGNALED);
    build();
    assert_eq!(wr!(end, wr_complete), 0);
    let wc = end.done();
    assert_eq!((wc.wr_id, wc.opcode), (wr_id, opcode));
}

fn sge(end: &End, at: usize, length: u32) {
    let memory = &end.memory;
    wr!(end, wr_set_sge, memory.lkey(), memory.address(at), length);
}

fn everything(world: &World, one: &End, other: &End) {
    let (rkey, there) = (other.memory.rkey(), |at| other.memory.address(at));
    one.memory.put(0, &pattern(1, 3000));

    other.receive(1, 0, 3000);
    perform(one, 1, IBV_WC_SEND, || {
        wr!(one, wr_send);
        let list = [one.memory.sge(0, 1000), one.memory.sge(1000, 2000)];
        wr!(one, wr_set_sge_list, 2, list.as_ptr());
    });
    assert_eq!(other.done().byte_len, 3000);
    assert_eq!(other.memory.get(0, 3000), pattern(1, 3000));

    other.receive(2, 0, 3000);
    let data = pattern(2, 100);
    perform(one, 2, IBV_WC_SEND, || {
        wr!(one, wr_send_imm, IMM);
        wr!(one, wr_set_inline_data, data.as_ptr() as *mut c_void, 100);
    });
    let wc = other.done();
    assert_eq!(wc.wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
    // SAFETY: all fields of the union are integers.
    assert_eq!(unsafe { wc.imm.imm_data }, IMM);
    assert_eq!(other.memory.get(0, 100), data);

    perform(one, 3, IBV_WC_RDMA_WRITE, || {
        wr!(one, wr_rdma_write, rkey, there(4096));
        let list = [&data[..30], &data[30..]].map(|part| ibv_data_buf {
            addr: part.as_ptr() as *mut c_void,
            length: part.len(),
        });
        wr!(one, wr_set_inline_data_list, 2, list.as_ptr());
    });
    other.receive(4, 0, 0);
    perform(one, 4, IBV_WC_RDMA_WRITE, || {
        wr!(one, wr_rdma_write_imm, rkey, there(8192), IMM);
        sge(one, 0, 2000);
    });
    assert_eq!(other.done().opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    assert_eq!(other.memory.get(4096, 100), data);
    assert_eq!(other.memory.get(8192, 2000), pattern(1, 3000)[..2000]);

    perform(one, 5, IBV_WC_RDMA_READ, || {
        wr!(one, wr_rdma_read, rkey, there(8192));
        sge(one, 5000, 2000);
    });
    assert_eq!(one.memory.get(5000, 2000), pattern(1, 3000)[..2000]);

    other.memory.put(0, &40u64.to_ne_bytes());
    perform(one, 6, IBV_WC_FETCH_ADD, || {
        wr!(one, wr_atomic_fetch_add, rkey, there(0), 2);
        sge(one, 0, 8);
    });
    assert_eq!((one.memory.word(0), other.memory.word(0)), (40, 42));
    perform(one, 7, IBV_WC_COMP_SWAP, || {
        wr!(one, wr_atomic_cmp_swp, rkey, there(0), 42, 9);
        sge(one, 0, 8);
    });
    assert_eq!((one.memory.word(0), other.memory.word(0)), (42, 9));
    let value = 0x1122_3344_5566_7788u64;
    perform(one, 8, IBV_WC_ATOMIC_WRITE, || {
        wr!(
            one,
            wr_atomic_write,
            rkey,
            there(0),
            (&raw const value).cast()
        );
    });
    assert_eq!(other.memory.word(0), value);
    perform(one, 9, IBV_WC_FLUSH, || {
        let (kind, level) = (IBV_FLUSH_GLOBAL as u8, IBV_FLUSH_RANGE as u8);
        wr!(one, wr_flush, rkey, there(0), 4096, kind, level);
    });

    let mw = verbs::alloc_mw(world.pd, IBV_MW_TYPE_2);
    // SAFETY: the window is live.
    let window = unsafe { (*mw).rkey };
    let info = ibv_mw_bind_info {
        mr: other.memory.mr,
        addr: there(512),
        length: 64,
        mw_access_flags: IBV_ACCESS_REMOTE_WRITE,
    };
    perform(other, 10, IBV_WC_BIND_MW, || {
        wr!(other, wr_bind_mw, mw, window, &raw const info);
    });
    perform(one, 11, IBV_WC_RDMA_WRITE, || {
        wr!(one, wr_rdma_write, window, there(512));
        sge(one, 5000, 64);
    });
    other.receive(12, 0, 0);
    perform(one, 12, IBV_WC_SEND, || wr!(one, wr_send_inv, window));
    assert_eq!(other.done().wc_flags, IBV_WC_GRH | IBV_WC_WITH_INV);
    perform(other, 13, IBV_WC_BIND_MW, || {
        wr!(other, wr_bind_mw, mw, window, &raw const info);
    });
    perform(other, 14, IBV_WC_LOCAL_INV, || {
        wr!(other, wr_local_inv, window)
    });
}

#[test]
fn all_operations_can_be_built_by_calls() {
    on_loopback("extended::all_operations_can_be_built_by_calls", || {
        let world = World::open();
        let (one, other) = (world.end_ex(IBV_QPT_RC, ALL), world.end_ex(IBV_QPT_RC, ALL));
        connect(&one, &other);
        everything(&world, &one, &other);
        everything(&world, &other, &one);
    });
}

#[test]
fn datagram_address_is_set_by_a_call() {
    on_loopback("extended::datagram_address_is_set_by_a_call", || {
        let world = World::open();
        let ops = u64::from(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
        let (one, other) = (world.end_ex(IBV_QPT_UD, ops), world.end(IBV_QPT_UD));
        connect(&one, &other);
        let ah = world.ah();
        one.memory.put(0, &pattern(1, 500));
        for wr_id in 0..2 {
            other.receive(wr_id, 0, 1000);
            perform(&one, wr_id, IBV_WC_SEND, || {
                wr!(one, wr_send);
                wr!(one, wr_set_ud_addr, ah, other.number(), QKEY);
                sge(&one, 0, 500);
            });
            assert_eq!(other.done().byte_len, 540);
        }
        assert_eq!(other.memory.get(40, 500), pattern(1, 500));
        wr!(one, wr_start);
        wr!(one, wr_send);
        sge(&one, 0, 500);
        assert_eq!(wr!(one, wr_complete), libc::EINVAL, "no address");
    });
}

#[test]
fn invalid_batch_fails_in_wr_complete_and_posts_nothing() {
    on_loopback(
        "extended::invalid_batch_fails_in_wr_complete_and_posts_nothing",
        || {
            let world = World::open();
            let (one, other) = (world.end_ex(IBV_QPT_RC, ALL), world.end(IBV_QPT_RC));
            connect(&one, &other);
            let mistakes: [(i32, &dyn Fn()); 7] = [
                (libc::EOPNOTSUPP, &|| {
                    wr!(one, wr_send_tso, core::ptr::null_mut(), 0, 0);
                }),
                (libc::EINVAL, &|| {
                    wr!(one, wr_send);
                    wr!(one, wr_set_sge_list, 1000, core::ptr::null());
                }),
                (libc::EINVAL, &|| {
                    wr!(one, wr_send);
                    wr!(
                        one,
                        wr_set_inline_data,
                        one.memory.address(0) as *mut c_void,
                        1 << 20
                    );
                }),
                (libc::EFAULT, &|| {
                    wr!(one, wr_send);
                    wr!(one, wr_set_inline_data, core::ptr::null_mut(), 8);
                }),
                (libc::EINVAL, &|| {
                    wr!(one, wr_rdma_read, 0, 0);
                    wr!(
                        one,
                        wr_set_inline_data,
                        one.memory.address(0) as *mut c_void,
                        8
                    );
                }),
                (libc::EINVAL, &|| {
                    wr!(one, wr_bind_mw, core::ptr::null_mut(), 0, core::ptr::null());
                }),
                (libc::ENOMEM, &|| {
                    for _ in 0..64 {
                        wr!(one, wr_send);
                    }
                }),
            ];
            for (which, (errno, mistake)) in mistakes.into_iter().enumerate() {
                wr!(one, wr_start);
                tag(&one, 1, IBV_SEND_SIGNALED);
                wr!(one, wr_send);
                mistake();
                assert_eq!(wr!(one, wr_complete), errno, "mistake {which}");
            }
            wr!(one, wr_start);
            wr!(one, wr_set_sge, 0, 0, 0);
            assert_eq!(wr!(one, wr_complete), libc::EINVAL, "of nothing");
            wr!(one, wr_start);
            wr!(one, wr_send);
            wr!(one, wr_abort);

            // Refused and aborted batches have posted nothing.
            for wr_id in 0..64 {
                other.receive(wr_id, 0, 0);
            }
            wr!(one, wr_start);
            for wr_id in 0..64 {
                tag(&one, wr_id, IBV_SEND_SIGNALED);
                wr!(one, wr_send);
            }
            assert_eq!(wr!(one, wr_complete), 0);
            for wr_id in 0..64 {
                assert_eq!((one.done().wr_id, other.done().wr_id), (wr_id, wr_id));
            }
        },
    );
}

#[test]
fn only_extended_queue_pairs_have_the_calls() {
    on_loopback("extended::only_extended_queue_pairs_have_the_calls", || {
        let world = World::open();
        assert!(verbs::qp_to_qp_ex(world.end(IBV_QPT_RC).qp).is_null());
        let init = world.init(IBV_QPT_UD);
        let refused = |kind, ops: u32, flags: u32, mask: u32| {
            let mut init = ibv_qp_init_attr_ex {
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                cap: init.cap,
                qp_type: kind,
                comp_mask: mask | IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                pd: world.pd,
                create_flags: flags,
                send_ops_flags: u64::from(ops),
                ..verbs::zeroed()
            };
            let qp = verbs::create_qp_ex(world.context, &raw mut init);
            qp.is_null() && verbs::errno() == libc::EOPNOTSUPP
        };
        assert!(refused(IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE, 0, 0));
        assert!(refused(IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ, 0, 0));
        assert!(refused(IBV_QPT_RC, IBV_QP_EX_WITH_TSO, 0, 0));
        assert!(refused(IBV_QPT_RC, 1 << 31, 0, 0));
        assert!(refused(IBV_QPT_RC, 0, 1, IBV_QP_INIT_ATTR_CREATE_FLAGS));
        assert!(refused(IBV_QPT_RC, 0, 0, IBV_QP_INIT_ATTR_IND_TABLE));
        assert!(!refused(IBV_QPT_RC, 0, 0, IBV_QP_INIT_ATTR_CREATE_FLAGS));
    });
}
