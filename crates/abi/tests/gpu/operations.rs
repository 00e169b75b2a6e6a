//! Operations from and to memory of GPUs. Each test reads the data at the moment of its
//! completion: the stand-in copies only what was waited for.

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::inline::post_send;
use crate::common::pair::{element, make_ready, post, queue_pair, receive, request, success, way};
use crate::common::{V4, made, zeros};
use crate::fixture::Place::{Gpu, Host};
use crate::fixture::{Fixture, Memory, Place, pattern, with_pair};

/// Lengths around the MTU of 1024, around a merged run of packets, and beyond the staging
/// memory.
const LENGTHS: [usize; 13] = [
    1,
    7,
    8,
    1023,
    1024,
    1025,
    3000,
    4096,
    65_535,
    65_536,
    200_001,
    1 << 20,
    3_000_000,
];
const PLACES: [(Place, Place); 3] = [(Gpu, Gpu), (Gpu, Host), (Host, Gpu)];
const ROOM: usize = 3_000_000 + 64;

/// Runs a test for all places and lengths. `transfer` moves bytes from offset 3 of the first
/// memory to offset 5 of the second.
fn for_all(name: &str, transfer: impl Fn(&Fixture, &Memory<'_>, &Memory<'_>, usize)) {
    with_pair(name, |f| {
        for (from, to) in PLACES {
            let (from, to) = (f.memory(from, ROOM), f.memory(to, ROOM));
            for (seed, length) in LENGTHS.into_iter().enumerate() {
                let data = pattern(seed, length);
                to.put(0, &vec![0xee; length + 10]);
                from.put(3, &data);
                transfer(f, &from, &to, length);
                let got = to.get(0, length + 10);
                let what = format!("{length} bytes, {:?} to {:?}", from.place, to.place);
                assert_eq!(got[..5], [0xee; 5], "{what}");
                assert!(got[5..length + 5] == data, "{what}");
                assert_eq!(got[length + 5..], [0xee; 5], "{what}");
            }
        }
    });
}

#[test]
fn sends_arrive() {
    for_all("operations::sends_arrive", |f, from, to, length| unsafe {
        receive(f.qps[1], 1, to.sge(5, length));
        post(f.qps[0], request(2, IBV_WR_SEND), from.sge(3, length));
        assert_eq!(success(f.cqs[1]).byte_len, length as u32);
    });
}

#[test]
fn writes_arrive() {
    for_all("operations::writes_arrive", |f, from, to, length| unsafe {
        let mut wr = request(1, IBV_WR_RDMA_WRITE);
        wr.wr.rdma = to.remote(5);
        post(f.qps[0], wr, from.sge(3, length));
        success(f.cqs[0]);
    });
}

#[test]
fn writes_with_immediate_arrive_before_their_completion() {
    let name = "operations::writes_with_immediate_arrive_before_their_completion";
    for_all(name, |f, from, to, length| unsafe {
        let mut wr = request(1, IBV_WR_RDMA_WRITE_WITH_IMM);
        wr.wr.rdma = to.remote(5);
        receive(f.qps[1], 1, element(core::ptr::null(), 0, 0));
        post(f.qps[0], wr, from.sge(3, length));
        assert_eq!(success(f.cqs[1]).opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    });
}

#[test]
fn reads_return_data() {
    for_all(
        "operations::reads_return_data",
        |f, from, to, length| unsafe {
            let mut wr = request(1, IBV_WR_RDMA_READ);
            wr.wr.rdma = from.remote(3);
            post(f.qps[1], wr, to.sge(5, length));
            success(f.cqs[1]);
        },
    );
}

#[test]
fn message_gathers_and_scatters_hosts_and_gpus() {
    let name = "operations::message_gathers_and_scatters_hosts_and_gpus";
    with_pair(name, |f| unsafe {
        let memory = [f.memory(Gpu, 9000), f.memory(Host, 9000)];
        let data = pattern(1, 6000);
        memory[0].put(0, &data[..2500]);
        memory[1].put(100, &data[2500..]);
        let mut to = [memory[1].sge(5000, 2300), memory[0].sge(4000, 3700)];
        let mut wr: ibv_recv_wr = zeros();
        (wr.sg_list, wr.num_sge) = (to.as_mut_ptr(), 2);
        let mut bad = core::ptr::null_mut();
        let posted = crate::common::inline::post_recv(f.qps[1], &mut wr, &mut bad);
        assert_eq!(posted, 0);
        let mut from = [memory[0].sge(0, 2500), memory[1].sge(100, 3500)];
        let mut wr = request(1, IBV_WR_SEND);
        (wr.sg_list, wr.num_sge) = (from.as_mut_ptr(), 2);
        let mut bad = core::ptr::null_mut();
        assert_eq!(post_send(f.qps[0], &mut wr, &mut bad), 0);
        success(f.cqs[1]);
        assert_eq!(memory[1].get(5000, 2300), data[..2300]);
        assert_eq!(memory[0].get(4000, 3700), data[2300..]);
    });
}

#[test]
fn atomics_change_memory_of_a_gpu() {
    with_pair("operations::atomics_change_memory_of_a_gpu", |f| unsafe {
        let (target, result) = (f.memory(Gpu, 64), f.memory(Gpu, 64));
        target.put(8, &40u64.to_ne_bytes());
        let mut wr = request(1, IBV_WR_ATOMIC_FETCH_AND_ADD);
        wr.wr.atomic = ibv_send_wr_atomic {
            remote_addr: target.start + 8,
            compare_add: 2,
            swap: 0,
            rkey: target.rkey(),
        };
        post(f.qps[0], wr, result.sge(16, 8));
        success(f.cqs[0]);
        assert_eq!((result.word(16), target.word(8)), (40, 42));
        for (compare, swapped) in [(41, 42), (42, 7)] {
            let mut wr = request(2, IBV_WR_ATOMIC_CMP_AND_SWP);
            wr.wr.atomic = ibv_send_wr_atomic {
                remote_addr: target.start + 8,
                compare_add: compare,
                swap: 7,
                rkey: target.rkey(),
            };
            post(f.qps[0], wr, result.sge(16, 8));
            success(f.cqs[0]);
            assert_eq!((result.word(16), target.word(8)), (42, swapped));
        }
        result.put(0, &99u64.to_ne_bytes());
        let mut wr = request(3, IBV_WR_ATOMIC_WRITE);
        wr.wr.rdma = target.remote(24);
        post(f.qps[0], wr, result.sge(0, 8));
        success(f.cqs[0]);
        assert_eq!(target.word(24), 99);
    });
}

#[test]
fn inline_data_is_read_from_a_gpu() {
    with_pair("operations::inline_data_is_read_from_a_gpu", |f| unsafe {
        let to = f.memory(Host, 64);
        let from = f.cuda.allocate(64);
        f.cuda.put(from, b"a few bytes");
        receive(f.qps[1], 1, to.sge(0, 64));
        let mut wr = request(2, IBV_WR_SEND);
        wr.send_flags |= IBV_SEND_INLINE;
        post(f.qps[0], wr, element(from as *const u8, 11, 0));
        // It was read during the post.
        f.cuda.put(from, b"other bytes");
        assert_eq!(success(f.cqs[1]).byte_len, 11);
        assert_eq!(to.get(0, 11), b"a few bytes");
        assert_eq!(f.cuda.current(), f.cuda.context);
    });
}

#[test]
fn datagrams_are_received_into_a_gpu() {
    with_pair(
        "operations::datagrams_are_received_into_a_gpu",
        |f| unsafe {
            let memory = f.memory(Gpu, 8192);
            let ends = f.cqs.map(|cq| queue_pair(f.pd, cq, IBV_QPT_UD));
            ends.into_iter().for_each(|qp| make_ready(qp));
            let mut to = way(V4);
            let ah = made(ibv_create_ah(f.pd, &mut to));
            let data = pattern(3, 900);
            memory.put(0, &data);
            receive(ends[1], 1, memory.sge(4096, 2048));
            let mut wr = request(2, IBV_WR_SEND);
            wr.wr.ud = ibv_send_wr_ud {
                ah,
                remote_qpn: (*ends[1]).qp_num,
                remote_qkey: crate::common::pair::QKEY,
            };
            post(ends[0], wr, memory.sge(0, 900));
            assert_eq!(success(f.cqs[1]).byte_len, 940);
            assert_eq!(memory.get(4096 + 40, 900), data);
            success(f.cqs[0]);
            ends.into_iter()
                .for_each(|qp| assert_eq!(ibv_destroy_qp(qp), 0));
            assert_eq!(ibv_destroy_ah(ah), 0);
        },
    );
}

#[test]
fn packets_of_a_message_are_copied_together() {
    let name = "operations::packets_of_a_message_are_copied_together";
    with_pair(name, |f| unsafe {
        const LENGTH: usize = 1 << 20;
        if f.cuda.is_real {
            return;
        }
        let (from, to) = (f.memory(Gpu, LENGTH), f.memory(Gpu, LENGTH));
        let counted = [
            c"cuMemcpyDtoHAsync_v2",
            c"cuMemcpyHtoDAsync_v2",
            c"cuEventRecord",
        ];
        let before = counted.map(|name| f.cuda.calls(name));
        let mut wr = request(1, IBV_WR_RDMA_WRITE);
        wr.wr.rdma = to.remote(0);
        post(f.qps[0], wr, from.sge(0, LENGTH));
        success(f.cqs[0]);
        let after = counted.map(|name| f.cuda.calls(name));
        // The message has 1024 packets, in runs of up to 62. The window is small at first.
        for ((name, before), after) in counted.into_iter().zip(before).zip(after) {
            let calls = after - before;
            assert!(calls <= 200, "{name:?} was called {calls} times");
        }
    });
}
