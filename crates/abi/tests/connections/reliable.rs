//! Reliable connections from end to end.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::pair::{element, post, receive, request, success};
use crate::common::{made, on_loopback, pages};
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
        // What the peer may have outstanding, we serve.
        assert_eq!((conn.responder_resources, conn.initiator_depth), (3, 2));
        assert_eq!((conn.retry_count, conn.rnr_retry_count), (5, 6));
        assert_eq!(conn.qp_num, (*(*active).qp).qp_num);
        let passive = (*event).id;
        good(rdma_ack_cm_event(event));
        assert_eq!(
            (*passive).verbs,
            (*active).verbs,
            "one context for a device"
        );
        assert_eq!(rdma_get_src_port(passive), rdma_get_src_port(listener));
        assert_eq!(rdma_get_dst_port(passive), rdma_get_src_port(active));
        assert_eq!((*passive).route.num_paths, 1);

        queue_pair(passive);
        good(rdma_accept(passive, &mut param(b"welcome")));
        assert_eq!(
            (*(*passive).qp).state,
            IBV_QPS_RTS,
            "before the yes is sent"
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
        assert_eq!(first.id, passive, "the other end hears first");
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

#[test]
fn a_program_may_move_its_queue_pair_itself() {
    let name = "reliable::a_program_may_move_its_queue_pair_itself";
    on_loopback(name, |_ferroced| unsafe {
        let channel = channel();
        let listener = listener(channel, RDMA_PS_TCP, "127.0.0.1:0");
        let active = resolved(channel, RDMA_PS_TCP, &mut at_port("127.0.0.1:0", listener));
        let cq = made(ibv_create_cq(
            (*active).verbs,
            8,
            ptr::null_mut(),
            ptr::null_mut(),
            0,
        ));
        let qp = crate::common::pair::queue_pair((*active).pd, cq, IBV_QPT_RC);
        let mut wishes = param(b"");
        wishes.qp_num = (*qp).qp_num;
        good(rdma_connect(active, &mut wishes));
        let passive = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
        queue_pair(passive);
        good(rdma_accept(passive, ptr::null_mut()));
        expect(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
        for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
            let mut attr: ibv_qp_attr = crate::common::zeros();
            let mut mask = 0;
            attr.qp_state = state;
            good(rdma_init_qp_attr(active, &mut attr, &mut mask));
            assert_eq!(ibv_modify_qp(qp, &mut attr, mask), 0, "{state}");
        }
        good(rdma_establish(active));
        assert_eq!(expect(channel, RDMA_CM_EVENT_ESTABLISHED).id, passive);
        good(rdma_destroy_id(active));
        assert_eq!(expect(channel, RDMA_CM_EVENT_DISCONNECTED).id, passive);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        destroy(passive);
        good(rdma_destroy_id(listener));
        rdma_destroy_event_channel(channel);
    });
}
