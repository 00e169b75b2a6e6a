//! Datagrams: multicast, and answers to the sender of a datagram.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::pair::{
    QKEY, element, make_ready, post, queue_pair, receive, request, success, way,
};
use crate::common::{V4, V6, made, pages, with_device};

const MULTICAST: u32 = 0xff_ffff;

/// Two datagram queue pairs with one completion queue.
struct Fixture {
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    qps: [*mut ibv_qp; 2],
    memory: *mut u8,
    lkey: u32,
}

fn with_pair(name: &str, body: impl FnOnce(&Fixture)) {
    with_device(name, |context| unsafe {
        let pd = made(ibv_alloc_pd(context));
        let cq = made(ibv_create_cq(
            context,
            64,
            ptr::null_mut(),
            ptr::null_mut(),
            0,
        ));
        let qps = [(); 2].map(|()| {
            let qp = queue_pair(pd, cq, IBV_QPT_UD);
            make_ready(qp);
            qp
        });
        let memory = pages(2);
        let mr = made(ibv_reg_mr(pd, memory.cast(), 8192, 1));
        let lkey = (*mr).lkey;
        body(&Fixture {
            pd,
            cq,
            qps,
            memory,
            lkey,
        });
        for qp in qps {
            assert_eq!(ibv_destroy_qp(qp), 0);
        }
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}

impl Fixture {
    unsafe fn receive(&self, end: usize) {
        receive(self.qps[end], 100, element(self.memory, 4096, self.lkey));
    }

    unsafe fn send(&self, end: usize, ah: *mut ibv_ah, to: u32) {
        let mut wr = request(200, IBV_WR_SEND);
        wr.wr.ud = ibv_send_wr_ud {
            ah,
            remote_qpn: to,
            remote_qkey: QKEY,
        };
        post(
            self.qps[end],
            wr,
            element(self.memory.add(4096), 24, self.lkey),
        );
    }

    /// Waits for the completions of a send and its receive, in any order.
    fn both(&self) -> ibv_wc {
        let wcs = [success(self.cq), success(self.cq)];
        let received = wcs.iter().find(|wc| wc.opcode == IBV_WC_RECV);
        *received.expect("a receive")
    }
}

fn answer(name: &str, index: u8) {
    with_pair(name, |f| unsafe {
        let ah = made(ibv_create_ah(f.pd, &mut way(index)));
        f.receive(1);
        f.send(0, ah, (*f.qps[1]).qp_num);
        let mut wc = f.both();
        assert_eq!(wc.byte_len, 24 + 40);
        assert_eq!(wc.src_qp, (*f.qps[0]).qp_num);
        assert_eq!(wc.wc_flags & IBV_WC_GRH, IBV_WC_GRH);
        let back = made(ibv_create_ah_from_wc(f.pd, &mut wc, f.memory.cast(), 1));
        f.receive(0);
        f.send(1, back, wc.src_qp);
        assert_eq!(f.both().src_qp, (*f.qps[1]).qp_num);
        assert_eq!(ibv_destroy_ah(back), 0);
        assert_eq!(ibv_destroy_ah(ah), 0);
    });
}

#[test]
fn datagram_is_answered_over_ipv4() {
    answer("datagrams::datagram_is_answered_over_ipv4", V4);
}

#[test]
fn datagram_is_answered_over_ipv6() {
    answer("datagrams::datagram_is_answered_over_ipv6", V6);
}

fn group(name: &str, index: u8, group: [u8; 16]) {
    with_pair(name, |f| unsafe {
        let gid = ibv_gid { raw: group };
        let qp = f.qps[1];
        assert_eq!(ibv_detach_mcast(qp, &gid, 0), libc::EINVAL);
        assert_eq!(ibv_attach_mcast(qp, &gid, 0), 0);
        assert_eq!(ibv_attach_mcast(qp, &gid, 0), 0);
        let mut to = way(index);
        to.grh.dgid = gid;
        let ah = made(ibv_create_ah(f.pd, &mut to));
        f.send(0, ah, MULTICAST);
        // The kernel has no route to IPv6 groups on `lo`, so no datagram arrives.
        success(f.cq);
        if index == V4 {
            f.receive(1);
            f.send(0, ah, MULTICAST);
            assert_eq!(f.both().src_qp, (*f.qps[0]).qp_num);
        }
        assert_eq!(ibv_destroy_ah(ah), 0);
        assert_eq!(ibv_destroy_qp(qp), libc::EBUSY);
        assert_eq!(ibv_detach_mcast(qp, &gid, 0), 0);
        assert_eq!(ibv_detach_mcast(qp, &gid, 0), libc::EINVAL);
    });
}

#[test]
fn multicast_reaches_attached_queue_pairs_over_ipv4() {
    let mapped = core::net::Ipv4Addr::new(239, 1, 2, 3).to_ipv6_mapped();
    group(
        "datagrams::multicast_reaches_attached_queue_pairs_over_ipv4",
        V4,
        mapped.octets(),
    );
}

#[test]
fn multicast_reaches_attached_queue_pairs_over_ipv6() {
    let address = core::net::Ipv6Addr::new(0xff01, 0, 0, 0, 0, 0, 0x201, 0x85);
    group(
        "datagrams::multicast_reaches_attached_queue_pairs_over_ipv6",
        V6,
        address.octets(),
    );
}

#[test]
fn invalid_multicast_groups_are_refused() {
    with_pair(
        "datagrams::invalid_multicast_groups_are_refused",
        |f| unsafe {
            let one = way(V4).grh.dgid;
            assert_eq!(ibv_attach_mcast(f.qps[0], &one, 0), libc::EINVAL);
            assert_eq!(ibv_attach_mcast(f.qps[0], ptr::null(), 0), libc::EINVAL);
            let many = ibv_gid { raw: [0xff; 16] };
            assert_eq!(ibv_attach_mcast(ptr::null_mut(), &many, 0), libc::EINVAL);
            let connected = queue_pair(f.pd, f.cq, IBV_QPT_RC);
            assert_eq!(ibv_attach_mcast(connected, &many, 0), libc::EINVAL);
            assert_eq!(ibv_destroy_qp(connected), 0);
        },
    );
}
