//! Device memory.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::inline::slot;
use crate::common::{made, open, refused, with_device, zeros};

const ZERO_BASED: u32 = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE;

fn attr(length: usize, log_align_req: u32) -> ibv_alloc_dm_attr {
    ibv_alloc_dm_attr {
        length,
        log_align_req,
        comp_mask: 0,
    }
}

#[test]
fn device_memory_is_limited() {
    with_device(
        "device_memory::device_memory_is_limited",
        |context| unsafe {
            let mut everything: ibv_device_attr_ex = zeros();
            let size = size_of::<ibv_device_attr_ex>();
            let got = slot!(
                context,
                query_device_ex(context, ptr::null(), &mut everything, size)
            );
            assert_eq!(got, 0);
            let max = everything.max_dm_size as usize;
            assert!(max > 0);
            let alloc = |mut attr: ibv_alloc_dm_attr| slot!(context, alloc_dm(context, &mut attr));
            let one = made(alloc(attr(max / 2, 12)));
            let two = made(alloc(attr(max / 2, 0)));
            assert_ne!((*one).handle, (*two).handle);
            refused(alloc(attr(4, 0)), libc::ENOMEM);
            assert_eq!(slot!(context, free_dm(one)), 0);
            let again = made(alloc(attr(4, 3)));
            for dm in [two, again] {
                assert_eq!(slot!(context, free_dm(dm)), 0);
            }
            refused(alloc(attr(0, 0)), libc::EINVAL);
            refused(alloc(attr(max + 1, 0)), libc::EINVAL);
            refused(alloc(attr(4, 60)), libc::EINVAL);
            let unknown = ibv_alloc_dm_attr {
                comp_mask: 1,
                ..attr(4, 0)
            };
            refused(alloc(unknown), libc::EINVAL);
            refused(
                slot!(context, alloc_dm(context, ptr::null_mut())),
                libc::EINVAL,
            );
            assert_eq!(slot!(context, free_dm(ptr::null_mut())), libc::EINVAL);
        },
    );
}

#[test]
fn copies_stay_inside_the_device_memory() {
    with_device(
        "device_memory::copies_stay_inside_the_device_memory",
        |context| unsafe {
            let dm = made(slot!(context, alloc_dm(context, &mut attr(100, 0))));
            let (to, from) = ((*dm).memcpy_to_dm.unwrap(), (*dm).memcpy_from_dm.unwrap());
            let text = *b"sixteen letters!";
            assert_eq!(to(dm, 84, text.as_ptr().cast(), 16), 0);
            let mut back = [0u8; 20];
            assert_eq!(from(back.as_mut_ptr().cast(), dm, 80, 20), 0);
            assert_eq!(&back[4..], text);
            assert_eq!(back[..4], [0; 4]);
            for (offset, length) in [(3, 4), (4, 3), (104, 4), (0, 104), (u64::MAX - 3, 8)] {
                assert_eq!(to(dm, offset, text.as_ptr().cast(), length), libc::EFAULT);
                assert_eq!(
                    from(back.as_mut_ptr().cast(), dm, offset, length),
                    libc::EFAULT
                );
            }
            assert_eq!(slot!(context, free_dm(dm)), 0);
        },
    );
}

#[test]
fn device_memory_regions_are_zero_based() {
    with_device(
        "device_memory::device_memory_regions_are_zero_based",
        |context| unsafe {
            let dm = made(slot!(context, alloc_dm(context, &mut attr(100, 0))));
            let pd = made(ibv_alloc_pd(context));
            let register = |pd, offset, length, access| {
                slot!(context, reg_dm_mr(pd, dm, offset, length, access))
            };
            let mr = made(register(pd, 4, 96, ZERO_BASED));
            assert_eq!((*mr).length, 96);
            assert_eq!(slot!(context, free_dm(dm)), libc::EBUSY);
            assert_eq!(ibv_dereg_mr(mr), 0);
            refused(register(pd, 0, 104, ZERO_BASED), libc::EINVAL);
            refused(register(pd, u64::MAX, 4, ZERO_BASED), libc::EINVAL);
            refused(register(pd, 0, 4, IBV_ACCESS_LOCAL_WRITE), libc::EINVAL);
            let denied = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_REMOTE_WRITE;
            refused(register(pd, 0, 4, denied), libc::EINVAL);
            let stranger = open();
            let strange = made(ibv_alloc_pd(stranger));
            refused(register(strange, 0, 4, ZERO_BASED), libc::EINVAL);
            assert_eq!(ibv_dealloc_pd(strange), 0);
            assert_eq!(ibv_close_device(stranger), 0);
            assert_eq!(slot!(context, free_dm(dm)), 0);
            assert_eq!(ibv_dealloc_pd(pd), 0);
        },
    );
}
