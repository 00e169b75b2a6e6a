//! Many connections of one process, without leaks.

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::on_loopback;
use crate::ends::*;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn two_hundred_connections_leak_no_descriptors() {
    on_loopback(
        "many::two_hundred_connections_leak_no_descriptors",
        |_ferroced| unsafe {
            let channel = channel();
            let listener = listener(channel, RDMA_PS_TCP, "0.0.0.0:0");
            let mut to = at_port("127.0.0.1:0", listener);
            // The device keeps sockets for source ports, up to a limit that the first round
            // reaches.
            round(channel, &mut to);
            let before = descriptors();
            round(channel, &mut to);
            assert_eq!(descriptors(), before);
            destroy(listener);
            rdma_destroy_event_channel(channel);
        },
    );
}

unsafe fn round(channel: *mut rdma_event_channel, to: &mut libc::sockaddr_storage) {
    let ends: Vec<_> = (0..200).map(|_| connect(channel, to)).collect();
    for (active, passive) in ends {
        good(rdma_disconnect(active));
        loop {
            let event = next(channel);
            let (id, what) = ((*event).id, (*event).event);
            good(rdma_ack_cm_event(event));
            if what == RDMA_CM_EVENT_DISCONNECTED && id == passive {
                break;
            }
        }
        destroy(passive);
        destroy(active);
    }
}

#[test]
fn devices_are_listed_once() {
    on_loopback("many::devices_are_listed_once", |_ferroced| unsafe {
        let mut count = 0;
        let lists = [(); 2].map(|()| crate::common::made(rdma_get_devices(&mut count)));
        assert_eq!(count, 1);
        assert_eq!(*lists[0], *lists[1]);
        assert!((*lists[0].add(1)).is_null());
        for list in lists {
            rdma_free_devices(list);
        }
    });
}
