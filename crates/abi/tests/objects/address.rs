//! Address handles.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use ferroce_testnet::deadline;

use crate::common::ferroced::set_lids;
use crate::common::{LINK, V4, V6, errno, made, refused, with_device, zeros};

/// ::ffff:127.0.0.1
const LOCALHOST: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];

fn attr() -> ibv_ah_attr {
    let mut attr: ibv_ah_attr = zeros();
    attr.is_global = 1;
    attr.port_num = 1;
    attr.grh.dgid = ibv_gid { raw: LOCALHOST };
    attr.grh.sgid_index = V4;
    attr
}

#[test]
fn address_handle_needs_port_1_and_a_grh() {
    with_device(
        "address::address_handle_needs_port_1_and_a_grh",
        |context| unsafe {
            let pd = made(ibv_alloc_pd(context));
            let ah = made(ibv_create_ah(pd, &mut attr()));
            assert_eq!(((*ah).context, (*ah).pd), (context, pd));
            assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY);
            assert_eq!(ibv_destroy_ah(ah), 0);
            let create = |attr: ibv_ah_attr| {
                let mut attr = attr;
                ibv_create_ah(pd, &mut attr)
            };
            // As with rxe: a RoCE port has no LID, and an address without a GRH is none.
            let by_lid = |dlid| ibv_ah_attr {
                is_global: 0,
                dlid,
                ..attr()
            };
            let mut port: ibv_port_attr = zeros();
            assert_eq!(ibv_query_port(context, 1, (&raw mut port).cast()), 0);
            assert_eq!((port.lid, port.sm_lid), (0, 0));
            refused(create(by_lid(0)), libc::EINVAL);
            refused(create(by_lid(1)), libc::EINVAL);
            // The option `lids` maps LIDs to addresses of the link's IPv4 network.
            set_lids(LINK, true);
            deadline::until("the port has a LID", || {
                assert_eq!(ibv_query_port(context, 1, (&raw mut port).cast()), 0);
                port.lid == 1
            });
            refused(create(by_lid(0)), libc::EINVAL);
            assert_eq!(ibv_destroy_ah(made(create(by_lid(1)))), 0);
            for port_num in [0, 2, 255] {
                refused(create(ibv_ah_attr { port_num, ..attr() }), libc::EINVAL);
            }
            for sgid_index in [77, 255, V6] {
                let mut attr = attr();
                attr.grh.sgid_index = sgid_index;
                refused(create(attr), libc::EINVAL);
            }
            refused(ibv_create_ah(pd, ptr::null_mut()), libc::EINVAL);
            refused(ibv_create_ah(ptr::null_mut(), &mut attr()), libc::EINVAL);
            assert_eq!(ibv_destroy_ah(ptr::null_mut()), libc::EINVAL);
            assert_eq!(ibv_dealloc_pd(pd), 0);
        },
    );
}

/// Returns the GRH of a datagram from ::1 to an address.
fn grh(destination: [u8; 16]) -> ibv_grh {
    let mut grh: ibv_grh = zeros();
    grh.version_tclass_flow = 0x6a51_2345u32.to_be();
    grh.hop_limit = 33;
    grh.sgid.raw = core::net::Ipv6Addr::LOCALHOST.octets();
    grh.dgid.raw = destination;
    grh
}

#[test]
fn address_handle_is_made_from_a_completion() {
    with_device(
        "address::address_handle_is_made_from_a_completion",
        |context| unsafe {
            let pd = made(ibv_alloc_pd(context));
            let mut wc: ibv_wc = zeros();
            wc.wc_flags = IBV_WC_GRH;
            wc.sl = 3;
            let local = core::net::Ipv6Addr::LOCALHOST.octets();
            let mut header = grh(local);
            let mut attr: ibv_ah_attr = zeros();
            let init = |wc: *mut ibv_wc, grh: *mut ibv_grh, attr: *mut ibv_ah_attr| {
                ibv_init_ah_from_wc(context, 1, wc, grh, attr)
            };
            assert_eq!(init(&mut wc, &mut header, &mut attr), 0);
            assert_eq!((attr.is_global, attr.port_num, attr.sl), (1, 1, 3));
            assert_eq!(attr.grh.dgid.raw, local);
            assert_eq!(attr.grh.sgid_index, V6);
            assert_eq!(
                (attr.grh.flow_label, attr.grh.traffic_class),
                (0x1_2345, 0xa5)
            );
            assert_eq!(attr.grh.hop_limit, 33);
            let ah = made(ibv_create_ah_from_wc(pd, &mut wc, &mut header, 1));
            assert_eq!(ibv_destroy_ah(ah), 0);
            let group = [0xff, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
            let ah = made(ibv_create_ah_from_wc(pd, &mut wc, &mut grh(group), 1));
            assert_eq!(ibv_destroy_ah(ah), 0);

            let elsewhere = ibv_create_ah_from_wc(pd, &mut wc, &mut grh([0x20; 16]), 1);
            refused(elsewhere, libc::ENODATA);
            refused(
                ibv_create_ah_from_wc(pd, ptr::null_mut(), &mut header, 1),
                libc::EINVAL,
            );
            refused(
                ibv_create_ah_from_wc(pd, &mut wc, ptr::null_mut(), 1),
                libc::EINVAL,
            );
            let nowhere = init(&mut wc, &mut header, ptr::null_mut());
            assert_eq!((nowhere, errno()), (-1, libc::EINVAL));
            wc.wc_flags = 0;
            refused(
                ibv_create_ah_from_wc(pd, &mut wc, &mut header, 1),
                libc::EINVAL,
            );
            assert_eq!(ibv_dealloc_pd(pd), 0);
        },
    );
}
