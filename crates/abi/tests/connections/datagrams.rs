//! Datagrams: service ID resolution (SIDR) and multicast groups.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::pair::{element, post, receive, request, success};
use crate::common::{made, on_loopback, pages};
use crate::ends::*;

unsafe fn send(id: *mut rdma_cm_id, to: &rdma_ud_param, sge: ibv_sge) {
    let mut attr = to.ah_attr;
    let ah = made(ibv_create_ah((*id).pd, &mut attr));
    let mut wr = request(2, IBV_WR_SEND);
    wr.wr.ud = ibv_send_wr_ud {
        ah,
        remote_qpn: to.qp_num,
        remote_qkey: to.qkey,
    };
    post((*id).qp, wr, sge);
    success((*id).send_cq);
    assert_eq!(ibv_destroy_ah(ah), 0);
}

#[test]
fn sidr_request_finds_the_queue_pair() {
    on_loopback(
        "datagrams::sidr_request_finds_the_queue_pair",
        |_ferroced| unsafe {
            let channel = channel();
            let listener = listener(channel, RDMA_PS_UDP, "0.0.0.0:0");
            let active = resolved(channel, RDMA_PS_UDP, &mut at_port("127.0.0.1:0", listener));
            queue_pair(active);
            assert_eq!((*(*active).qp).state, IBV_QPS_RTS, "UD needs no connection");
            good(rdma_connect(active, &mut param(b"who?")));
            let event = next(channel);
            assert_eq!((*event).event, RDMA_CM_EVENT_CONNECT_REQUEST);
            let ud = (*event).param.ud;
            assert_eq!(ud.private_data_len, 180);
            assert_eq!(ud.private_data.cast::<[u8; 4]>().read(), *b"who?");
            let passive = (*event).id;
            good(rdma_ack_cm_event(event));
            queue_pair(passive);
            good(rdma_accept(passive, &mut param(b"me")));
            let event = next(channel);
            assert_eq!(
                ((*event).event, (*event).id),
                (RDMA_CM_EVENT_ESTABLISHED, active)
            );
            let ud = (*event).param.ud;
            assert_eq!((ud.qp_num, ud.qkey), ((*(*passive).qp).qp_num, 0x0123_4567));
            assert_eq!(ud.private_data.cast::<[u8; 2]>().read(), *b"me");
            assert_eq!(ud.private_data_len, 136);

            let memory = pages(2);
            let mr = made(ibv_reg_mr((*active).pd, memory.cast(), 8192, 1));
            receive(
                (*passive).qp,
                1,
                element(memory.add(4096), 4096, (*mr).lkey),
            );
            send(active, &ud, element(memory, 100, (*mr).lkey));
            assert_eq!(success((*passive).recv_cq).byte_len, 140);
            good(rdma_ack_cm_event(event));
            for id in [active, passive, listener] {
                destroy(id);
            }
            assert_eq!(ibv_dereg_mr(mr), 0);
            rdma_destroy_event_channel(channel);
        },
    );
}

#[test]
fn sidr_request_is_rejected_or_finds_no_listener() {
    let name = "datagrams::sidr_request_is_rejected_or_finds_no_listener";
    on_loopback(name, |_ferroced| unsafe {
        let channel = channel();
        let listener = listener(channel, RDMA_PS_UDP, "127.0.0.1:0");
        let active = resolved(channel, RDMA_PS_UDP, &mut at_port("127.0.0.1:0", listener));
        queue_pair(active);
        good(rdma_connect(active, &mut param(b"")));
        let passive = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
        good(rdma_reject(passive, ptr::null(), 0));
        let lonely = resolved_beside(channel);
        for (id, status) in [(active, 2), (lonely, 1)] {
            let event = next(channel);
            assert_eq!((*event).id, id);
            let said = ((*event).event, (*event).status);
            assert_eq!(said, (RDMA_CM_EVENT_UNREACHABLE, status));
            good(rdma_ack_cm_event(event));
            if id == active {
                queue_pair(lonely);
                good(rdma_connect(lonely, &mut param(b"")));
            }
        }
        for id in [active, passive, lonely, listener] {
            destroy(id);
        }
        rdma_destroy_event_channel(channel);
    });
}

/// Returns an id that is resolved to a port without a listener. It is resolved on a channel
/// of its own, because `busy` has other events.
unsafe fn resolved_beside(busy: *mut rdma_event_channel) -> *mut rdma_cm_id {
    let own = channel();
    let id = resolved(own, RDMA_PS_UDP, &mut address("127.0.0.1:9"));
    good(rdma_migrate_id(id, busy));
    rdma_destroy_event_channel(own);
    id
}

#[test]
fn multicast_groups_are_joined_and_left() {
    on_loopback(
        "datagrams::multicast_groups_are_joined_and_left",
        |_ferroced| unsafe {
            let channel = channel();
            let ids = [(); 2].map(|()| {
                let id = new_id(channel, RDMA_PS_UDP);
                let (mut from, mut to) = (address("127.0.0.1:0"), address("239.1.2.3:0"));
                good(rdma_resolve_addr(id, raw(&mut from), raw(&mut to), 1000));
                expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
                queue_pair(id);
                id
            });
            let mut group = address("239.1.2.3:0");
            let mut context = 7u32;
            let context = (&raw mut context).cast();
            good(rdma_join_multicast(ids[0], raw(&mut group), context));
            let mut attr = rdma_cm_join_mc_attr_ex {
                comp_mask: RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
                join_flags: RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
                addr: raw(&mut group),
            };
            let joined = expect(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
            let ud = joined.param.ud;
            assert_eq!((ud.qp_num, ud.qkey), (0xff_ffff, 0x0123_4567));
            assert_eq!(ud.private_data, context.cast_const());
            let mgid = core::net::Ipv4Addr::new(239, 1, 2, 3)
                .to_ipv6_mapped()
                .octets();
            assert_eq!(ud.ah_attr.grh.dgid.raw, mgid);
            good(rdma_join_multicast_ex(ids[1], &mut attr, ptr::null_mut()));
            expect(channel, RDMA_CM_EVENT_MULTICAST_JOIN);

            let memory = pages(2);
            let mr = made(ibv_reg_mr((*ids[0]).pd, memory.cast(), 8192, 1));
            for id in ids {
                receive((*id).qp, 1, element(memory.add(4096), 4096, (*mr).lkey));
            }
            send(ids[1], &ud, element(memory, 10, (*mr).lkey));
            assert_eq!(success((*ids[0]).recv_cq).byte_len, 50);
            bad(
                rdma_leave_multicast(ids[0], raw(&mut address("239.9.9.9:0"))),
                libc::EADDRNOTAVAIL,
            );
            good(rdma_leave_multicast(ids[0], raw(&mut group)));
            bad(
                rdma_leave_multicast(ids[0], raw(&mut group)),
                libc::EADDRNOTAVAIL,
            );
            attr.comp_mask = 1 << 2;
            bad(
                rdma_join_multicast_ex(ids[1], &mut attr, ptr::null_mut()),
                libc::ENOTSUP,
            );
            attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS;
            bad(
                rdma_join_multicast_ex(ids[1], &mut attr, ptr::null_mut()),
                libc::EINVAL,
            );
            for id in ids {
                destroy(id);
            }
            assert_eq!(ibv_dereg_mr(mr), 0);
            rdma_destroy_event_channel(channel);
        },
    );
}
