//! Connections that do not come to be.

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::on_loopback;
use crate::ends::*;

/// A listener, somebody who has asked it, and the id for the answer.
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

/// The next event, which is a refusal for this reason.
unsafe fn rejected(channel: *mut rdma_event_channel, reason: i32) -> *mut rdma_cm_event {
    let event = next(channel);
    let said = ((*event).event, (*event).status);
    assert_eq!(said, (RDMA_CM_EVENT_REJECTED, reason));
    event
}

#[test]
fn a_refusal_brings_private_data() {
    on_loopback(
        "refused::a_refusal_brings_private_data",
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
fn without_a_listener_the_reason_is_eight() {
    on_loopback(
        "refused::without_a_listener_the_reason_is_eight",
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
fn an_id_destroyed_before_its_answer_refuses() {
    on_loopback(
        "refused::an_id_destroyed_before_its_answer_refuses",
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
