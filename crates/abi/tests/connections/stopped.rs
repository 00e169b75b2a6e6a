//! ferroced is stopped (SIGSTOP, a debugger, a frozen container): every call ends in seconds,
//! and after SIGCONT the program works as before.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use ferroce_control::{Request, find_daemon};
use ferroce_testnet::{deadline, isolated};

use crate::common::ferroced::add_link;
use crate::common::{Ferroced, LINK, errno, made, on_loopback, refused, zeros};
use crate::ends::*;

/// Runs calls that list links or open devices in threads: each has a connection of its own,
/// and waits eight seconds for it.
fn in_thread<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<(T, i32)> {
    #[allow(clippy::disallowed_methods)] // a program with several threads
    std::thread::spawn(move || (call(), errno()))
}

#[test]
fn calls_of_the_active_side_time_out() {
    let name = "stopped::calls_of_the_active_side_time_out";
    on_loopback(name, |ferroced| unsafe {
        let channel = channel();
        let listener = listener(channel, RDMA_PS_TCP, "0.0.0.0:0");
        let mut to = at_port("127.0.0.1:0", listener);
        let (active, passive) = connect(channel, &mut to);
        let (idle, unused) = connect(channel, &mut to);
        let calling = resolved(channel, RDMA_PS_TCP, &mut address("127.0.0.1:9"));
        queue_pair(calling);
        let sidr = resolved(channel, RDMA_PS_UDP, &mut address("127.0.0.1:9"));
        queue_pair(sidr);
        let bound = [(); 2].map(|()| {
            let id = new_id(channel, RDMA_PS_TCP);
            good(rdma_bind_addr(id, raw(&mut address("0.0.0.0:0"))));
            id
        });
        let fresh = [(); 2].map(|()| new_id(channel, RDMA_PS_TCP));
        let list = made(ibv_get_device_list(ptr::null_mut()));
        let device = *list as usize;
        let context = made(ibv_open_device(*list));

        ferroced.stop();
        let list_devices = in_thread(|| ibv_get_device_list(ptr::null_mut()).is_null());
        let get_devices = in_thread(|| rdma_get_devices(ptr::null_mut()).is_null());
        // The context shares the slots of the open one.
        let open = in_thread(move || {
            let context = ibv_open_device(device as *mut ibv_device);
            context.is_null() || ibv_close_device(context) != 0
        });
        let mut port = address("127.0.0.1:7480");
        let none = ptr::null_mut();
        bad(rdma_bind_addr(fresh[0], raw(&mut port)), libc::ETIMEDOUT);
        bad(rdma_listen(bound[0], 1), libc::ETIMEDOUT);
        let resolve = |id, to: &mut _| rdma_resolve_addr(id, none, raw(to), 1000);
        bad(resolve(bound[1], &mut to), libc::ETIMEDOUT);
        bad(resolve(fresh[1], &mut to), libc::ETIMEDOUT);
        bad(rdma_connect(calling, &mut param(b"")), libc::ETIMEDOUT);
        bad(rdma_connect(sidr, &mut param(b"")), libc::ETIMEDOUT);
        bad(rdma_disconnect(active), libc::ETIMEDOUT);
        for id in [calling, sidr, bound[0], idle, fresh[1]] {
            destroy(id);
        }
        assert_eq!(ibv_close_device(context), 0);
        assert!(!open.join().expect("no panic").0);
        for call in [list_devices, get_devices] {
            assert_eq!(call.join().expect("no panic"), (true, libc::ETIMEDOUT));
        }

        ferroced.go_on();
        // ferroced bound the port after the deadline; the library gives it back.
        deadline::until("the port is free", || {
            rdma_bind_addr(fresh[0], raw(&mut port)) == 0
        });
        // ferroced has handled the disconnect and the destroy meanwhile.
        let ended = [(); 2].map(|()| expect(channel, RDMA_CM_EVENT_DISCONNECTED).id);
        assert!(ended.contains(&passive) && ended.contains(&unused));
        let (more, others) = connect(channel, &mut to);
        made(ibv_get_device_list(ptr::null_mut()));
        for id in [
            active, passive, unused, more, others, fresh[0], bound[1], listener,
        ] {
            destroy(id);
        }
        rdma_destroy_event_channel(channel);
    });
}

/// A request that waits for its answer: the id that asks, and the id that must answer.
unsafe fn request(
    channel: *mut rdma_event_channel,
    ps: u32,
    listener: *mut rdma_cm_id,
) -> [*mut rdma_cm_id; 2] {
    let active = resolved(channel, ps, &mut at_port("127.0.0.1:0", listener));
    queue_pair(active);
    good(rdma_connect(active, &mut param(b"")));
    let passive = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
    [active, passive]
}

#[test]
fn calls_of_the_passive_side_time_out() {
    let name = "stopped::calls_of_the_passive_side_time_out";
    on_loopback(name, |ferroced| unsafe {
        let channel = channel();
        let stream = listener(channel, RDMA_PS_TCP, "127.0.0.1:0");
        let datagram = listener(channel, RDMA_PS_UDP, "127.0.0.1:0");
        let streams = [(); 3].map(|()| request(channel, RDMA_PS_TCP, stream));
        let datagrams = [(); 2].map(|()| request(channel, RDMA_PS_UDP, datagram));
        for [_, passive] in [streams[0], datagrams[0]] {
            queue_pair(passive);
        }
        // Without a queue pair in the id the program sends the RTU itself, with
        // rdma_establish. Until then the passive side may report data with rdma_notify.
        let half = resolved(channel, RDMA_PS_TCP, &mut at_port("127.0.0.1:0", stream));
        let mut own = param(b"");
        own.qp_num = 0x00ff_f000;
        good(rdma_connect(half, &mut own));
        let accepted = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
        queue_pair(accepted);
        good(rdma_accept(accepted, &mut param(b"")));
        expect(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);

        ferroced.stop();
        let data = param(b"");
        let none = ptr::null();
        bad(rdma_accept(streams[0][1], &mut { data }), libc::ETIMEDOUT);
        bad(rdma_reject(streams[1][1], none, 0), libc::ETIMEDOUT);
        bad(rdma_reject_ece(streams[2][1], none, 0), libc::ETIMEDOUT);
        bad(rdma_accept(datagrams[0][1], &mut { data }), libc::ETIMEDOUT);
        bad(rdma_reject(datagrams[1][1], none, 0), libc::ETIMEDOUT);
        bad(rdma_notify(accepted, IBV_EVENT_COMM_EST), libc::ETIMEDOUT);
        bad(rdma_establish(half), libc::ETIMEDOUT);
        // Releases all that the ids of the channel have.
        rdma_destroy_event_channel(channel);

        ferroced.go_on();
        for id in streams.into_iter().chain(datagrams).flatten() {
            destroy(id);
        }
        for id in [stream, datagram, half, accepted] {
            destroy(id);
        }
        works_again();
    });
}

/// Connects two new ids.
unsafe fn works_again() {
    let channel = channel();
    let listener = listener(channel, RDMA_PS_TCP, "0.0.0.0:0");
    let (active, passive) = connect(channel, &mut at_port("127.0.0.1:0", listener));
    for id in [active, passive, listener] {
        destroy(id);
    }
    rdma_destroy_event_channel(channel);
}

/// Calls that need nothing of ferroced work while it is stopped.
#[test]
fn local_calls_work() {
    on_loopback("stopped::local_calls_work", |ferroced| unsafe {
        let channel = channel();
        let id = new_id(channel, RDMA_PS_UDP);
        let (mut from, mut group) = (address("127.0.0.1:0"), address("239.1.2.3:0"));
        good(rdma_resolve_addr(id, raw(&mut from), raw(&mut group), 1000));
        expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
        let stream = new_id(channel, RDMA_PS_TCP);
        good(rdma_resolve_addr(
            stream,
            ptr::null_mut(),
            raw(&mut address("127.0.0.1:9")),
            1000,
        ));
        expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);

        ferroced.stop();
        good(rdma_resolve_route(stream, 1000));
        expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
        queue_pair(stream);
        let (mut attr, mut mask) = (zeros::<ibv_qp_attr>(), 0);
        attr.qp_state = IBV_QPS_INIT;
        good(rdma_init_qp_attr(stream, &mut attr, &mut mask));
        let mut tos = 8u8;
        let value = (&raw mut tos).cast();
        good(rdma_set_option(
            stream,
            RDMA_OPTION_ID,
            RDMA_OPTION_ID_TOS,
            value,
            1,
        ));
        queue_pair(id);
        good(rdma_join_multicast(id, raw(&mut group), ptr::null_mut()));
        expect(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
        good(rdma_leave_multicast(id, raw(&mut group)));
        let other = made(rdma_create_event_channel());
        good(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 0, 5));
        good(rdma_migrate_id(id, other));
        assert_eq!(expect(other, RDMA_CM_EVENT_USER).param.arg, 5);
        let fresh = new_id(other, RDMA_PS_TCP);
        good(rdma_destroy_id(fresh));

        ferroced.go_on();
        for id in [id, stream] {
            destroy(id);
        }
        for channel in [channel, other] {
            rdma_destroy_event_channel(channel);
        }
    });
}

/// The first call of a process, which connects to ferroced, ends as well.
#[test]
fn first_calls_of_a_process_time_out() {
    isolated("stopped::first_calls_of_a_process_time_out", || unsafe {
        let ferroced = Ferroced::start();
        add_link(LINK, "lo");
        ferroced.stop();
        let create = in_thread(|| {
            let mut id = ptr::null_mut();
            rdma_create_id(ptr::null_mut(), &mut id, ptr::null_mut(), RDMA_PS_TCP)
        });
        refused(rdma_create_event_channel(), libc::ETIMEDOUT);
        assert_eq!(create.join().expect("no panic"), (-1, libc::ETIMEDOUT));
        ferroced.go_on();
        works_again();
    });
}

#[test]
fn synchronous_calls_time_out() {
    let name = "stopped::synchronous_calls_time_out";
    on_loopback(name, |ferroced| unsafe {
        let channel = channel();
        let listener = listener(channel, RDMA_PS_TCP, "0.0.0.0:0");
        let mut to = at_port("127.0.0.1:0", listener);
        let id = new_id(ptr::null_mut(), RDMA_PS_TCP);
        good(rdma_resolve_addr(id, ptr::null_mut(), raw(&mut to), 1000));
        good(rdma_resolve_route(id, 1000));
        queue_pair(id);
        // A synchronous listener with a request in its queue.
        let server = new_id(ptr::null_mut(), RDMA_PS_TCP);
        good(rdma_bind_addr(server, raw(&mut address("127.0.0.1:0"))));
        good(rdma_listen(server, 1));
        let asking = resolved(channel, RDMA_PS_TCP, &mut at_port("127.0.0.1:0", server));
        queue_pair(asking);
        good(rdma_connect(asking, &mut param(b"")));
        deadline::until("the request has arrived", || {
            crate::common::polled((*(*server).channel).fd) == libc::POLLIN
        });
        let address = id as usize;
        let caller = in_thread(move || {
            let mut param: rdma_conn_param = zeros();
            rdma_connect(address as *mut rdma_cm_id, &mut param)
        });
        let request = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;

        ferroced.stop();
        let mut taken = ptr::null_mut();
        good(rdma_get_request(server, &mut taken));
        assert_eq!((*(*taken).event).event, RDMA_CM_EVENT_CONNECT_REQUEST);
        let mut hints: rdma_addrinfo = zeros();
        hints.ai_port_space = RDMA_PS_TCP as i32;
        hints.ai_flags = RAI_NUMERICHOST;
        let (node, service) = (c"127.0.0.1".as_ptr(), c"9".as_ptr());
        let mut list = ptr::null_mut();
        for flags in [RAI_NUMERICHOST, RAI_NUMERICHOST | RAI_PASSIVE] {
            hints.ai_flags = flags;
            good(rdma_getaddrinfo(node, service, &hints, &mut list));
            let mut endpoint = ptr::null_mut();
            bad(
                rdma_create_ep(&mut endpoint, list, ptr::null_mut(), ptr::null_mut()),
                libc::ETIMEDOUT,
            );
            rdma_freeaddrinfo(list);
        }
        assert_eq!(caller.join().expect("no panic"), (-1, libc::ETIMEDOUT));

        ferroced.go_on();
        for id in [request, id, asking, taken, server, listener] {
            destroy(id);
        }
        rdma_destroy_event_channel(channel);
        works_again();
    });
}

/// Taking an event completes a connection without waiting for ferroced: the RTU leaves when
/// ferroced runs again.
#[test]
fn taking_an_event_needs_no_answer_of_ferroced() {
    let name = "stopped::taking_an_event_needs_no_answer_of_ferroced";
    on_loopback(name, |ferroced| unsafe {
        let (here, there) = (channel(), channel());
        for channel in [here, there] {
            libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
        }
        let readable = |channel: *mut rdma_event_channel| {
            deadline::until("an event", || {
                crate::common::polled((*channel).fd) == libc::POLLIN
            });
        };
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
        // The response waits here, a request waits there.
        readable(here);
        readable(there);

        ferroced.stop();
        assert_eq!(expect(here, RDMA_CM_EVENT_ESTABLISHED).id, active);
        assert_eq!((*(*active).qp).state, IBV_QPS_RTS);
        let request = expect(there, RDMA_CM_EVENT_CONNECT_REQUEST).id;

        ferroced.go_on();
        assert_eq!(expect(there, RDMA_CM_EVENT_ESTABLISHED).id, passive);
        queue_pair(request);
        good(rdma_accept(request, &mut param(b"")));
        assert_eq!(expect(here, RDMA_CM_EVENT_ESTABLISHED).id, other);
        assert_eq!(expect(there, RDMA_CM_EVENT_ESTABLISHED).id, request);
        for id in [active, other, passive, request, listener] {
            destroy(id);
        }
        for channel in [here, there] {
            rdma_destroy_event_channel(channel);
        }
    });
}

#[test]
fn sending_from_a_datagram_rsocket_times_out() {
    let name = "stopped::sending_from_a_datagram_rsocket_times_out";
    on_loopback(name, |ferroced| unsafe {
        let sockets = [(); 3].map(|()| {
            let socket = rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0);
            assert!(socket >= 0, "errno {}", errno());
            socket
        });
        let length = size_of::<libc::sockaddr_in>() as u32;
        let mut bound = address("127.0.0.1:7490");
        good(rbind(sockets[2], raw(&mut bound), length));

        ferroced.stop();
        // Binding is a matter of the kernel's UDP ports. The first datagram needs a port of
        // rdma_cm for its queue pair.
        let mut local = address("127.0.0.1:7491");
        good(rbind(sockets[0], raw(&mut local), length));
        let sent = rsendto(
            sockets[1],
            b"x".as_ptr().cast(),
            1,
            0,
            raw(&mut bound),
            length,
        );
        bad(sent as i32, libc::ETIMEDOUT);
        for socket in sockets {
            good(rclose(socket));
        }
        ferroced.go_on();
        works_again();
    });
}

/// Releasing objects needs no answer of ferroced, which frees the ports when it continues.
#[test]
fn destroying_ids_and_channels_does_not_wait() {
    let name = "stopped::destroying_ids_and_channels_does_not_wait";
    on_loopback(name, |ferroced| unsafe {
        let (here, there, closing) = (channel(), channel(), channel());
        let server = listener(there, RDMA_PS_TCP, "127.0.0.1:7500");
        let (active, passive) = connect(there, &mut at_port("127.0.0.1:0", server));
        let sidr = resolved(there, RDMA_PS_UDP, &mut address("127.0.0.1:9"));
        queue_pair(sidr);
        good(rdma_connect(sidr, &mut param(b"")));
        // Waiting one second for each would exceed the deadline of the test.
        let ids: Vec<_> = (7501..7561)
            .map(|port| {
                let id = new_id(closing, RDMA_PS_TCP);
                let mut port = address(&format!("127.0.0.1:{port}"));
                good(rdma_bind_addr(id, raw(&mut port)));
                id
            })
            .collect();

        ferroced.stop();
        let (done, destroyed) = std::sync::mpsc::channel();
        let pointers = [active, passive, sidr, server].map(|id| id as usize);
        let closing = closing as usize;
        in_thread(move || {
            for id in pointers {
                destroy(id as *mut rdma_cm_id);
            }
            rdma_destroy_event_channel(closing as *mut rdma_event_channel);
            done.send(()).expect("a receiver");
        });
        let deadline = core::time::Duration::from_secs(60);
        destroyed.recv_timeout(deadline).expect("destroyed");

        ferroced.go_on();
        for port in [7500, 7501, 7560] {
            let id = new_id(here, RDMA_PS_TCP);
            let mut port = address(&format!("127.0.0.1:{port}"));
            good(rdma_bind_addr(id, raw(&mut port)));
            destroy(id);
        }
        for id in ids {
            destroy(id);
        }
        for channel in [here, there] {
            rdma_destroy_event_channel(channel);
        }
    });
}

/// A process that only listens has its devices open before a request arrives.
#[test]
fn first_request_of_a_listening_process_is_taken() {
    let name = "stopped::first_request_of_a_listening_process_is_taken";
    take_first_request(name, || {});
}

/// A thread opens the device before it queues the request.
#[test]
fn first_request_on_a_link_added_after_listen_is_taken() {
    let name = "stopped::first_request_on_a_link_added_after_listen_is_taken";
    take_first_request(name, || {
        let mut connection = find_daemon().expect("reachable").expect("running");
        let delete = Request::LinkDelete {
            name: LINK.into(),
            force: true,
        };
        connection.perform(&delete).expect("deleted");
        add_link(LINK, "lo");
    });
}

/// Listens, calls `listening`, and takes the request of another process while ferroced is
/// stopped.
fn take_first_request(name: &str, listening: impl FnOnce()) {
    on_loopback(name, |ferroced| unsafe {
        let mut ends = [0; 2];
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        let child = libc::fork();
        if child == 0 {
            // The active side: requests a connection to the port that it reads.
            crate::common::ferroced::end_with_parent();
            let mut port = 0u16;
            let length = libc::read(ends[0], (&raw mut port).cast(), 2);
            assert_eq!(length, 2);
            let mut to = address(&format!("127.0.0.1:{port}"));
            let id = resolved(channel(), RDMA_PS_TCP, &mut to);
            queue_pair(id);
            good(rdma_connect(id, &mut param(b"")));
            loop {
                libc::pause();
            }
        }
        let channel = channel();
        libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
        let listener = listener(channel, RDMA_PS_TCP, "0.0.0.0:0");
        listening();
        let port = u16::from_be(rdma_get_src_port(listener));
        assert_eq!(libc::write(ends[1], (&raw const port).cast(), 2), 2);
        deadline::until("a request", || {
            crate::common::polled((*channel).fd) == libc::POLLIN
        });

        ferroced.stop();
        let request = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
        assert!(!(*request).verbs.is_null());
        ferroced.go_on();
        queue_pair(request);
        good(rdma_reject(request, ptr::null(), 0));
        destroy(request);
        destroy(listener);
        rdma_destroy_event_channel(channel);
        assert_eq!(libc::kill(child, libc::SIGKILL), 0);
        assert_eq!(libc::waitpid(child, ptr::null_mut(), 0), child);
    });
}
