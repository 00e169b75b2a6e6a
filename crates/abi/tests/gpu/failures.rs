//! Failures: freed memory, and calls of the driver that fail. An operation fails, and the
//! process goes on.

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::inline::post_send;
use crate::common::pair::{completion, element, post, receive, request, success};
use crate::common::refused;
use crate::fixture::Place::{Gpu, Host};
use crate::fixture::{ACCESS, Fixture, pattern, with_pair};

const OUT_OF_MEMORY: i32 = 2;
const ILLEGAL_ADDRESS: i32 = 700;

/// Checks that a WRITE works.
fn still_works(f: &Fixture) {
    let (from, to) = (f.memory(Host, 4096), f.memory(Gpu, 4096));
    from.put(0, &pattern(7, 4096));
    let mut wr = request(1, IBV_WR_RDMA_WRITE);
    wr.wr.rdma = to.remote(0);
    unsafe { post(f.qps[0], wr, from.sge(0, 4096)) };
    success(f.cqs[0]);
    assert_eq!(to.get(0, 4096), pattern(7, 4096));
}

/// Runs a test with registered memory that is freed, once for short and once for long messages.
fn with_freed(name: &str, test: impl Fn(&Fixture, &crate::fixture::Memory<'_>, usize)) {
    with_pair(name, |f| {
        for length in [8, 100_000] {
            // Real drivers keep freed memory of small allocations mapped.
            let freed = f.memory(Gpu, 32 << 20);
            f.cuda.free(freed.start);
            test(f, &freed, length);
            drop(freed);
            drain(f);
            f.reconnect();
            still_works(f);
        }
    });
}

/// Takes flushed completions.
fn drain(f: &Fixture) {
    let mut wcs: [ibv_wc; 16] = crate::common::zeros();
    for cq in f.cqs {
        while unsafe { crate::common::inline::poll_cq(cq, &mut wcs) } > 0 {}
    }
}

#[test]
fn write_to_freed_memory_fails() {
    with_freed(
        "failures::write_to_freed_memory_fails",
        |f, freed, length| {
            let from = f.memory(Host, length);
            let mut wr = request(1, IBV_WR_RDMA_WRITE);
            wr.wr.rdma = freed.remote(0);
            unsafe { post(f.qps[0], wr, from.sge(0, length)) };
            assert_eq!(completion(f.cqs[0]).status, IBV_WC_REM_OP_ERR);
        },
    );
}

#[test]
fn read_of_freed_memory_fails() {
    with_freed(
        "failures::read_of_freed_memory_fails",
        |f, freed, length| {
            let to = f.memory(Host, length);
            let mut wr = request(1, IBV_WR_RDMA_READ);
            wr.wr.rdma = freed.remote(0);
            unsafe { post(f.qps[0], wr, to.sge(0, length)) };
            assert_eq!(completion(f.cqs[0]).status, IBV_WC_REM_OP_ERR);
        },
    );
}

#[test]
fn read_into_freed_memory_fails() {
    with_freed(
        "failures::read_into_freed_memory_fails",
        |f, freed, length| {
            let from = f.memory(Host, length);
            let mut wr = request(1, IBV_WR_RDMA_READ);
            wr.wr.rdma = from.remote(0);
            unsafe { post(f.qps[0], wr, freed.sge(0, length)) };
            assert_eq!(completion(f.cqs[0]).status, IBV_WC_LOC_PROT_ERR);
        },
    );
}

#[test]
fn send_from_freed_memory_fails() {
    with_freed(
        "failures::send_from_freed_memory_fails",
        |f, freed, length| {
            let to = f.memory(Host, length);
            unsafe {
                receive(f.qps[1], 1, to.sge(0, length));
                post(f.qps[0], request(2, IBV_WR_SEND), freed.sge(0, length));
            }
            assert_eq!(completion(f.cqs[0]).status, IBV_WC_LOC_PROT_ERR);
        },
    );
}

#[test]
fn receive_into_freed_memory_fails() {
    with_freed(
        "failures::receive_into_freed_memory_fails",
        |f, freed, length| {
            let from = f.memory(Host, length);
            unsafe {
                receive(f.qps[1], 1, freed.sge(0, length));
                post(f.qps[0], request(2, IBV_WR_SEND), from.sge(0, length));
            }
            assert_eq!(completion(f.cqs[1]).status, IBV_WC_LOC_PROT_ERR);
            assert_eq!(completion(f.cqs[0]).status, IBV_WC_REM_OP_ERR);
        },
    );
}

#[test]
fn atomic_in_freed_memory_fails() {
    with_freed("failures::atomic_in_freed_memory_fails", |f, freed, _| {
        let result = f.memory(Host, 8);
        let mut wr = request(1, IBV_WR_ATOMIC_FETCH_AND_ADD);
        wr.wr.atomic = ibv_send_wr_atomic {
            remote_addr: freed.start,
            compare_add: 1,
            swap: 0,
            rkey: freed.rkey(),
        };
        unsafe { post(f.qps[0], wr, result.sge(0, 8)) };
        assert_eq!(completion(f.cqs[0]).status, IBV_WC_REM_OP_ERR);
    });
}

#[test]
fn memory_of_a_destroyed_context_fails() {
    let name = "failures::memory_of_a_destroyed_context_fails";
    with_pair(name, |f| {
        let own = f.cuda.create_context(0);
        let gone = f.memory(Gpu, 32 << 20);
        f.cuda.destroy_context(own);
        f.cuda.push(f.cuda.context);
        let from = f.memory(Host, 4096);
        let mut wr = request(1, IBV_WR_RDMA_WRITE);
        wr.wr.rdma = gone.remote(0);
        unsafe { post(f.qps[0], wr, from.sge(0, 4096)) };
        assert_eq!(completion(f.cqs[0]).status, IBV_WC_REM_OP_ERR);
    });
}

#[test]
fn unreadable_inline_data_is_refused() {
    with_pair("failures::unreadable_inline_data_is_refused", |f| unsafe {
        let start = f.cuda.allocate(32 << 20);
        f.cuda.free(start);
        let mut sge = element(start as *const u8, 8, 0);
        let mut wr = request(1, IBV_WR_SEND);
        wr.send_flags |= IBV_SEND_INLINE;
        (wr.sg_list, wr.num_sge) = (&mut sge, 1);
        let mut bad = core::ptr::null_mut();
        assert_eq!(post_send(f.qps[0], &mut wr, &mut bad), libc::EFAULT);
    });
}

#[test]
fn registration_without_staging_memory_is_refused() {
    let name = "failures::registration_without_staging_memory_is_refused";
    with_pair(name, |f| unsafe {
        if f.cuda.is_real {
            return;
        }
        let start = f.cuda.allocate(4096);
        for (call, errno) in [
            (c"cuMemHostAlloc", libc::ENOMEM),
            (c"cuEventCreate", libc::ENOMEM),
            (c"cuCtxPushCurrent_v2", libc::ENOMEM),
            (c"cuDevicePrimaryCtxRetain", libc::EOPNOTSUPP),
        ] {
            f.cuda.fail(call, OUT_OF_MEMORY);
            refused(ibv_reg_mr(f.pd, start as *mut _, 4096, ACCESS), errno);
            f.cuda.fail(call, 0);
        }
        still_works(f);
    });
}

#[test]
fn failed_copy_completes_with_an_error() {
    let name = "failures::failed_copy_completes_with_an_error";
    with_pair(name, |f| {
        if f.cuda.is_real {
            return;
        }
        let (from, to) = (f.memory(Host, 100_000), f.memory(Gpu, 100_000));
        // The copies start, and their end reports the failure.
        f.cuda.fail(c"cuEventQuery", ILLEGAL_ADDRESS);
        let mut wr = request(1, IBV_WR_RDMA_WRITE);
        wr.wr.rdma = to.remote(0);
        unsafe { post(f.qps[0], wr, from.sge(0, 100_000)) };
        assert_eq!(completion(f.cqs[0]).status, IBV_WC_REM_OP_ERR);
    });
}
