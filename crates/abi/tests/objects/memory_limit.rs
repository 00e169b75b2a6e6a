//! Calls beyond the process's memory limit fail with ENOMEM and do not crash.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use ferroce_testnet::deadline;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::common::{errno, made, with_device, zeros};

/// True if all threads but this one sleep. A thread that starts needs memory, without which
/// Rust's standard library panics.
fn others_sleep() -> bool {
    let this = rustix::thread::gettid().as_raw_nonzero().to_string();
    let threads = std::fs::read_dir("/proc/self/task").expect("procfs");
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The name, in parentheses, precedes the state.
        let state = stat
            .rsplit_once(") ")
            .map(|(_, rest)| rest.starts_with('S'));
        thread.file_name() == *this || state.unwrap_or(true)
    })
}

/// Limits the address space to this many megabytes more than the process uses.
fn limit_memory(more: u64) {
    deadline::until("the threads of the device have started", others_sleep);
    let pages = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages = pages.split(' ').next().expect("the size comes first");
    let now = pages.parse::<u64>().expect("a number") * 4096;
    let limit = Rlimit {
        current: Some(now + (more << 20)),
        ..getrlimit(Resource::As)
    };
    setrlimit(Resource::As, limit).expect("it is below the maximum");
}

/// Creates objects until one is refused, which must be with ENOMEM.
unsafe fn until_refused<T>(mut make: impl FnMut() -> *mut T) -> Vec<*mut T> {
    let mut all = Vec::with_capacity(1 << 19);
    loop {
        let object = make();
        if object.is_null() {
            assert_eq!(errno(), libc::ENOMEM);
            return all;
        }
        all.push(object);
    }
}

#[test]
fn objects_beyond_the_memory_limit_are_refused() {
    let name = "memory_limit::objects_beyond_the_memory_limit_are_refused";
    with_device(name, |context| unsafe {
        let pd = made(ibv_alloc_pd(context));
        let small = made(ibv_create_cq(
            context,
            1,
            ptr::null_mut(),
            ptr::null_mut(),
            0,
        ));
        let create_cq = || {
            let most = (1 << 20) - 1;
            ibv_create_cq(context, most, ptr::null_mut(), ptr::null_mut(), 0)
        };
        let create_srq = || {
            let mut attr: ibv_srq_init_attr = zeros();
            (attr.attr.max_wr, attr.attr.max_sge) = (1 << 20, 27);
            ibv_create_srq(pd, &mut attr)
        };
        let create_qp = |(wr, sge, inline): (u32, u32, u32)| {
            let mut attr: ibv_qp_init_attr = zeros();
            (attr.send_cq, attr.recv_cq) = (small, small);
            attr.qp_type = IBV_QPT_RC;
            (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (wr, wr);
            (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (sge, sge);
            attr.cap.max_inline_data = inline;
            ibv_create_qp(pd, &mut attr)
        };
        limit_memory(300);
        // Twice: freed memory can be used again.
        for _ in 0..2 {
            let cqs = until_refused(create_cq);
            assert!(!cqs.is_empty());
            let cq = cqs[0];
            assert_eq!(ibv_resize_cq(cq, 1), 0);
            assert_eq!(cqs.iter().map(|cq| ibv_destroy_cq(*cq)).sum::<i32>(), 0);
        }
        assert_eq!(until_refused(create_srq).len(), 0);
        assert_eq!(until_refused(|| create_qp((1 << 20, 32, 512))).len(), 0);
        for sizes in [(1 << 15, 32, 0), (1 << 10, 1, 512), (1, 1, 0)] {
            let qps = until_refused(|| create_qp(sizes));
            assert!(!qps.is_empty());
            assert_eq!(qps.iter().map(|qp| ibv_destroy_qp(*qp)).sum::<i32>(), 0);
        }
        let qp = made(create_qp((16, 1, 16)));
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(small), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}

#[test]
fn regions_beyond_the_memory_limit_are_refused() {
    let name = "memory_limit::regions_beyond_the_memory_limit_are_refused";
    with_device(name, |context| unsafe {
        let pd = made(ibv_alloc_pd(context));
        let mut bytes = vec![0u8; 4096];
        limit_memory(40);
        let mrs = until_refused(|| ibv_reg_mr(pd, bytes.as_mut_ptr().cast(), 4096, 1));
        assert!(mrs.len() > 1000, "{}", mrs.len());
        assert_eq!(mrs.iter().map(|mr| ibv_dereg_mr(*mr)).sum::<i32>(), 0);
        let again = made(ibv_reg_mr(pd, bytes.as_mut_ptr().cast(), 4096, 1));
        assert_eq!(ibv_dereg_mr(again), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}
