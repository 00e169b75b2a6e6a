//! Protection, thread and parent domains.

use core::ffi::c_void;
use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::inline::slot;
use crate::common::{made, pages, refused, with_device, zeros};

#[test]
fn domain_is_busy_while_objects_use_it() {
    let name = "domains::domain_is_busy_while_objects_use_it";
    with_device(name, |context| unsafe {
        let pd = made(ibv_alloc_pd(context));
        assert_eq!((*pd).context, context);
        let mr = made(ibv_reg_mr(pd, pages(1).cast(), 4096, 0));
        assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY);
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
        refused(ibv_alloc_pd(ptr::null_mut()), libc::EINVAL);
        assert_eq!(ibv_dealloc_pd(ptr::null_mut()), libc::EINVAL);
    });
}

unsafe extern "C" fn no_alloc(
    _: *mut ibv_pd,
    _: *mut c_void,
    _: usize,
    _: usize,
    _: u64,
) -> *mut c_void {
    ptr::null_mut()
}

unsafe extern "C" fn no_free(_: *mut ibv_pd, _: *mut c_void, _: *mut c_void, _: u64) {}

#[test]
fn parent_domain_keeps_its_parts_busy() {
    let name = "domains::parent_domain_keeps_its_parts_busy";
    with_device(name, |context| unsafe {
        let mut attr: ibv_td_init_attr = zeros();
        let td = made(slot!(context, alloc_td(context, &mut attr)));
        let pd = made(ibv_alloc_pd(context));
        let mut attr: ibv_parent_domain_init_attr = zeros();
        attr.pd = pd;
        attr.td = td;
        attr.comp_mask =
            IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
        attr.alloc = Some(no_alloc);
        attr.free = Some(no_free);
        let parent = made(slot!(context, alloc_parent_domain(context, &mut attr)));
        assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY);
        assert_eq!(slot!(context, dealloc_td(td)), libc::EBUSY);
        let mr = made(ibv_reg_mr(parent, pages(1).cast(), 4096, 0));
        assert_eq!((*mr).pd, parent);
        assert_eq!(ibv_dealloc_pd(parent), libc::EBUSY);
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_pd(parent), 0);
        assert_eq!(slot!(context, dealloc_td(td)), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}

#[test]
fn invalid_domains_are_refused() {
    with_device("domains::invalid_domains_are_refused", |context| unsafe {
        let mut attr: ibv_td_init_attr = zeros();
        attr.comp_mask = 1;
        refused(slot!(context, alloc_td(context, &mut attr)), libc::EINVAL);
        refused(
            slot!(context, alloc_td(context, ptr::null_mut())),
            libc::EINVAL,
        );
        let pd = made(ibv_alloc_pd(context));
        let good: ibv_parent_domain_init_attr = ibv_parent_domain_init_attr { pd, ..zeros() };
        let no_pd = ibv_parent_domain_init_attr {
            pd: ptr::null_mut(),
            ..good
        };
        let half = ibv_parent_domain_init_attr {
            comp_mask: IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS,
            alloc: Some(no_alloc),
            ..good
        };
        let unknown = ibv_parent_domain_init_attr {
            comp_mask: 1 << 9,
            ..good
        };
        for mut attr in [no_pd, half, unknown] {
            let parent = slot!(context, alloc_parent_domain(context, &mut attr));
            refused(parent, libc::EINVAL);
        }
        let other = crate::common::open();
        let mut foreign = good;
        refused(
            slot!(other, alloc_parent_domain(other, &mut foreign)),
            libc::EINVAL,
        );
        let mut shared: ibv_srq_init_attr_ex = zeros();
        shared.attr.max_wr = 1;
        shared.comp_mask = IBV_SRQ_INIT_ATTR_PD;
        shared.pd = pd;
        refused(
            slot!(other, create_srq_ex(other, &mut shared)),
            libc::EINVAL,
        );
        assert_eq!(ibv_close_device(other), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}
