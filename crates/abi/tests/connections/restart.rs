//! Restarts of ferroced, removed links and forked children: established connections stay, and
//! other ids get an event.

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use ferroce_control::{Request, find_daemon};
use ferroce_testnet::deadline;

use crate::common::pair::{element, post, receive, request, success};
use crate::common::{Ferroced, LINK, made, on_loopback, pages};
use crate::ends::*;

#[test]
fn connections_and_listeners_outlive_ferroced() {
    let name = "restart::connections_and_listeners_outlive_ferroced";
    on_loopback(name, |mut ferroced| unsafe {
        let channel = channel();
        let listener = listener(channel, RDMA_PS_TCP, "0.0.0.0:0");
        let mut to = at_port("127.0.0.1:0", listener);
        let (active, passive) = connect(channel, &mut to);
        ferroced.kill();
        let _new = Ferroced::start();
        let memory = pages(1);
        let mr = made(ibv_reg_mr((*active).pd, memory.cast(), 4096, 1));
        receive((*passive).qp, 1, element(memory, 64, (*mr).lkey));
        post(
            (*active).qp,
            request(2, IBV_WR_SEND),
            element(memory, 64, (*mr).lkey),
        );
        success((*passive).recv_cq);

        let (more, others) = connect(channel, &mut to);
        good(rdma_disconnect(active));
        assert_eq!(expect(channel, RDMA_CM_EVENT_DISCONNECTED).id, passive);
        good(rdma_disconnect(passive));
        assert_eq!(expect(channel, RDMA_CM_EVENT_DISCONNECTED).id, active);
        for id in [active, passive, more, others, listener] {
            destroy(id);
        }
        assert_eq!(ibv_dereg_mr(mr), 0);
        rdma_destroy_event_channel(channel);
    });
}

/// Makes a call while ferroced is stopped, kills that ferroced, starts another, and returns
/// the result of the call.
fn across_a_restart(
    ferroced: &mut Ferroced,
    call: impl FnOnce() -> (i32, i32) + Send + 'static,
) -> (i32, i32) {
    ferroced.stop();
    let (tell, told) = std::sync::mpsc::channel();
    #[allow(clippy::disallowed_methods)] // the call blocks
    let caller = std::thread::spawn(move || {
        tell.send(rustix::thread::gettid()).expect("a receiver");
        call()
    });
    let thread = told.recv().expect("a thread");
    let state = format!("/proc/self/task/{}/status", thread.as_raw_nonzero());
    deadline::until("the call waits for an answer", || {
        std::fs::read_to_string(&state).is_ok_and(|now| now.contains("State:\tS"))
    });
    ferroced.kill();
    *ferroced = Ferroced::start();
    caller.join().expect("no panic")
}

#[test]
fn calls_to_a_killed_ferroced_are_repeated_to_the_next() {
    let name = "restart::calls_to_a_killed_ferroced_are_repeated_to_the_next";
    on_loopback(name, |mut ferroced| unsafe {
        let channel = channel();
        let listener = new_id(channel, RDMA_PS_TCP);
        let client = new_id(channel, RDMA_PS_TCP);
        // Opens the device, and takes a port.
        let other = resolved(channel, RDMA_PS_TCP, &mut address("127.0.0.1:7"));

        let id = listener as usize;
        let mut call = |call: unsafe fn(*mut rdma_cm_id, u16) -> i32, id: usize, port: u16| {
            let done = across_a_restart(&mut ferroced, move || {
                (call(id as *mut rdma_cm_id, port), crate::common::errno())
            });
            assert_eq!(done.0, 0, "errno {}", done.1);
        };
        call(
            |id, _| rdma_bind_addr(id, raw(&mut address("0.0.0.0:0"))),
            id,
            0,
        );
        call(|id, _| rdma_listen(id, 8), id, 0);
        let port = u16::from_be(rdma_get_src_port(listener));
        call(
            |id, port| {
                let mut to = address(&format!("127.0.0.1:{port}"));
                rdma_resolve_addr(id, core::ptr::null_mut(), raw(&mut to), 1000)
            },
            client as usize,
            port,
        );
        assert_eq!(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED).id, client);

        let mut to = at_port("127.0.0.1:0", listener);
        let (active, passive) = connect(channel, &mut to);
        call(|id, _| rdma_disconnect(id), active as usize, 0);
        assert_eq!(expect(channel, RDMA_CM_EVENT_DISCONNECTED).id, passive);
        for id in [active, passive, listener, client, other] {
            destroy(id);
        }
        rdma_destroy_event_channel(channel);
    });
}

#[test]
fn removed_link_is_reported_to_all_its_ids() {
    let name = "restart::removed_link_is_reported_to_all_its_ids";
    on_loopback(name, |_ferroced| unsafe {
        let channel = channel();
        let ids = ["127.0.0.1:7", "[::1]:7"]
            .map(|text| resolved(channel, RDMA_PS_TCP, &mut address(text)));
        let wildcard = listener(channel, RDMA_PS_TCP, "0.0.0.0:0");
        let mut connection = find_daemon().expect("reachable").expect("running");
        let delete = Request::LinkDelete {
            name: LINK.into(),
            force: true,
        };
        connection.perform(&delete).expect("deleted");
        let told = [(); 2].map(|()| expect(channel, RDMA_CM_EVENT_DEVICE_REMOVAL).id);
        assert!(ids.iter().all(|id| told.contains(id)));
        for id in ids {
            good(rdma_destroy_id(id));
        }
        good(rdma_destroy_id(wildcard));
        rdma_destroy_event_channel(channel);
    });
}

#[test]
fn forked_child_has_connections_of_its_own() {
    let name = "restart::forked_child_has_connections_of_its_own";
    on_loopback(name, |_ferroced| unsafe {
        let here = channel();
        let server = listener(here, RDMA_PS_TCP, "0.0.0.0:0");
        let mut to = at_port("127.0.0.1:0", server);
        let (active, passive) = connect(here, &mut to);
        let child = libc::fork();
        if child == 0 {
            // The child connects, and exits without destroying anything.
            let own = channel();
            let server = listener(own, RDMA_PS_TCP, "0.0.0.0:0");
            connect(own, &mut at_port("127.0.0.1:0", server));
            libc::_exit(0);
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0, "the child has connected");
        let (more, others) = connect(here, &mut to);
        good(rdma_disconnect(active));
        assert_eq!(expect(here, RDMA_CM_EVENT_DISCONNECTED).id, passive);
        for id in [active, passive, more, others, server] {
            destroy(id);
        }
        rdma_destroy_event_channel(here);
    });
}

/// A response and a request that wait in a channel belong to the ferroced that sent them.
#[test]
fn waiting_events_of_a_killed_ferroced_connect_nothing() {
    let name = "restart::waiting_events_of_a_killed_ferroced_connect_nothing";
    on_loopback(name, |mut ferroced| unsafe {
        let (here, there) = (channel(), channel());
        let listener = listener(there, RDMA_PS_TCP, "127.0.0.1:0");
        let mut to = at_port("127.0.0.1:0", listener);
        let [active, other] = [(); 2].map(|()| {
            let id = resolved(here, RDMA_PS_TCP, &mut to);
            queue_pair(id);
            id
        });
        good(rdma_connect(active, &mut param(b"")));
        let passive = expect(there, RDMA_CM_EVENT_CONNECT_REQUEST).id;
        queue_pair(passive);
        good(rdma_accept(passive, &mut param(b"")));
        good(rdma_connect(other, &mut param(b"")));
        for channel in [here, there] {
            deadline::until("an event", || {
                crate::common::polled((*channel).fd) == libc::POLLIN
            });
        }
        ferroced.kill();
        let _new = Ferroced::start();
        // Returns when all ids are known to the new ferroced.
        let more = new_id(here, RDMA_PS_TCP);
        good(rdma_bind_addr(more, raw(&mut address("127.0.0.1:0"))));

        let failed = |channel, id| {
            let event = next(channel);
            let is = ((*event).id, (*event).event, (*event).status);
            assert_eq!(is, (id, RDMA_CM_EVENT_CONNECT_ERROR, -libc::ECONNRESET));
            good(rdma_ack_cm_event(event));
        };
        failed(here, active);
        assert_eq!((*(*active).qp).state, IBV_QPS_ERR);
        failed(here, other);
        failed(there, passive);
        for channel in [here, there] {
            libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
            let mut event = core::ptr::null_mut();
            bad(rdma_get_cm_event(channel, &mut event), libc::EAGAIN);
        }
        for id in [active, other, passive, more, listener] {
            destroy(id);
        }
        for channel in [here, there] {
            rdma_destroy_event_channel(channel);
        }
    });
}

/// The first ports of parent and child have the same handle, on different connections.
#[test]
fn forked_child_that_destroys_an_inherited_id_keeps_its_ports() {
    let name = "restart::forked_child_that_destroys_an_inherited_id_keeps_its_ports";
    on_loopback(name, |_ferroced| unsafe {
        let here = channel();
        let inherited = listener(here, RDMA_PS_TCP, "127.0.0.1:7570");
        let child = libc::fork();
        if child == 0 {
            let own = channel();
            let server = listener(own, RDMA_PS_TCP, "127.0.0.1:7571");
            good(rdma_destroy_id(inherited));
            let other = new_id(own, RDMA_PS_TCP);
            for port in ["127.0.0.1:7570", "127.0.0.1:7571"] {
                let bound = rdma_bind_addr(other, raw(&mut address(port)));
                bad(bound, libc::EADDRINUSE);
            }
            connect(own, &mut at_port("127.0.0.1:0", server));
            libc::_exit(0);
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0, "both ports are still bound");
        destroy(inherited);
        rdma_destroy_event_channel(here);
    });
}
