//! Reliable connections from end to end.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::pair::{element, post, receive, request, success};
use crate::common::{made, on_loopback, pages, zeros};
use crate::ends::*;

unsafe fn transfer(from: *mut rdma_cm_id, to: *mut rdma_cm_id) {
    let memory = pages(2);
    let mr = made(ibv_reg_mr((*from).pd, memory.cast(), 8192, 1));
    memory.write_bytes(0xa5, 4096);
    receive((*to).qp, 1, element(memory.add(4096), 4096, (*mr).lkey));
    let wr = request(2, IBV_WR_SEND);
    post((*from).qp, wr, element(memory, 1000, (*mr).lkey));
    assert_eq!(success((*to).recv_cq).byte_len, 1000);
    success((*from).send_cq);
    assert_eq!(*memory.add(4096 + 999), 0xa5);
    assert_eq!(ibv_dereg_mr(mr), 0);
}

fn end_to_end(name: &str, wildcard: &str, to: &str) {
    on_loopback(name, |_ferroced| unsafe {
        let channel = channel();
        let listener = listener(channel, RDMA_PS_TCP, wildcard);
        assert!((*listener).verbs.is_null(), "a wildcard has no device");
        let mut to = at_port(to, listener);
        let active = resolved(channel, RDMA_PS_TCP, &mut to);
        assert_eq!(rdma_get_dst_port(active), rdma_get_src_port(listener));
        queue_pair(active);
        assert_eq!((*(*active).qp).state, IBV_QPS_INIT);
        good(rdma_connect(active, &mut param(b"hello")));

        let event = next(channel);
        assert_eq!((*event).event, RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_eq!((*event).listen_id, listener);
        assert_eq!(data(event).len(), 56);
        assert_eq!(&data(event)[..6], b"hello\0");
        let conn = (*event).param.conn;
        // The peer's initiator depth is our responder resources.
        assert_eq!((conn.responder_resources, conn.initiator_depth), (3, 2));
        assert_eq!((conn.retry_count, conn.rnr_retry_count), (5, 6));
        assert_eq!(conn.qp_num, (*(*active).qp).qp_num);
        let passive = (*event).id;
        good(rdma_ack_cm_event(event));
        assert_eq!(
            (*passive).verbs,
            (*active).verbs,
            "all ids on a link share a context"
        );
        assert_eq!(rdma_get_src_port(passive), rdma_get_src_port(listener));
        assert_eq!(rdma_get_dst_port(passive), rdma_get_src_port(active));
        assert_eq!((*passive).route.num_paths, 1);

        queue_pair(passive);
        good(rdma_accept(passive, &mut param(b"welcome")));
        assert_eq!(
            (*(*passive).qp).state,
            IBV_QPS_RTS,
            "before the REP is sent"
        );
        for _ in 0..2 {
            let event = next(channel);
            assert_eq!((*event).event, RDMA_CM_EVENT_ESTABLISHED);
            if (*event).id == active {
                assert_eq!(data(event).len(), 196);
                assert_eq!(&data(event)[..8], b"welcome\0");
            }
            good(rdma_ack_cm_event(event));
        }
        assert_eq!((*(*active).qp).state, IBV_QPS_RTS);
        transfer(active, passive);
        transfer(passive, active);

        good(rdma_disconnect(active));
        assert_eq!((*(*active).qp).state, IBV_QPS_ERR);
        let first = expect(channel, RDMA_CM_EVENT_DISCONNECTED);
        assert_eq!(first.id, passive, "the peer gets the event first");
        good(rdma_disconnect(passive));
        assert_eq!(expect(channel, RDMA_CM_EVENT_DISCONNECTED).id, active);
        good(rdma_disconnect(active));
        destroy(active);
        destroy(passive);
        good(rdma_destroy_id(listener));
        rdma_destroy_event_channel(channel);
    });
}

#[test]
fn a_connection_over_ipv4_carries_data() {
    let name = "reliable::a_connection_over_ipv4_carries_data";
    end_to_end(name, "0.0.0.0:0", "127.0.0.1:0");
}

#[test]
fn a_connection_over_ipv6_carries_data() {
    let name = "reliable::a_connection_over_ipv6_carries_data";
    end_to_end(name, "[::]:0", "[::1]:0");
}

/// Runs a test with a listener and its channel.
fn with_listener(name: &str, body: impl FnOnce(*mut rdma_event_channel, *mut rdma_cm_id)) {
    on_loopback(name, |_ferroced| unsafe {
        let channel = channel();
        let listener = listener(channel, RDMA_PS_TCP, "127.0.0.1:0");
        body(channel, listener);
        good(rdma_destroy_id(listener));
        rdma_destroy_event_channel(channel);
    });
}

/// Creates an id that is resolved to a listener.
unsafe fn on_the_way(
    channel: *mut rdma_event_channel,
    listener: *mut rdma_cm_id,
) -> *mut rdma_cm_id {
    resolved(channel, RDMA_PS_TCP, &mut at_port("127.0.0.1:0", listener))
}

/// Creates a queue pair that the id does not know, and its completion queue.
unsafe fn queue_pair_apart(id: *mut rdma_cm_id) -> (*mut ibv_qp, *mut ibv_cq) {
    let none = ptr::null_mut();
    let cq = made(ibv_create_cq((*id).verbs, 8, none, ptr::null_mut(), 0));
    let qp = crate::common::pair::queue_pair((*id).pd, cq, IBV_QPT_RC);
    (qp, cq)
}

/// Returns parameters that name such a queue pair.
unsafe fn param_of(qp: *mut ibv_qp) -> rdma_conn_param {
    let mut named = param(b"");
    named.qp_num = (*qp).qp_num;
    named
}

/// Moves such a queue pair to RTS, with the attributes of its id.
unsafe fn make_ready(id: *mut rdma_cm_id, qp: *mut ibv_qp) {
    for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
        let mut attr: ibv_qp_attr = zeros();
        let mut mask = 0;
        attr.qp_state = state;
        good(rdma_init_qp_attr(id, &mut attr, &mut mask));
        assert_eq!(ibv_modify_qp(qp, &mut attr, mask), 0, "{state}");
    }
}

unsafe fn destroy_apart((qp, cq): (*mut ibv_qp, *mut ibv_cq)) {
    assert_eq!(ibv_destroy_qp(qp), 0);
    assert_eq!(ibv_destroy_cq(cq), 0);
}

#[test]
fn program_moves_its_queue_pair_itself() {
    let name = "reliable::program_moves_its_queue_pair_itself";
    with_listener(name, |channel, listener| unsafe {
        let active = on_the_way(channel, listener);
        let (qp, cq) = queue_pair_apart(active);
        good(rdma_connect(active, &mut param_of(qp)));
        let passive = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
        queue_pair(passive);
        good(rdma_accept(passive, ptr::null_mut()));
        expect(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
        make_ready(active, qp);
        good(rdma_establish(active));
        assert_eq!(expect(channel, RDMA_CM_EVENT_ESTABLISHED).id, passive);
        good(rdma_destroy_id(active));
        assert_eq!(expect(channel, RDMA_CM_EVENT_DISCONNECTED).id, passive);
        destroy_apart((qp, cq));
        destroy(passive);
    });
}

fn ece(vendor_id: u32, options: u32) -> ibv_ece {
    ibv_ece {
        vendor_id,
        options,
        comp_mask: 0,
    }
}

#[track_caller]
unsafe fn remote_ece(id: *mut rdma_cm_id) -> (u32, u32) {
    let mut ece = ibv_ece {
        comp_mask: 7,
        ..ece(1, 2)
    };
    good(rdma_get_remote_ece(id, &mut ece));
    assert_eq!(ece.comp_mask, 0);
    (ece.vendor_id, ece.options)
}

/// The request carries a vendor and its options. The reply carries the vendor of the
/// request and options of its own.
#[test]
fn request_and_reply_carry_ece_options() {
    let name = "reliable::request_and_reply_carry_ece_options";
    with_listener(name, |channel, listener| unsafe {
        for (asks, answers, theirs, ours) in [
            (None, None, (0, 0), (0, 0)),
            (
                Some(ece(0x00ab_cdef, 0x0102_0304)),
                Some(ece(0x02c9, 0xf0e0_d0c0)),
                (0x00ab_cdef, 0x0102_0304),
                (0x00ab_cdef, 0xf0e0_d0c0),
            ),
            (Some(ece(0x02c9, 5)), None, (0x02c9, 5), (0x02c9, 0)),
        ] {
            let active = on_the_way(channel, listener);
            if let Some(mut ece) = asks {
                good(rdma_set_local_ece(active, &mut ece));
            }
            let mine = queue_pair_apart(active);
            good(rdma_connect(active, &mut param_of(mine.0)));
            let passive = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
            assert_eq!(remote_ece(passive), theirs);
            if let Some(mut ece) = answers {
                good(rdma_set_local_ece(passive, &mut ece));
            }
            let other = queue_pair_apart(passive);
            make_ready(passive, other.0);
            good(rdma_accept(passive, &mut param_of(other.0)));
            expect(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
            assert_eq!(remote_ece(active), ours);
            make_ready(active, mine.0);
            good(rdma_establish(active));
            assert_eq!(expect(channel, RDMA_CM_EVENT_ESTABLISHED).id, passive);
            good(rdma_destroy_id(active));
            assert_eq!(expect(channel, RDMA_CM_EVENT_DISCONNECTED).id, passive);
            good(rdma_destroy_id(passive));
            destroy_apart(mine);
            destroy_apart(other);
        }
    });
}

#[test]
fn request_is_rejected_for_its_ece_options() {
    let name = "reliable::request_is_rejected_for_its_ece_options";
    with_listener(name, |channel, listener| unsafe {
        let active = on_the_way(channel, listener);
        good(rdma_set_local_ece(active, &mut ece(0x02c9, 1)));
        queue_pair(active);
        good(rdma_connect(active, &mut param(b"")));
        let passive = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
        assert_eq!(remote_ece(passive), (0x02c9, 1));
        good(rdma_reject_ece(passive, b"no".as_ptr().cast(), 2));
        let event = next(channel);
        // IBTA 12.6.7.2: reason 35 is an unsupported vendor option.
        let seen = ((*event).event, (*event).status, &data(event)[..2]);
        assert_eq!(seen, (RDMA_CM_EVENT_REJECTED, 35, &b"no"[..]));
        good(rdma_ack_cm_event(event));
        destroy(active);
        destroy(passive);
    });
}

#[test]
fn invalid_ece_options_are_refused() {
    let name = "reliable::invalid_ece_options_are_refused";
    with_listener(name, |channel, listener| unsafe {
        let id = on_the_way(channel, listener);
        let unknown = &mut ibv_ece {
            comp_mask: 1,
            ..ece(1, 0)
        };
        let null = ptr::null_mut();
        bad(rdma_set_local_ece(id, &mut ece(0, 1)), libc::EINVAL);
        bad(rdma_set_local_ece(id, unknown), libc::EINVAL);
        bad(rdma_set_local_ece(id, null), libc::EINVAL);
        bad(rdma_get_remote_ece(id, null), libc::EINVAL);
        bad(rdma_set_local_ece(ptr::null_mut(), unknown), libc::EINVAL);
        // The queue pair of an id determines its ECE options.
        queue_pair(id);
        bad(rdma_set_local_ece(id, &mut ece(1, 0)), libc::EINVAL);
        bad(rdma_get_remote_ece(id, &mut ece(0, 0)), libc::EINVAL);
        destroy(id);
    });
}
