//! Event channels: the descriptor, the events of each id, and acknowledgements.

use core::ptr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use ferroce_testnet::deadline;

use crate::common::pair::{element, post, receive, request, success};
use crate::common::{made, on_loopback, pages, polled};
use crate::ends::*;

fn readable(channel: *mut rdma_event_channel) -> bool {
    let fd = unsafe { BorrowedFd::borrow_raw((*channel).fd) };
    deadline::readable_within(fd, Duration::ZERO)
}

#[test]
fn the_descriptor_is_readable_while_events_wait() {
    let name = "channels::the_descriptor_is_readable_while_events_wait";
    on_loopback(name, |_ferroced| unsafe {
        let channel = channel();
        let flags = libc::fcntl((*channel).fd, libc::F_GETFD);
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        assert_eq!(
            polled((*channel).fd),
            0,
            "never POLLOUT, as with the kernel"
        );
        let id = new_id(channel, RDMA_PS_TCP);
        for argument in [1, 2] {
            good(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 5, argument));
        }
        assert_eq!(polled((*channel).fd), libc::POLLIN);
        for argument in [1, 2] {
            let event = next(channel);
            assert_eq!(((*event).event, (*event).status), (RDMA_CM_EVENT_USER, 5));
            assert_eq!((*event).param.arg, argument);
            good(rdma_ack_cm_event(event));
        }
        assert!(!readable(channel));
        libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
        let mut event = ptr::null_mut();
        bad(rdma_get_cm_event(channel, &mut event), libc::EAGAIN);
        bad(rdma_get_cm_event(channel, ptr::null_mut()), libc::EINVAL);
        bad(rdma_ack_cm_event(ptr::null_mut()), libc::EINVAL);
        bad(
            rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0),
            libc::EINVAL,
        );
        good(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 0, 0));
        good(rdma_destroy_id(id));
        assert!(!readable(channel), "destroying an id drops its events");
        rdma_destroy_event_channel(channel);
    });
}

#[test]
fn destroying_an_id_waits_for_acknowledgements() {
    on_loopback(
        "channels::destroying_an_id_waits_for_acknowledgements",
        |_ferroced| unsafe {
            let channel = channel();
            let id = new_id(channel, RDMA_PS_TCP);
            good(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 0, 0));
            let event = next(channel) as usize;
            let (id, acknowledged) = (id as usize, AtomicBool::new(false));
            #[allow(clippy::disallowed_methods)] // the program's other thread
            std::thread::scope(|scope| {
                let destroying = scope.spawn(|| {
                    good(rdma_destroy_id(id as *mut rdma_cm_id));
                    assert!(acknowledged.load(Ordering::SeqCst), "not before");
                });
                // rdma_destroy_id gets 100 ms to return too early.
                let nothing = BorrowedFd::borrow_raw((*channel).fd);
                assert!(!deadline::readable_within(
                    nothing,
                    Duration::from_millis(100)
                ));
                acknowledged.store(true, Ordering::SeqCst);
                good(rdma_ack_cm_event(event as *mut rdma_cm_event));
                destroying.join().unwrap();
            });
            rdma_destroy_event_channel(channel);
        },
    );
}

#[test]
fn waiting_events_move_with_their_id() {
    on_loopback(
        "channels::waiting_events_move_with_their_id",
        |_ferroced| unsafe {
            let (from, to) = (channel(), channel());
            let (moved, stays) = (new_id(from, RDMA_PS_TCP), new_id(from, RDMA_PS_TCP));
            for (id, argument) in [(moved, 1), (stays, 2), (moved, 3)] {
                good(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 0, argument));
            }
            good(rdma_migrate_id(moved, to));
            assert_eq!((*moved).channel, to);
            assert_eq!(expect(to, RDMA_CM_EVENT_USER).param.arg, 1);
            assert_eq!(expect(to, RDMA_CM_EVENT_USER).param.arg, 3);
            assert_eq!(expect(from, RDMA_CM_EVENT_USER).param.arg, 2);
            assert!(!readable(from) && !readable(to));
            good(rdma_migrate_id(moved, ptr::null_mut()));
            bad(rdma_migrate_id(moved, ptr::null_mut()), libc::EINVAL);
            for id in [moved, stays] {
                good(rdma_destroy_id(id));
            }
            for channel in [from, to] {
                rdma_destroy_event_channel(channel);
            }
        },
    );
}

/// Returns the ends of a connection, each on its own channel, and the listener.
unsafe fn apart(
    here: *mut rdma_event_channel,
    there: *mut rdma_event_channel,
) -> [*mut rdma_cm_id; 3] {
    let listener = listener(there, RDMA_PS_TCP, "127.0.0.1:0");
    let active = resolved(here, RDMA_PS_TCP, &mut at_port("127.0.0.1:0", listener));
    queue_pair(active);
    good(rdma_connect(active, &mut param(b"")));
    let passive = expect(there, RDMA_CM_EVENT_CONNECT_REQUEST).id;
    assert_eq!((*passive).channel, there);
    queue_pair(passive);
    good(rdma_accept(passive, &mut param(b"")));
    assert_eq!(expect(here, RDMA_CM_EVENT_ESTABLISHED).id, active);
    assert_eq!(expect(there, RDMA_CM_EVENT_ESTABLISHED).id, passive);
    [active, passive, listener]
}

#[test]
fn events_go_to_the_channel_of_their_id() {
    on_loopback(
        "channels::events_go_to_the_channel_of_their_id",
        |_ferroced| unsafe {
            let (here, there) = (channel(), channel());
            for id in apart(here, there) {
                destroy(id);
            }
            for channel in [here, there] {
                rdma_destroy_event_channel(channel);
            }
        },
    );
}

#[test]
fn destroying_a_channel_ends_the_connections_of_its_ids() {
    on_loopback(
        "channels::destroying_a_channel_ends_the_connections_of_its_ids",
        |_ferroced| unsafe {
            let (here, there) = (channel(), channel());
            let [active, passive, listener] = apart(here, there);
            let mut to = at_port("127.0.0.1:0", listener);
            good(rdma_write_cm_event(passive, RDMA_CM_EVENT_USER, 0, 1));
            rdma_destroy_event_channel(there);
            assert_eq!(expect(here, RDMA_CM_EVENT_DISCONNECTED).id, active);
            bad(rdma_disconnect(passive), libc::EBADF);
            bad(rdma_listen(listener, 1), libc::EBADF);
            bad(rdma_migrate_id(passive, here), libc::EBADF);
            destroy(passive);
            destroy(listener);

            let late = resolved(here, RDMA_PS_TCP, &mut to);
            queue_pair(late);
            good(rdma_connect(late, &mut param(b"")));
            let event = next(here);
            let said = ((*event).event, (*event).status);
            assert_eq!(said, (RDMA_CM_EVENT_REJECTED, 8), "reason 8: no listener");
            good(rdma_ack_cm_event(event));
            for id in [active, late] {
                destroy(id);
            }
            rdma_destroy_event_channel(here);
        },
    );
}

/// A peer may send and disconnect while the program waits for a processor. libfabric closes the
/// endpoint when it gets the event, and loses or mishandles the message. It polls before it asks
/// again.
#[test]
fn end_of_a_connection_is_postponed_once_while_messages_wait() {
    let name = "channels::end_of_a_connection_is_postponed_once_while_messages_wait";
    on_loopback(name, |_ferroced| unsafe {
        for (sends, polls) in [(true, true), (true, false), (false, false)] {
            let (here, there) = (channel(), channel());
            let [active, passive, listener] = apart(here, there);
            let memory = pages(1);
            let mr = made(ibv_reg_mr((*active).pd, memory.cast(), 4096, 1));
            if sends {
                let element = element(memory, 32, (*mr).lkey);
                receive((*passive).qp, 1, element);
                post((*active).qp, request(2, IBV_WR_SEND), element);
                success((*active).send_cq);
            }
            good(rdma_disconnect(active));
            libc::fcntl((*there).fd, libc::F_SETFL, libc::O_NONBLOCK);
            deadline::readable(BorrowedFd::borrow_raw((*there).fd), "the end");
            if sends {
                let mut event = ptr::null_mut();
                bad(rdma_get_cm_event(there, &mut event), libc::EAGAIN);
                assert!(readable(there), "the event waits");
            }
            if polls {
                assert_eq!(success((*passive).recv_cq).byte_len, 32);
            }
            assert_eq!(expect(there, RDMA_CM_EVENT_DISCONNECTED).id, passive);
            for id in [active, passive, listener] {
                destroy(id);
            }
            assert_eq!(ibv_dereg_mr(mr), 0);
            for channel in [here, there] {
                rdma_destroy_event_channel(channel);
            }
        }
    });
}

/// Programs have a thread for events: it may run before the call that led to the event
/// returns.
#[test]
fn the_thread_that_takes_an_event_finds_device_and_path() {
    let name = "channels::the_thread_that_takes_an_event_finds_device_and_path";
    on_loopback(name, |_ferroced| unsafe {
        let events = channel() as usize;
        let take = move |wanted| {
            let event = next(events as *mut rdma_event_channel);
            assert_eq!(((*event).event, (*event).status), (wanted, 0));
            let id = (*event).id;
            let found = (!(*id).verbs.is_null(), (*id).route.num_paths);
            good(rdma_ack_cm_event(event));
            found
        };
        for _ in 0..20 {
            let id = new_id(events as *mut rdma_event_channel, RDMA_PS_TCP);
            #[allow(clippy::disallowed_methods)] // the program's other thread
            std::thread::scope(|scope| {
                let taker = scope.spawn(move || take(RDMA_CM_EVENT_ADDR_RESOLVED));
                let to = &mut address("127.0.0.1:7471");
                good(rdma_resolve_addr(id, ptr::null_mut(), raw(to), 1000));
                assert_eq!(taker.join().expect("no panic"), (true, 0));
                let taker = scope.spawn(move || take(RDMA_CM_EVENT_ROUTE_RESOLVED));
                good(rdma_resolve_route(id, 1000));
                assert_eq!(taker.join().expect("no panic"), (true, 1));
            });
            good(rdma_destroy_id(id));
        }
        rdma_destroy_event_channel(events as *mut rdma_event_channel);
    });
}
