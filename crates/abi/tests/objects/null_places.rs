//! Places for results that are NULL: the call is refused, where libibverbs crashes.

use core::ptr;

use ferroce_abi::exports::*;

use crate::common::{errno, with_device};

#[test]
fn place_for_a_result_that_is_null_is_refused() {
    let name = "null_places::place_for_a_result_that_is_null_is_refused";
    with_device(name, |context| unsafe {
        let refused = [
            ibv_query_gid(context, 1, 0, ptr::null_mut()),
            ibv_query_pkey(context, 1, 0, ptr::null_mut()),
            ibv_get_async_event(context, ptr::null_mut()),
            ibv_get_async_event(ptr::null_mut(), ptr::null_mut()),
            ibv_query_gid(ptr::null_mut(), 1, 0, ptr::null_mut()),
        ];
        assert_eq!((refused, errno()), ([-1; 5], libc::EINVAL));
        let refused = [
            ibv_query_device(context, ptr::null_mut()),
            ibv_query_device(ptr::null_mut(), ptr::null_mut()),
            ibv_query_port_speed(context, 1, ptr::null_mut()),
            ibv_query_srq(ptr::null_mut(), ptr::null_mut()),
        ];
        assert_eq!(refused, [libc::EINVAL; 4]);
    });
}
