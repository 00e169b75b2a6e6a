//! Rejected connections.

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::on_loopback;
use crate::ends::*;

/// Returns a listener, an id that has requested a connection, and the id of the request.
unsafe fn asked(
    channel: *mut rdma_event_channel,
) -> (*mut rdma_cm_id, *mut rdma_cm_id, *mut rdma_cm_id) {
    let listener = listener(channel, RDMA_PS_TCP, "127.0.0.1:0");
    let active = resolved(channel, RDMA_PS_TCP, &mut at_port("127.0.0.1:0", listener));
    queue_pair(active);
    good(rdma_connect(active, &mut param(b"")));
    let passive = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
    (listener, active, passive)
}

/// Waits for the next event, which must be a rejection for this reason.
unsafe fn rejected(channel: *mut rdma_event_channel, reason: i32) -> *mut rdma_cm_event {
    let event = next(channel);
    let said = ((*event).event, (*event).status);
    assert_eq!(said, (RDMA_CM_EVENT_REJECTED, reason));
    event
}

#[test]
fn rejection_carries_private_data() {
    on_loopback(
        "refused::rejection_carries_private_data",
        |_ferroced| unsafe {
            let channel = channel();
            let (listener, active, passive) = asked(channel);
            good(rdma_reject(passive, b"no".as_ptr().cast(), 2));
            good(rdma_destroy_id(passive));
            let event = rejected(channel, 28);
            assert_eq!((data(event).len(), &data(event)[..3]), (148, &b"no\0"[..]));
            good(rdma_ack_cm_event(event));
            assert_eq!((*(*active).qp).state, IBV_QPS_ERR);
            destroy(active);
            good(rdma_destroy_id(listener));
            rdma_destroy_event_channel(channel);
        },
    );
}

#[test]
fn port_without_a_listener_rejects_with_reason_8() {
    on_loopback(
        "refused::port_without_a_listener_rejects_with_reason_8",
        |_ferroced| unsafe {
            let channel = channel();
            let active = resolved(channel, RDMA_PS_TCP, &mut address("127.0.0.1:7"));
            queue_pair(active);
            good(rdma_connect(active, &mut param(b"")));
            let event = rejected(channel, 8);
            good(rdma_ack_cm_event(event));
            destroy(active);
            rdma_destroy_event_channel(channel);
        },
    );
}

#[test]
fn destroying_the_id_of_a_request_rejects_it() {
    on_loopback(
        "refused::destroying_the_id_of_a_request_rejects_it",
        |_ferroced| unsafe {
            let channel = channel();
            let (listener, active, passive) = asked(channel);
            good(rdma_destroy_id(passive));
            let event = rejected(channel, 28);
            good(rdma_ack_cm_event(event));
            destroy(active);
            good(rdma_destroy_id(listener));
            rdma_destroy_event_channel(channel);
        },
    );
}

/// The peer gives up while its reply waits for the program: taking the reply reports that
/// the connection failed, and no other event of the connection follows but TIMEWAIT_EXIT.
#[test]
fn reply_of_a_peer_that_gave_up_is_a_connect_error() {
    let name = "refused::reply_of_a_peer_that_gave_up_is_a_connect_error";
    on_loopback(name, |_ferroced| unsafe {
        let (here, there) = (channel(), channel());
        let listener = listener(there, RDMA_PS_TCP, "127.0.0.1:0");
        let active = resolved(here, RDMA_PS_TCP, &mut at_port("127.0.0.1:0", listener));
        queue_pair(active);
        good(rdma_connect(active, &mut param(b"")));
        let passive = expect(there, RDMA_CM_EVENT_CONNECT_REQUEST).id;
        queue_pair(passive);
        good(rdma_accept(passive, &mut param(b"")));
        destroy(passive);
        // A second connection: when its events arrive, those of the first have arrived.
        let (more, others) = connect(there, &mut at_port("127.0.0.1:0", listener));
        let event = next(here);
        let seen = ((*event).id, (*event).event, (*event).status);
        assert_eq!(seen, (active, RDMA_CM_EVENT_CONNECT_ERROR, -libc::EINVAL));
        good(rdma_ack_cm_event(event));
        assert_eq!((*(*active).qp).state, IBV_QPS_ERR);
        for id in [active, more, others, listener] {
            destroy(id);
        }
        for channel in [here, there] {
            rdma_destroy_event_channel(channel);
        }
    });
}
