//! Calls that iWARP does not have get the errno of the kernel's siw with rdma-core 44. `cargo
//! xtask interop --siw --only refusals` compares more answers with siw itself.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use ferroce_testnet::isolated;

use crate::common::inline::{alloc_mw, slot};
use crate::common::{Ferroced, errno, ferroced, made, open, refused, zeros};

fn on_siw(name: &str, body: impl FnOnce(*mut ibv_context)) {
    isolated(name, || {
        let _ferroced = Ferroced::start();
        ferroced::add_link_of("siw", "siw0", "lo");
        let context = open();
        body(context);
        assert_eq!(unsafe { ibv_close_device(context) }, 0);
    });
}

#[test]
fn queue_pair_types_and_multicast_are_refused() {
    let name = "iwarp::queue_pair_types_and_multicast_are_refused";
    on_siw(name, |context| unsafe {
        let pd = made(ibv_alloc_pd(context));
        let cq = made(ibv_create_cq(
            context,
            4,
            ptr::null_mut(),
            ptr::null_mut(),
            0,
        ));
        let create = |qp_type| {
            let mut init: ibv_qp_init_attr = zeros();
            (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, qp_type);
            (init.cap.max_send_wr, init.cap.max_recv_wr) = (4, 4);
            ibv_create_qp(pd, &raw mut init)
        };
        for qp_type in [
            IBV_QPT_UC,
            IBV_QPT_UD,
            IBV_QPT_RAW_PACKET,
            IBV_QPT_XRC_SEND,
            IBV_QPT_DRIVER,
        ] {
            refused(create(qp_type), libc::EOPNOTSUPP);
        }
        refused(create(IBV_QPT_XRC_RECV), libc::EINVAL);
        let qp = made(create(IBV_QPT_RC));
        let mut group: ibv_gid = zeros();
        group.raw[10..].copy_from_slice(&[0xff, 0xff, 239, 78, 0, 1]);
        assert_eq!(ibv_attach_mcast(qp, &raw const group, 0), libc::EOPNOTSUPP);
        assert_eq!(ibv_detach_mcast(qp, &raw const group, 0), libc::EOPNOTSUPP);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}

#[test]
fn address_handles_windows_and_xrc_are_refused() {
    let name = "iwarp::address_handles_windows_and_xrc_are_refused";
    on_siw(name, |context| unsafe {
        let pd = made(ibv_alloc_pd(context));
        let mut attr: ibv_ah_attr = zeros();
        (attr.dlid, attr.port_num) = (1, 1);
        refused(ibv_create_ah(pd, &raw mut attr), libc::EOPNOTSUPP);
        attr.is_global = 1;
        refused(ibv_create_ah(pd, &raw mut attr), libc::EOPNOTSUPP);
        for type_ in [IBV_MW_TYPE_1, IBV_MW_TYPE_2] {
            refused(alloc_mw(pd, type_), libc::EOPNOTSUPP);
        }
        let mut attr: ibv_xrcd_init_attr = zeros();
        attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        (attr.fd, attr.oflags) = (-1, libc::O_CREAT);
        let xrcd = slot!(context, open_xrcd(context, &raw mut attr));
        refused(xrcd, libc::EOPNOTSUPP);
        let mut init: ibv_srq_init_attr_ex = zeros();
        init.attr.max_wr = 4;
        init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        (init.srq_type, init.pd) = (IBV_SRQT_XRC, pd);
        let srq = slot!(context, create_srq_ex(context, &raw mut init));
        refused(srq, libc::EOPNOTSUPP);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}

#[test]
fn tables_have_one_gid_and_no_pkey() {
    on_siw("iwarp::tables_have_one_gid_and_no_pkey", |context| unsafe {
        let (mut gid, mut pkey): (ibv_gid, u16) = zeros();
        assert_eq!(ibv_query_gid(context, 1, 0, &raw mut gid), 0);
        assert_eq!(ibv_query_gid(context, 1, 1, &raw mut gid), -1);
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!(ibv_query_pkey(context, 1, 0, &raw mut pkey), -1);
        assert_eq!(errno(), libc::ENOENT);
        assert_eq!(ibv_get_pkey_index(context, 1, 0xffff), -1);
    });
}
