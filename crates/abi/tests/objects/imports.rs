//! Imports of devices, domains, regions and device memory.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::inline::slot;
use crate::common::{made, open, pages, refused, with_device};

#[test]
fn imports_share_objects_between_contexts() {
    let name = "imports::imports_share_objects_between_contexts";
    with_device(name, |context| unsafe {
        let pd = made(ibv_alloc_pd(context));
        let mr = made(ibv_reg_mr(pd, pages(1).cast(), 4096, 1));
        let mut attr = ibv_alloc_dm_attr {
            length: 64,
            log_align_req: 0,
            comp_mask: 0,
        };
        let dm = made(slot!(context, alloc_dm(context, &mut attr)));

        let second = made(ibv_import_device(libc::dup((*context).cmd_fd)));
        assert_ne!(second, context);
        assert_eq!((*second).device, (*context).device);
        let pd2 = made(ibv_import_pd(second, (*pd).handle));
        assert_eq!(((*pd2).context, (*pd2).handle), (second, (*pd).handle));
        let mr2 = made(ibv_import_mr(pd2, (*mr).handle));
        assert_eq!(((*mr2).lkey, (*mr2).rkey), ((*mr).lkey, (*mr).rkey));
        assert_eq!(((*mr2).length, (*mr2).addr), (4096, ptr::null_mut()));
        let dm2 = made(ibv_import_dm(second, (*dm).handle));
        let text = *b"text";
        assert_eq!(
            (*dm).memcpy_to_dm.unwrap()(dm, 4, text.as_ptr().cast(), 4),
            0
        );
        let mut back = [0u8; 4];
        let copied = (*dm2).memcpy_from_dm.unwrap()(back.as_mut_ptr().cast(), dm2, 4, 4);
        assert_eq!((copied, back), (0, text));

        // Objects that were created in an import outlive it.
        let more = made(ibv_reg_mr(pd2, pages(1).cast(), 4096, 0));
        ibv_unimport_mr(mr2);
        ibv_unimport_dm(dm2);
        ibv_unimport_pd(pd2);
        assert_eq!(ibv_dereg_mr(more), 0);
        assert_eq!(ibv_close_device(second), 0);

        // A region, domain or memory may also be destroyed through an import.
        let third = made(ibv_import_device(libc::dup((*context).cmd_fd)));
        let pd3 = made(ibv_import_pd(third, (*pd).handle));
        let mr3 = made(ibv_import_mr(pd3, (*mr).handle));
        assert_eq!(ibv_dereg_mr(mr3), 0);
        ibv_unimport_mr(mr);
        let dm3 = made(ibv_import_dm(third, (*dm).handle));
        assert_eq!(slot!(third, free_dm(dm3)), 0);
        ibv_unimport_dm(dm);
        assert_eq!(ibv_dealloc_pd(pd3), 0);
        refused(ibv_import_pd(third, (*pd).handle), libc::EINVAL);
        ibv_unimport_pd(pd);
        assert_eq!(ibv_close_device(third), 0);
    });
}

#[test]
fn invalid_imports_are_refused() {
    with_device("imports::invalid_imports_are_refused", |context| unsafe {
        refused(ibv_import_device(-1), libc::EBADF);
        let file = libc::dup(0);
        refused(ibv_import_device(file), libc::EINVAL);
        libc::close(file);
        // The descriptor of a closed context, or of another process.
        let stranger = open();
        let file = libc::dup((*stranger).cmd_fd);
        assert_eq!(ibv_close_device(stranger), 0);
        refused(ibv_import_device(file), libc::EOPNOTSUPP);
        libc::close(file);
        // The context's own descriptor, not a duplicate: it must not be closed twice.
        let itself = made(ibv_import_device((*context).cmd_fd));
        assert_ne!((*itself).cmd_fd, (*context).cmd_fd);
        assert_eq!(ibv_close_device(itself), 0);
        assert!(libc::fcntl((*context).cmd_fd, libc::F_GETFD) >= 0);

        let pd = made(ibv_alloc_pd(context));
        let mr = made(ibv_reg_mr(pd, pages(1).cast(), 4096, 0));
        refused(ibv_import_pd(context, 0), libc::EINVAL);
        refused(ibv_import_pd(context, u32::MAX), libc::EINVAL);
        refused(ibv_import_pd(context, (*mr).handle), libc::EINVAL);
        refused(ibv_import_pd(ptr::null_mut(), (*pd).handle), libc::EINVAL);
        refused(ibv_import_mr(pd, (*pd).handle), libc::EINVAL);
        refused(ibv_import_mr(ptr::null_mut(), (*mr).handle), libc::EINVAL);
        refused(ibv_import_dm(context, (*mr).handle), libc::EINVAL);
        let stranger = open();
        refused(ibv_import_pd(stranger, (*pd).handle), libc::EINVAL);
        let strange = made(ibv_alloc_pd(stranger));
        refused(ibv_import_mr(strange, (*mr).handle), libc::EINVAL);
        assert_eq!(ibv_dealloc_pd(strange), 0);
        assert_eq!(ibv_close_device(stranger), 0);
        ibv_unimport_pd(ptr::null_mut());
        ibv_unimport_mr(ptr::null_mut());
        ibv_unimport_dm(ptr::null_mut());
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}

/// As the kernel does when a program closes the descriptor. Each context has its own slot,
/// and there are 255.
#[test]
fn closing_a_context_frees_its_slot() {
    let name = "imports::closing_a_context_frees_its_slot";
    with_device(name, |context| unsafe {
        for time in 0..300 {
            let forgetful = made(ibv_open_device((*context).device));
            made(ibv_alloc_pd(forgetful));
            assert_eq!(ibv_close_device(forgetful), 0, "time {time}");
        }
    });
}

/// A program that unimports its last object of a region can never deregister it. Memory that
/// is freed with the region must not stay reachable.
#[test]
fn region_without_objects_is_deregistered() {
    let name = "imports::region_without_objects_is_deregistered";
    with_device(name, |context| unsafe {
        let pd = made(ibv_alloc_pd(context));
        let access = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND) as i32;
        let mr = made(ibv_reg_mr(pd, pages(1).cast(), 4096, access));
        let mut sge = ibv_sge {
            addr: (*mr).addr as u64,
            length: 4096,
            lkey: (*mr).lkey,
        };
        let mut advise = || slot!(context, advise_mr(pd, 0, 0, &mut sge, 1));
        let import = made(ibv_import_mr(pd, (*mr).handle));
        ibv_unimport_mr(import);
        assert_eq!(advise(), 0);
        ibv_unimport_mr(mr);
        assert_eq!(advise(), libc::ENOENT);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}
