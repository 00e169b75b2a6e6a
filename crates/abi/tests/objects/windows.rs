//! Memory windows without queue pairs.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::inline::{alloc_mw, dealloc_mw};
use crate::common::{made, refused, with_device};

#[test]
fn window_type_is_checked() {
    with_device("windows::window_type_is_checked", |context| unsafe {
        let pd = made(ibv_alloc_pd(context));
        for type_ in [IBV_MW_TYPE_1, IBV_MW_TYPE_2] {
            let mw = made(alloc_mw(pd, type_));
            let c = *mw;
            assert_eq!((c.context, c.pd, c.type_), (context, pd, type_));
            assert_ne!(c.rkey, 0);
            assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY);
            assert_eq!(dealloc_mw(mw), 0);
        }
        for type_ in [0, 3, u32::MAX] {
            refused(alloc_mw(pd, type_), libc::EINVAL);
        }
        let alloc = (*context).ops.alloc_mw.unwrap();
        refused(alloc(ptr::null_mut(), IBV_MW_TYPE_1), libc::EINVAL);
        let dealloc = (*context).ops.dealloc_mw.unwrap();
        assert_eq!(dealloc(ptr::null_mut()), libc::EINVAL);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}
