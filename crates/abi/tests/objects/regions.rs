//! Memory regions.

use core::ptr;
use std::os::fd::AsRawFd;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::inline::slot;
use crate::common::{errno, made, open, pages, refused, with_device};

const WRITE: i32 = IBV_ACCESS_LOCAL_WRITE as i32;
const REMOTE: i32 = IBV_ACCESS_REMOTE_WRITE as i32;
const ATOMIC: i32 = IBV_ACCESS_REMOTE_ATOMIC as i32;
const ODP: i32 = IBV_ACCESS_ON_DEMAND as i32;
const ZERO_BASED: i32 = IBV_ACCESS_ZERO_BASED as i32;

fn with_domain(name: &str, body: impl FnOnce(*mut ibv_context, *mut ibv_pd)) {
    with_device(name, |context| unsafe {
        let pd = made(ibv_alloc_pd(context));
        body(context, pd);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}

#[test]
fn memory_is_registered_and_deregistered() {
    with_domain(
        "regions::memory_is_registered_and_deregistered",
        |context, pd| unsafe {
            let addr = pages(2).add(100);
            let mr = made(ibv_reg_mr(pd, addr.cast(), 5000, WRITE | REMOTE));
            let c = *mr;
            assert_eq!((c.context, c.pd), (context, pd));
            assert_eq!((c.addr, c.length), (addr.cast(), 5000));
            assert_ne!(c.lkey, 0);
            assert_ne!(c.rkey, 0);
            let hints = 0x3ff0_0000u32;
            let other = made(ibv_reg_mr_iova2(pd, addr.cast(), 5000, 0x10_0064, hints));
            assert_ne!((*other).lkey, c.lkey);
            assert_ne!((*other).handle, c.handle);
            assert_eq!((*other).addr, addr.cast());
            assert_eq!(ibv_dereg_mr(other), 0);
            let zero_based = made(ibv_reg_mr(pd, addr.cast(), 5000, ZERO_BASED));
            assert_eq!(ibv_dereg_mr(zero_based), 0);
            assert_eq!(ibv_dereg_mr(mr), 0);
        },
    );
}

/// glibc's smallest stack, and the usual one of a thread of Argobots.
#[test]
fn memory_is_registered_on_a_stack_of_16_kib() {
    let name = "regions::memory_is_registered_on_a_stack_of_16_kib";
    with_domain(name, |_, pd| {
        const PAGES: usize = 3000;
        let (pd, addr) = (pd.expose_provenance(), pages(PAGES).expose_provenance());
        #[allow(clippy::disallowed_methods)] // the program's thread
        std::thread::scope(|scope| {
            let small = std::thread::Builder::new().stack_size(16 << 10);
            let register = move || unsafe {
                let (pd, addr) = (ptr::with_exposed_provenance_mut(pd), addr as *mut _);
                let mr = made(ibv_reg_mr(pd, addr, PAGES * 4096, WRITE));
                assert_eq!(ibv_dereg_mr(mr), 0);
            };
            small.spawn_scoped(scope, register).unwrap().join().unwrap();
        });
    });
}

#[test]
fn invalid_registrations_are_refused() {
    with_domain(
        "regions::invalid_registrations_are_refused",
        |_, pd| unsafe {
            let addr = pages(1);
            let register =
                |addr: *mut u8, length, access| ibv_reg_mr(pd, addr.cast(), length, access);
            refused(register(addr, 100, REMOTE), libc::EINVAL);
            refused(register(addr, 100, ATOMIC), libc::EINVAL);
            refused(register(addr, 100, 1 << 15), libc::EINVAL);
            refused(register(addr, 0, 0), libc::EINVAL);
            refused(register(addr, usize::MAX, 0), libc::EINVAL);
            refused(register(ptr::null_mut(), 4096, 0), libc::EFAULT);
            refused(register(addr, 1 << 40, 0), libc::EFAULT);
            refused(ibv_reg_mr(ptr::null_mut(), addr.cast(), 1, 0), libc::EINVAL);
            // As in the kernel, address and iova have the same offset in a page.
            refused(
                ibv_reg_mr_iova(pd, addr.cast(), 10, 0x1001, 0),
                libc::EINVAL,
            );
            let mr = made(ibv_reg_mr_iova(pd, addr.cast(), 10, 0x1000, 0));
            assert_eq!(ibv_dereg_mr(mr), 0);
            assert_eq!(ibv_dereg_mr(ptr::null_mut()), libc::EINVAL);
        },
    );
}

#[test]
fn on_demand_regions_need_no_mapped_memory() {
    with_domain(
        "regions::on_demand_regions_need_no_mapped_memory",
        |context, pd| unsafe {
            let addr = pages(4);
            // At an address that neither threads nor allocators use: elsewhere, unmapped memory
            // may soon be mapped again.
            let gone = ptr::without_provenance_mut::<u8>(1 << 36);
            let early = made(ibv_reg_mr(pd, gone.cast(), 4096, ODP));
            assert_eq!(ibv_dereg_mr(early), 0);
            let all = made(ibv_reg_mr(pd, ptr::null_mut(), usize::MAX, ODP | WRITE));
            let some = made(ibv_reg_mr(pd, addr.cast(), 16384, ODP));
            let pinned = made(ibv_reg_mr(pd, addr.cast(), 16384, WRITE));
            let other_pd = made(ibv_alloc_pd(context));
            let element = |at: *mut u8, length, lkey| ibv_sge {
                addr: at as u64,
                length,
                lkey,
            };
            let advise = |pd, advice, flags, mut sge: ibv_sge| {
                slot!(context, advise_mr(pd, advice, flags, &mut sge, 1))
            };
            let (all_key, some_key) = ((*all).lkey, (*some).lkey);
            for advice in 0..3 {
                for flags in 0..2 {
                    let sge = element(addr, 16384, all_key);
                    assert_eq!(advise(pd, advice, flags, sge), 0, "{advice} {flags}");
                }
            }
            assert_eq!(advise(pd, 0, 1, element(addr, 100, some_key)), 0);
            assert_eq!(advise(pd, 1, 1, element(addr, 100, some_key)), libc::EPERM);
            assert_eq!(
                advise(pd, 3, 1, element(addr, 100, some_key)),
                libc::EOPNOTSUPP
            );
            assert_eq!(advise(pd, 0, 2, element(addr, 100, some_key)), libc::EINVAL);
            assert_eq!(
                advise(pd, 0, 1, element(addr, 16385, some_key)),
                libc::EFAULT
            );
            assert_eq!(advise(pd, 0, 1, element(gone, 100, all_key)), libc::EFAULT);
            assert_eq!(advise(pd, 0, 1, element(addr, 100, 7)), libc::ENOENT);
            assert_eq!(
                advise(pd, 0, 1, element(addr, 100, (*pinned).lkey)),
                libc::EINVAL
            );
            assert_eq!(
                advise(other_pd, 0, 1, element(addr, 100, some_key)),
                libc::EPERM
            );
            let nothing = slot!(context, advise_mr(pd, 0, 1, ptr::null_mut(), 0));
            assert_eq!(nothing, libc::EINVAL);
            for mr in [all, some, pinned] {
                assert_eq!(ibv_dereg_mr(mr), 0);
            }
            assert_eq!(ibv_dealloc_pd(other_pd), 0);
        },
    );
}

#[test]
fn reregistration_changes_memory_access_and_domain() {
    with_domain(
        "regions::reregistration_changes_memory_access_and_domain",
        |context, pd| unsafe {
            let (addr, other) = (pages(1), pages(2));
            let mr = made(ibv_reg_mr(pd, addr.cast(), 4096, WRITE));
            let keys = ((*mr).lkey, (*mr).rkey);
            let move_it = IBV_REREG_MR_CHANGE_TRANSLATION as i32;
            let permit = IBV_REREG_MR_CHANGE_ACCESS as i32;
            let migrate = IBV_REREG_MR_CHANGE_PD as i32;
            let none = ptr::null_mut();
            assert_eq!(
                ibv_rereg_mr(mr, permit, none, ptr::null_mut(), 0, WRITE | REMOTE),
                0
            );
            assert_eq!(ibv_rereg_mr(mr, move_it, none, other.cast(), 8192, 0), 0);
            assert_eq!(((*mr).addr, (*mr).length), (other.cast(), 8192));
            let new_pd = made(ibv_alloc_pd(context));
            assert_eq!(ibv_rereg_mr(mr, migrate, new_pd, ptr::null_mut(), 0, 0), 0);
            assert_eq!((*mr).pd, new_pd);
            assert_eq!(ibv_dealloc_pd(new_pd), libc::EBUSY);
            assert_eq!(ibv_rereg_mr(mr, migrate, pd, ptr::null_mut(), 0, 0), 0);
            assert_eq!(ibv_dealloc_pd(new_pd), 0);
            assert_eq!(((*mr).lkey, (*mr).rkey), keys);

            let input = |flags, pd, addr: *mut u8, length, access| {
                let got = ibv_rereg_mr(mr, flags, pd, addr.cast(), length, access);
                assert_eq!((got, errno()), (IBV_REREG_MR_ERR_INPUT, libc::EINVAL));
            };
            input(0, none, ptr::null_mut(), 0, 0);
            input(1 << 7, none, ptr::null_mut(), 0, 0);
            input(move_it, none, ptr::null_mut(), 10, 0);
            input(move_it, none, addr, 0, 0);
            input(move_it, none, addr, 10, WRITE);
            input(migrate, none, ptr::null_mut(), 0, 0);
            let refused = |flags, pd, addr: *mut u8, length, access, why| {
                let got = ibv_rereg_mr(mr, flags, pd, addr.cast(), length, access);
                assert_eq!((got, errno()), (IBV_REREG_MR_ERR_CMD, why));
            };
            refused(permit, none, ptr::null_mut(), 0, REMOTE, libc::EINVAL);
            refused(move_it, none, addr, 1 << 40, 0, libc::EFAULT);
            let stranger = open();
            let strange = made(ibv_alloc_pd(stranger));
            refused(migrate, strange, ptr::null_mut(), 0, 0, libc::EINVAL);
            assert_eq!(ibv_dealloc_pd(strange), 0);
            assert_eq!(ibv_close_device(stranger), 0);
            assert_eq!(((*mr).addr, (*mr).length), (other.cast(), 8192));
            assert_eq!(ibv_dereg_mr(mr), 0);
            let nobody = ibv_rereg_mr(ptr::null_mut(), permit, none, ptr::null_mut(), 0, 0);
            assert_eq!(nobody, IBV_REREG_MR_ERR_INPUT);
        },
    );
}

#[test]
fn null_region_has_no_rkey() {
    with_domain("regions::null_region_has_no_rkey", |context, pd| unsafe {
        let mr = made(slot!(context, alloc_null_mr(pd)));
        assert_eq!((*mr).length, usize::MAX);
        assert_ne!((*mr).lkey, 0);
        let permit = IBV_REREG_MR_CHANGE_ACCESS as i32;
        let got = ibv_rereg_mr(mr, permit, ptr::null_mut(), ptr::null_mut(), 0, 0);
        assert_eq!(got, IBV_REREG_MR_ERR_CMD);
        assert_eq!(ibv_dereg_mr(mr), 0);
        refused(slot!(context, alloc_null_mr(ptr::null_mut())), libc::EINVAL);
    });
}

#[test]
fn file_is_registered_like_a_dma_buf() {
    with_domain(
        "regions::file_is_registered_like_a_dma_buf",
        |_, pd| unsafe {
            let file = libc::memfd_create(c"memory".as_ptr(), libc::MFD_CLOEXEC);
            assert_eq!(libc::ftruncate(file, 16384), 0);
            let mr = made(ibv_reg_dmabuf_mr(
                pd,
                4100,
                8000,
                0x2_0004,
                file,
                WRITE | REMOTE,
            ));
            assert_eq!((*mr).length, 8000);
            assert_eq!(ibv_dereg_mr(mr), 0);
            let register = |offset, length, iova, fd, access| {
                ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access)
            };
            refused(register(0, 16385, 0, file, 0), libc::EINVAL);
            refused(register(0, 0, 0, file, 0), libc::EINVAL);
            refused(register(u64::MAX, 10, u64::MAX, file, 0), libc::EINVAL);
            refused(register(0, 100, 1, file, 0), libc::EINVAL);
            refused(register(0, 100, 0, file, ODP), libc::EINVAL);
            refused(register(0, 100, 0, file, REMOTE), libc::EINVAL);
            refused(register(0, 100, 0, -1, 0), libc::EBADF);
            let (reader, _writer) = std::io::pipe().unwrap();
            refused(register(0, 100, 0, reader.as_raw_fd(), 0), libc::EOPNOTSUPP);
            refused(
                ibv_reg_dmabuf_mr(ptr::null_mut(), 0, 1, 0, file, 0),
                libc::EINVAL,
            );
            libc::close(file);
        },
    );
}

/// `ibv_rc_pingpong` of rdma-core 64 uses such buffers.
#[test]
fn buffers_of_the_device_can_be_registered() {
    let name = "regions::buffers_of_the_device_can_be_registered";
    with_domain(name, |context, pd| unsafe {
        let mut buf = ptr::null_mut();
        let addr = made(ibv_alloc_buf(pd, 5000, &mut buf)).cast::<u8>();
        assert!(!buf.is_null() && (addr as usize).is_multiple_of(4096));
        addr.write_bytes(7, 5000);
        let mr = made(ibv_reg_buf_mr(pd, buf, addr.cast(), 5000, WRITE));
        assert_eq!(((*mr).addr, (*mr).length), (addr.cast(), 5000));
        assert_eq!(ibv_dereg_mr(mr), 0);
        let part = addr.add(4096).cast();
        let mr = made(ibv_reg_buf_mr(pd, buf, part, 904, WRITE));
        assert_eq!(ibv_dereg_mr(mr), 0);

        let other = made(ibv_alloc_pd(context));
        let outside = addr.wrapping_sub(4096).cast();
        let whole = addr.cast();
        refused(ibv_reg_buf_mr(pd, buf, part, 905, WRITE), libc::EINVAL);
        refused(ibv_reg_buf_mr(pd, buf, outside, 1, WRITE), libc::EINVAL);
        refused(ibv_reg_buf_mr(other, buf, whole, 5000, WRITE), libc::EINVAL);
        refused(
            ibv_reg_buf_mr(pd, ptr::null_mut(), whole, 5000, WRITE),
            libc::EINVAL,
        );
        let mut attr = ibv_mr_init_attr {
            length: 5000,
            access: WRITE,
            comp_mask: (IBV_REG_MR_MASK_BUF | IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_IOVA).into(),
            iova: 0x10_0000,
            addr: whole,
            fd: -1,
            fd_offset: 0,
            dmah: ptr::null_mut(),
            buf,
        };
        let mr = made(ibv_reg_mr_ex(pd, &mut attr));
        assert_eq!(ibv_dereg_mr(mr), 0);
        attr.comp_mask |= u64::from(IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET);
        refused(ibv_reg_mr_ex(pd, &mut attr), libc::EINVAL);
        attr.comp_mask = IBV_REG_MR_MASK_BUF.into();
        refused(ibv_reg_mr_ex(pd, &mut attr), libc::EINVAL);
        attr.comp_mask = (IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_DMAH).into();
        refused(ibv_reg_mr_ex(pd, &mut attr), libc::EOPNOTSUPP);

        assert_eq!(ibv_export_buf_dmabuf_fd(buf), -1);
        assert_eq!(errno(), libc::ENODATA, "ordinary memory");
        ibv_free_buf(buf);
        refused(ibv_alloc_buf(pd, 1, ptr::null_mut()), libc::EINVAL);
        refused(ibv_alloc_buf(pd, usize::MAX / 2, &mut buf), libc::ENOMEM);
        assert_eq!(ibv_dealloc_pd(other), 0);
    });
}
