//! ferroced is stopped (SIGSTOP, a debugger, a frozen container): calls end with an error,
//! and after SIGCONT all is as before.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use ferroce_testnet::deadline;

use crate::common::{errno, made, on_loopback, zeros};
use crate::ends::*;

#[test]
fn no_call_waits_for_a_ferroced_that_is_stopped() {
    let name = "stopped::no_call_waits_for_a_ferroced_that_is_stopped";
    on_loopback(name, |ferroced| unsafe {
        let channel = channel();
        let listener = listener(channel, RDMA_PS_TCP, "0.0.0.0:0");
        let mut to = at_port("127.0.0.1:0", listener);
        let (active, passive) = connect(channel, &mut to);
        let (idle, unused) = connect(channel, &mut to);
        let calling = resolved(channel, RDMA_PS_TCP, &mut address("127.0.0.1:9"));
        queue_pair(calling);
        let bound = new_id(channel, RDMA_PS_TCP);
        good(rdma_bind_addr(bound, raw(&mut address("0.0.0.0:0"))));
        let fresh = new_id(channel, RDMA_PS_TCP);
        let list = made(ibv_get_device_list(ptr::null_mut()));
        let device = *list;
        let context = made(ibv_open_device(device));

        ferroced.stop();
        // At the same time as the calls below: each waits for seconds.
        let device = device as usize;
        #[allow(clippy::disallowed_methods)] // the program's other threads
        let verbs = [
            std::thread::spawn(|| (ibv_get_device_list(ptr::null_mut()).is_null(), errno())),
            std::thread::spawn(move || {
                (
                    ibv_open_device(device as *mut ibv_device).is_null(),
                    errno(),
                )
            }),
        ];
        let mut port = address("127.0.0.1:7480");
        bad(rdma_bind_addr(fresh, raw(&mut port)), libc::ETIMEDOUT);
        bad(rdma_listen(bound, 1), libc::ETIMEDOUT);
        bad(rdma_connect(calling, &mut param(b"")), libc::ETIMEDOUT);
        bad(rdma_disconnect(active), libc::ETIMEDOUT);
        destroy(calling);
        destroy(bound);
        destroy(idle);
        assert_eq!(ibv_close_device(context), 0);
        for call in verbs {
            assert_eq!(call.join().expect("no panic"), (true, libc::ETIMEDOUT));
        }

        ferroced.go_on();
        // The port that nobody knows of is given back.
        deadline::until("the port is free", || {
            rdma_bind_addr(fresh, raw(&mut port)) == 0
        });
        // Both were said, and are done now.
        let ended = [(); 2].map(|()| expect(channel, RDMA_CM_EVENT_DISCONNECTED).id);
        assert!(ended.contains(&passive) && ended.contains(&unused));
        let (more, others) = connect(channel, &mut to);
        made(ibv_get_device_list(ptr::null_mut()));
        for id in [active, passive, unused, more, others, fresh, listener] {
            destroy(id);
        }
        rdma_destroy_event_channel(channel);
    });
}

#[test]
fn a_synchronous_call_ends_if_ferroced_is_stopped_meanwhile() {
    let name = "stopped::a_synchronous_call_ends_if_ferroced_is_stopped_meanwhile";
    on_loopback(name, |ferroced| unsafe {
        let channel = channel();
        let listener = listener(channel, RDMA_PS_TCP, "0.0.0.0:0");
        let mut to = at_port("127.0.0.1:0", listener);
        let mut id: *mut rdma_cm_id = ptr::null_mut();
        good(rdma_create_id(
            ptr::null_mut(),
            &mut id,
            ptr::null_mut(),
            RDMA_PS_TCP,
        ));
        good(rdma_resolve_addr(id, ptr::null_mut(), raw(&mut to), 1000));
        good(rdma_resolve_route(id, 1000));
        queue_pair(id);
        let address = id as usize;
        #[allow(clippy::disallowed_methods)] // somebody has to wait
        let caller = std::thread::spawn(move || {
            let mut param: rdma_conn_param = zeros();
            let done = rdma_connect(address as *mut rdma_cm_id, &mut param);
            (done, errno())
        });
        let request = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
        ferroced.stop();
        assert_eq!(caller.join().expect("no panic"), (-1, libc::ETIMEDOUT));
        ferroced.go_on();
        for id in [request, id, listener] {
            destroy(id);
        }
        rdma_destroy_event_channel(channel);
    });
}
