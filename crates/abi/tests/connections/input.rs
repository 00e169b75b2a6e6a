//! Wrong calls: each is refused with the errno of rdma-core and has no effect.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use ferroce_testnet::namespace::{another, within};
use ferroce_testnet::{isolated, netdev};

use crate::common::ferroced::add_link;
use crate::common::{Ferroced, LINK, on_loopback, refused, zeros};
use crate::ends::*;

#[test]
fn without_ferroced_there_are_no_connections() {
    isolated(
        "input::without_ferroced_there_are_no_connections",
        || unsafe {
            refused(rdma_create_event_channel(), libc::ENODEV);
            let mut id = ptr::null_mut();
            bad(
                rdma_create_id(ptr::null_mut(), &mut id, ptr::null_mut(), RDMA_PS_TCP),
                libc::ENODEV,
            );
            let mut count = 7;
            refused(rdma_get_devices(&mut count), libc::ENODEV);
            assert_eq!(count, 0);
        },
    );
}

#[test]
fn calls_in_the_wrong_state_are_refused() {
    on_loopback(
        "input::calls_in_the_wrong_state_are_refused",
        |_ferroced| unsafe {
            let channel = channel();
            let none = ptr::null_mut();
            let mut id = none;
            bad(
                rdma_create_id(channel, &mut id, none.cast(), 77),
                libc::EINVAL,
            );
            bad(
                rdma_create_id(channel, ptr::null_mut(), none.cast(), 0x106),
                libc::EINVAL,
            );
            let id = new_id(channel, RDMA_PS_TCP);
            let mut local = address("127.0.0.1:0");
            let mut attr: ibv_qp_attr = zeros();
            let mut mask = 0;
            for (what, code) in [
                ("route", rdma_resolve_route(id, 1)),
                ("connect", rdma_connect(id, &mut param(b""))),
                ("connect to nothing", rdma_connect(id, ptr::null_mut())),
                ("accept", rdma_accept(id, &mut param(b""))),
                ("reject", rdma_reject(id, ptr::null(), 0)),
                ("disconnect", rdma_disconnect(id)),
                ("establish", rdma_establish(id)),
                ("notify", rdma_notify(id, IBV_EVENT_COMM_EST)),
                ("bind to NULL", rdma_bind_addr(id, ptr::null_mut())),
                (
                    "resolve NULL",
                    rdma_resolve_addr(id, ptr::null_mut(), ptr::null_mut(), 1),
                ),
                ("attributes", rdma_init_qp_attr(id, &mut attr, &mut mask)),
                (
                    "queue pair",
                    rdma_create_qp(id, ptr::null_mut(), &mut zeros()),
                ),
                (
                    "join",
                    rdma_join_multicast(id, raw(&mut address("239.1.1.1:0")), none.cast()),
                ),
                ("NULL", rdma_listen(ptr::null_mut(), 1)),
            ] {
                assert_eq!(code, -1, "{what}");
            }
            local.ss_family = 27;
            bad(rdma_bind_addr(id, raw(&mut local)), libc::EINVAL);
            bad(
                rdma_bind_addr(id, raw(&mut address("192.0.2.1:0"))),
                libc::EADDRNOTAVAIL,
            );
            let mut mixed = address("[::1]:0");
            bad(
                rdma_resolve_addr(id, raw(&mut mixed), raw(&mut address("127.0.0.1:1")), 1),
                libc::EINVAL,
            );
            good(rdma_listen(id, 0));
            assert_ne!(rdma_get_src_port(id), 0, "bound to an ephemeral port");
            bad(rdma_listen(id, 0), libc::EINVAL);
            bad(
                rdma_bind_addr(id, raw(&mut address("127.0.0.1:0"))),
                libc::EINVAL,
            );
            let mut taken = at_port("127.0.0.1:0", id);
            let other = new_id(channel, RDMA_PS_TCP);
            bad(rdma_bind_addr(other, raw(&mut taken)), libc::EADDRNOTAVAIL);
            good(rdma_bind_addr(other, raw(&mut address("127.0.0.1:0"))));
            assert!(
                (*other).verbs.is_null(),
                "a loopback address selects no device"
            );
            let third = new_id(channel, RDMA_PS_TCP);
            let mut taken = at_port("127.0.0.1:0", other);
            bad(rdma_bind_addr(third, raw(&mut taken)), libc::EADDRINUSE);
            for id in [id, other, third] {
                good(rdma_destroy_id(id));
            }
            rdma_destroy_event_channel(channel);
        },
    );
}

#[test]
fn private_data_that_does_not_fit_is_refused() {
    let name = "input::private_data_that_does_not_fit_is_refused";
    on_loopback(name, |_ferroced| unsafe {
        let channel = channel();
        let listener = listener(channel, RDMA_PS_TCP, "127.0.0.1:0");
        let active = resolved(channel, RDMA_PS_TCP, &mut at_port("127.0.0.1:0", listener));
        queue_pair(active);
        bad(
            rdma_create_qp(active, ptr::null_mut(), &mut zeros()),
            libc::EINVAL,
        );
        let data = [1; 255];
        bad(rdma_connect(active, &mut param(&data[..57])), libc::EINVAL);
        let mut deep = param(b"");
        deep.initiator_depth = 200;
        bad(rdma_connect(active, &mut deep), libc::EINVAL);
        good(rdma_connect(active, &mut param(&data[..56])));
        bad(rdma_connect(active, &mut param(b"")), libc::EINVAL);
        let passive = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
        queue_pair(passive);
        bad(
            rdma_reject(passive, data.as_ptr().cast(), 149),
            libc::EINVAL,
        );
        bad(rdma_accept(passive, &mut param(&data[..197])), libc::EINVAL);
        good(rdma_accept(passive, &mut param(&data[..196])));
        for id in [active, passive, listener] {
            destroy(id);
        }
        rdma_destroy_event_channel(channel);
    });
}

#[test]
fn address_without_a_route_is_reported_by_an_event() {
    let name = "input::address_without_a_route_is_reported_by_an_event";
    on_loopback(name, |_ferroced| unsafe {
        let channel = channel();
        let id = new_id(channel, RDMA_PS_TCP);
        good(rdma_resolve_addr(
            id,
            ptr::null_mut(),
            raw(&mut address("192.0.2.1:1")),
            1,
        ));
        let event = next(channel);
        let said = ((*event).event, (*event).status);
        assert_eq!(said, (RDMA_CM_EVENT_ADDR_ERROR, -libc::ENETUNREACH));
        good(rdma_ack_cm_event(event));
        good(rdma_resolve_addr(
            id,
            ptr::null_mut(),
            raw(&mut address("127.0.0.1:1")),
            1,
        ));
        expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
        good(rdma_destroy_id(id));
        rdma_destroy_event_channel(channel);
    });
}

#[test]
fn address_without_a_neighbour_is_reported_at_the_timeout() {
    let name = "input::address_without_a_neighbour_is_reported_at_the_timeout";
    isolated(name, || unsafe {
        let there = another().expect("a second network");
        netdev::add_veth("veth0", "veth1");
        netdev::move_to("veth1", &there);
        netdev::set_up("veth0");
        netdev::add_address("veth0", "10.77.0.1/24");
        netdev::add_address("veth0", "fd77::1/64");
        let far = || {
            netdev::set_up("veth1");
            netdev::add_address("veth1", "10.77.0.2/24");
        };
        within(&there, far).expect("entered");
        let _ferroced = Ferroced::start();
        add_link(LINK, "veth0");
        let channel = channel();
        let id = new_id(channel, RDMA_PS_TCP);
        let resolve = |to: &str| {
            let mut to = address(to);
            rdma_resolve_addr(id, ptr::null_mut(), raw(&mut to), 300)
        };
        good(resolve("10.77.0.99:1"));
        bad(resolve("10.77.0.2:1"), libc::EINVAL);
        let event = next(channel);
        let said = ((*event).id, (*event).event, (*event).status);
        assert_eq!(said, (id, RDMA_CM_EVENT_ADDR_ERROR, -libc::ETIMEDOUT));
        good(rdma_ack_cm_event(event));
        // The id may try again. This neighbour exists and is not in the ARP cache yet.
        good(resolve("10.77.0.2:1"));
        expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);

        let gone = new_id(channel, RDMA_PS_TCP);
        let mut absent = address("[fd77::99]:1");
        good(rdma_resolve_addr(
            gone,
            ptr::null_mut(),
            raw(&mut absent),
            300,
        ));
        good(rdma_destroy_id(gone));
        let other = new_id(channel, RDMA_PS_TCP);
        good(rdma_resolve_addr(
            other,
            ptr::null_mut(),
            raw(&mut absent),
            300,
        ));
        let event = next(channel);
        let said = ((*event).id, (*event).event, (*event).status);
        assert_eq!(said, (other, RDMA_CM_EVENT_ADDR_ERROR, -libc::ETIMEDOUT));
        good(rdma_ack_cm_event(event));
        for id in [id, other] {
            good(rdma_destroy_id(id));
        }
        rdma_destroy_event_channel(channel);
    });
}

#[test]
fn options_are_checked() {
    on_loopback("input::options_are_checked", |_ferroced| unsafe {
        let channel = channel();
        let id = new_id(channel, RDMA_PS_TCP);
        let set = |level, option, value: &mut [u8]| {
            rdma_set_option(id, level, option, value.as_mut_ptr().cast(), value.len())
        };
        let mut one = 1i32.to_ne_bytes();
        good(set(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &mut [0x20]));
        bad(
            set(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &mut one),
            libc::EINVAL,
        );
        good(set(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &mut one));
        bad(
            set(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &mut [1]),
            libc::EINVAL,
        );
        good(set(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &mut one));
        good(set(RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &mut [19]));
        bad(set(RDMA_OPTION_ID, 99, &mut one), libc::ENOSYS);
        bad(set(9, 0, &mut one), libc::ENOSYS);
        bad(
            set(RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &mut one),
            libc::EINVAL,
        );
        good(rdma_listen(id, 1));
        bad(
            set(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &mut one),
            libc::EINVAL,
        );
        let mut ece = ibv_ece {
            vendor_id: 0,
            options: 1,
            comp_mask: 0,
        };
        bad(rdma_set_local_ece(id, &mut ece), libc::EINVAL);
        ece.vendor_id = 0x1234;
        good(rdma_set_local_ece(id, &mut ece));
        good(rdma_get_remote_ece(id, &mut ece));
        assert_eq!((ece.vendor_id, ece.options), (0, 0));
        good(rdma_destroy_id(id));
        rdma_destroy_event_channel(channel);
        let name = core::ffi::CStr::from_ptr(rdma_event_str(RDMA_CM_EVENT_ESTABLISHED));
        assert_eq!(name, c"RDMA_CM_EVENT_ESTABLISHED");
        assert_eq!(
            core::ffi::CStr::from_ptr(rdma_event_str(99)),
            c"UNKNOWN EVENT"
        );
    });
}

/// A pointer that names no id is refused and not followed.
#[test]
fn pointers_that_name_no_id_are_not_followed() {
    let name = "input::pointers_that_name_no_id_are_not_followed";
    on_loopback(name, |_ferroced| unsafe {
        let wild: *mut rdma_cm_id = ptr::without_provenance_mut(8);
        let mut qp: ibv_qp_init_attr = zeros();
        bad(rdma_create_qp(wild, ptr::null_mut(), &mut qp), libc::EINVAL);
        let mut srq: ibv_srq_init_attr = zeros();
        let made = rdma_create_srq(wild, ptr::null_mut(), &mut srq);
        bad(made, libc::EINVAL);
    });
}

#[test]
fn impossible_lengths_are_refused() {
    on_loopback(
        "input::impossible_lengths_are_refused",
        |_ferroced| unsafe {
            let events = channel();
            let id = new_id(events, RDMA_PS_TCP);
            let mut byte = 1_u8;
            let value = (&raw mut byte).cast();
            let (level, name) = (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS);
            let set = rdma_set_option(id, level, name, value, usize::MAX);
            bad(set, libc::EINVAL);
            good(rdma_set_option(id, level, name, value, 1));
            good(rdma_destroy_id(id));
            rdma_destroy_event_channel(events);

            let mut to = address("127.0.0.1:7471");
            for length in [256, usize::MAX] {
                let mut res: rdma_addrinfo = zeros();
                res.ai_port_space = RDMA_PS_TCP as i32;
                res.ai_qp_type = IBV_QPT_RC as i32;
                res.ai_dst_addr = raw(&mut to);
                res.ai_connect = [0_u8; 256].as_mut_ptr().cast();
                res.ai_connect_len = length;
                let mut id = ptr::null_mut();
                let made = rdma_create_ep(&mut id, &mut res, ptr::null_mut(), ptr::null_mut());
                bad(made, libc::EINVAL);
            }
        },
    );
}
