//! Registration of memory of GPUs: which pointers are recognised, and which ranges are refused.

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::inline::slot;
use crate::common::pair::{element, post, request, success};
use crate::common::{made, open, pages, refused, with_device};
use crate::cuda::Cuda;
use crate::fixture::Place::{Gpu, Host};
use crate::fixture::{ACCESS, Fixture, Memory, pattern, with_pair};

/// Copies bytes by a WRITE.
fn write(f: &Fixture, from: &Memory<'_>, to: &Memory<'_>, length: usize) {
    let mut wr = request(1, IBV_WR_RDMA_WRITE);
    wr.wr.rdma = to.remote(0);
    unsafe { post(f.qps[0], wr, from.sge(0, length)) };
    success(f.cqs[0]);
}

#[test]
fn process_without_cuda_loads_no_driver() {
    let name = "registration::process_without_cuda_loads_no_driver";
    with_device(name, |context| unsafe {
        let pd = made(ibv_alloc_pd(context));
        let memory = pages(1);
        let mr = made(ibv_reg_mr(pd, memory.cast(), 4096, ACCESS));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("libcuda"));
        assert_eq!(ibv_dereg_mr(mr), 0);
        // The program begins to use CUDA.
        let cuda = Cuda::load();
        let gpu = cuda.allocate(8192);
        let mr = made(ibv_reg_mr(pd, gpu as *mut _, 8192, ACCESS));
        assert_eq!(((*mr).addr as u64, (*mr).length), (gpu, 8192));
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}

#[test]
fn managed_and_pinned_memory_is_memory_of_the_host() {
    let name = "registration::managed_and_pinned_memory_is_memory_of_the_host";
    with_pair(name, |f| {
        let managed = f.register(Host, f.cuda.allocate_managed(4096), 4096);
        let pinned = f.register(Host, f.cuda.allocate_pinned(4096), 4096);
        let gpu = f.memory(Gpu, 4096);
        managed.put(0, &pattern(1, 4096));
        write(f, &managed, &gpu, 4096);
        write(f, &gpu, &pinned, 4096);
        assert_eq!(pinned.get(0, 4096), pattern(1, 4096));
    });
}

#[test]
fn dmabuf_is_found_by_its_iova() {
    with_pair("registration::dmabuf_is_found_by_its_iova", |f| unsafe {
        let length = 2 << 20;
        let start = f.cuda.allocate(length);
        let fd = f.cuda.dmabuf(start, length);
        let reg = |iova, fd| ibv_reg_dmabuf_mr(f.pd, 0, length, iova, fd, ACCESS);
        let mr = made(reg(start, fd));
        let source = f.memory(Host, 4096);
        source.put(0, &pattern(2, 4096));
        let mut wr = request(1, IBV_WR_RDMA_WRITE);
        wr.wr.rdma = ibv_send_wr_rdma {
            remote_addr: start + 10_000,
            rkey: (*mr).rkey,
        };
        post(f.qps[0], wr, source.sge(0, 4096));
        success(f.cqs[0]);
        assert_eq!(f.cuda.get(start + 10_000, 4096), pattern(2, 4096));
        assert_eq!(ibv_dereg_mr(mr), 0);
        // Without the address there is no way to the memory.
        refused(reg(0x1000, fd), libc::EOPNOTSUPP);
        refused(reg(start, -1), libc::EBADF);
        libc::close(fd);
        // NCCL asks in this way whether dma-bufs are supported: any other errno means yes.
        let asked = ibv_reg_dmabuf_mr(f.pd, 0, 0, 0, -1, 0);
        let errno = crate::common::errno();
        assert!(asked.is_null());
        assert!(![libc::EOPNOTSUPP, libc::EPROTONOSUPPORT].contains(&errno));
    });
}

#[test]
fn range_behind_an_allocation_is_refused() {
    let name = "registration::range_behind_an_allocation_is_refused";
    with_pair(name, |f| unsafe {
        let start = f.cuda.allocate(100_000);
        let reg = |length| ibv_reg_mr(f.pd, start as *mut _, length, ACCESS);
        refused(reg(1 << 40), libc::EINVAL);
        refused(reg(usize::MAX - 4096), libc::EINVAL);
        // NCCL extends ranges to whole pages.
        let mr = made(reg(102_400));
        assert_eq!(ibv_dereg_mr(mr), 0);
    });
}

#[test]
fn memory_can_change_between_host_and_gpu() {
    let name = "registration::memory_can_change_between_host_and_gpu";
    with_pair(name, |f| unsafe {
        let from = f.memory(Host, 4096);
        from.put(0, &pattern(4, 4096));
        let mut to = f.memory(Host, 4096);
        let gpu = f.cuda.allocate(4096);
        let change = IBV_REREG_MR_CHANGE_TRANSLATION as i32;
        let null = core::ptr::null_mut();
        assert_eq!(ibv_rereg_mr(to.mr, change, null, gpu as *mut _, 4096, 0), 0);
        (to.place, to.start) = (Gpu, gpu);
        write(f, &from, &to, 4096);
        assert_eq!(to.get(0, 4096), pattern(4, 4096));
    });
}

#[test]
fn gpu_memory_has_no_pages_to_prefetch() {
    let name = "registration::gpu_memory_has_no_pages_to_prefetch";
    with_pair(name, |f| unsafe {
        let start = f.cuda.allocate(4096);
        let access = ACCESS | IBV_ACCESS_ON_DEMAND as i32;
        let mr = made(ibv_reg_mr(f.pd, start as *mut _, 4096, access));
        let mut sge = element(start as *const u8, 4096, (*mr).lkey);
        let context = (*f.pd).context;
        let advised = slot!(context, advise_mr(f.pd, 0, 0, &mut sge, 1));
        assert_eq!(advised, libc::EOPNOTSUPP);
        assert_eq!(ibv_dereg_mr(mr), 0);
    });
}

#[test]
fn each_context_and_device_is_used_by_itself() {
    let name = "registration::each_context_and_device_is_used_by_itself";
    with_pair(name, |f| {
        if f.cuda.is_real {
            return;
        }
        // Device 1 has no primary context yet: its memory is copied in its own context.
        let own = f.cuda.create_context(1);
        let second = f.memory(Gpu, 5000);
        // Memory without a context belongs to the primary one.
        let mapped = f.register(Gpu, f.cuda.allocate_mapped(5000, 1), 5000);
        f.cuda.push(f.cuda.context);
        let first = f.memory(Gpu, 5000);
        first.put(0, &pattern(5, 5000));
        write(f, &first, &second, 5000);
        write(f, &second, &mapped, 5000);
        assert_eq!(mapped.get(0, 5000), pattern(5, 5000));
        // Several GPUs in one batch.
        unsafe {
            for memory in [&first, &second, &mapped] {
                let mut wr = request(1, IBV_WR_RDMA_WRITE);
                wr.wr.rdma = first.remote(0);
                post(f.qps[0], wr, memory.sge(0, 5000));
            }
        }
        for _ in 0..3 {
            success(f.cqs[0]);
        }
        assert_eq!(f.cuda.current(), f.cuda.context);
        assert_ne!(own, f.cuda.primary_context(1));
    });
}

#[test]
fn forked_child_knows_no_memory_of_gpus() {
    let name = "registration::forked_child_knows_no_memory_of_gpus";
    with_pair(name, |f| unsafe {
        if f.cuda.is_real {
            return;
        }
        let gpu = f.memory(Gpu, 4096);
        let child = libc::fork();
        if child == 0 {
            // A device of its own; a test of the child's memory must not take long.
            libc::alarm(20);
            let pd = ibv_alloc_pd(open());
            let memory = pages(1);
            let mr = ibv_reg_mr(pd, memory.cast(), 4096, ACCESS);
            let ok = !pd.is_null() && !mr.is_null() && ibv_dereg_mr(mr) == 0;
            libc::_exit(if ok { 7 } else { 1 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 7 << 8);
        let host = f.memory(Host, 4096);
        host.put(0, &pattern(6, 4096));
        write(f, &host, &gpu, 4096);
        assert_eq!(gpu.get(0, 4096), pattern(6, 4096));
    });
}
