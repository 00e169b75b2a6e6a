//! Synchronous ids, which wait for their own events, as `rdma_create_ep` creates them.

use core::ffi::CStr;
use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::pair::{element, post, receive, request, success};
use crate::common::{errno, made, on_loopback, pages, zeros};
use crate::ends::*;

fn init() -> ibv_qp_init_attr {
    let mut init: ibv_qp_init_attr = zeros();
    init.cap.max_send_wr = 2;
    init.cap.max_recv_wr = 2;
    init.cap.max_send_sge = 1;
    init.cap.max_recv_sge = 1;
    init.sq_sig_all = 1;
    init
}

unsafe fn found(node: Option<&CStr>, service: &CStr, flags: i32) -> *mut rdma_addrinfo {
    let mut hints: rdma_addrinfo = zeros();
    hints.ai_port_space = RDMA_PS_TCP as i32;
    hints.ai_flags = flags;
    let mut list = ptr::null_mut();
    let node = node.map_or(ptr::null(), CStr::as_ptr);
    let code = rdma_getaddrinfo(node, service.as_ptr(), &hints, &mut list);
    assert_eq!(code, 0, "errno {}", errno());
    list
}

#[test]
fn synchronous_endpoints_connect() {
    let name = "synchronous::synchronous_endpoints_connect";
    on_loopback(name, |_ferroced| unsafe {
        let list = found(None, c"7471", RAI_PASSIVE);
        assert_eq!((*list).ai_qp_type, IBV_QPT_RC as i32);
        let mut listener = ptr::null_mut();
        good(rdma_create_ep(
            &mut listener,
            list,
            ptr::null_mut(),
            &mut init(),
        ));
        rdma_freeaddrinfo(list);
        good(rdma_listen(listener, 0));
        let address = listener as usize;
        #[allow(clippy::disallowed_methods)] // the program's other end
        std::thread::scope(|scope| {
            let serving = scope.spawn(move || {
                let listener = address as *mut rdma_cm_id;
                let mut id = ptr::null_mut();
                good(rdma_get_request(listener, &mut id));
                assert!(!(*id).qp.is_null(), "with the attributes of the listener");
                let memory = pages(1);
                let mr = made(ibv_reg_mr((*id).pd, memory.cast(), 4096, 1));
                receive((*id).qp, 1, element(memory, 4096, (*mr).lkey));
                good(rdma_accept(id, ptr::null_mut()));
                assert_eq!((*(*id).event).event, RDMA_CM_EVENT_ESTABLISHED);
                assert_eq!(success((*id).recv_cq).byte_len, 64);
                // The peer disconnects first; this end agrees.
                good(rdma_disconnect(id));
                assert_eq!((*(*id).event).event, RDMA_CM_EVENT_DISCONNECTED);
                rdma_destroy_ep(id);
                assert_eq!(ibv_dereg_mr(mr), 0);
            });
            let list = found(Some(c"127.0.0.1"), c"7471", RAI_NUMERICHOST);
            let mut id = ptr::null_mut();
            good(rdma_create_ep(&mut id, list, ptr::null_mut(), &mut init()));
            rdma_freeaddrinfo(list);
            let memory = pages(1);
            let mr = made(ibv_reg_mr((*id).pd, memory.cast(), 4096, 1));
            good(rdma_connect(id, ptr::null_mut()));
            post(
                (*id).qp,
                request(2, IBV_WR_SEND),
                element(memory, 64, (*mr).lkey),
            );
            success((*id).send_cq);
            good(rdma_disconnect(id));
            assert_eq!((*(*id).event).event, RDMA_CM_EVENT_DISCONNECTED);
            serving.join().unwrap();
            assert_eq!(ibv_dereg_mr(mr), 0);
            rdma_destroy_ep(id);
        });
        rdma_destroy_ep(listener);
    });
}

#[test]
fn synchronous_failures_set_errno() {
    on_loopback(
        "synchronous::synchronous_failures_set_errno",
        |_ferroced| unsafe {
            let list = found(Some(c"127.0.0.1"), c"7", RAI_NUMERICHOST);
            let mut id = ptr::null_mut();
            good(rdma_create_ep(&mut id, list, ptr::null_mut(), &mut init()));
            rdma_freeaddrinfo(list);
            bad(rdma_connect(id, ptr::null_mut()), libc::ECONNREFUSED);
            assert_eq!((*(*id).event).event, RDMA_CM_EVENT_REJECTED);
            rdma_destroy_ep(id);
            let list = found(Some(c"192.0.2.1"), c"7", RAI_NUMERICHOST);
            bad(
                rdma_create_ep(&mut id, list, ptr::null_mut(), &mut init()),
                libc::ENETUNREACH,
            );
            rdma_freeaddrinfo(list);
            let event_driven = new_id(channel(), RDMA_PS_TCP);
            bad(rdma_get_request(event_driven, &mut id), libc::EINVAL);
            good(rdma_destroy_id(event_driven));
        },
    );
}

#[test]
fn names_and_services_are_resolved() {
    on_loopback(
        "synchronous::names_and_services_are_resolved",
        |_ferroced| unsafe {
            let mut list = ptr::null_mut();
            let none = ptr::null();
            bad(
                rdma_getaddrinfo(none, none, none.cast(), &mut list),
                libc::EINVAL,
            );
            let mut hints: rdma_addrinfo = zeros();
            hints.ai_flags = RAI_NUMERICHOST;
            let code = rdma_getaddrinfo(c"no.such.host".as_ptr(), none, &hints, &mut list);
            assert_eq!(code, libc::EAI_NONAME);
            hints.ai_flags = RAI_SA;
            bad(
                rdma_getaddrinfo(none, c"x".as_ptr(), &hints, &mut list),
                libc::ENOENT,
            );
            hints.ai_flags = 0;
            hints.ai_port_space = RDMA_PS_UDP as i32;
            hints.ai_qp_type = IBV_QPT_UD as i32;
            let code = rdma_getaddrinfo(c"::1".as_ptr(), c"80".as_ptr(), &hints, &mut list);
            assert_eq!(code, 0);
            assert_eq!((*list).ai_family, libc::AF_INET6);
            assert_eq!((*list).ai_port_space, RDMA_PS_UDP as i32);
            assert!((*list).ai_src_addr.is_null() && !(*list).ai_dst_addr.is_null());
            rdma_freeaddrinfo(list);

            let id = new_id(ptr::null_mut(), RDMA_PS_TCP);
            bad(rdma_query_addrinfo(id, &mut list), libc::ENOENT);
            good(rdma_resolve_addrinfo(
                id,
                c"127.0.0.1".as_ptr(),
                c"80".as_ptr(),
                ptr::null(),
            ));
            good(rdma_query_addrinfo(id, &mut list));
            assert_eq!((*list).ai_family, libc::AF_INET);
            rdma_freeaddrinfo(list);
            good(rdma_destroy_id(id));
        },
    );
}
