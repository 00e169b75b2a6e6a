//! The exact contents of a link's files.

use super::*;

fn gid(index: u32, address: &str) -> Gid {
    Gid {
        index,
        address: address.parse().unwrap(),
        ifindex: 2,
        netdev: "eth0".into(),
        tentative: false,
    }
}

fn link() -> LinkInfo {
    LinkInfo {
        index: 3,
        up: true,
        carrier: true,
        netdev_mtu: 1500,
        active_mtu: 1024,
        speed_mbps: Some(100_000),
        mac: [0x52, 0x54, 0, 0xd5, 0xe0, 0xfb],
        gids: vec![gid(0, "fe80::1"), gid(1, "10.0.0.1"), gid(3, "fd00::1")],
        ..LinkInfo::new("rxe0", "eth0", 2)
    }
}

fn shown(link: &LinkInfo) -> Files {
    let mut counters = CounterValues::default();
    counters.0[Counter::SentPkts as usize] = 7;
    counters.0[Counter::SentBytes as usize] = 4000;
    files([Subject { link, counters }])
}

/// Returns paths and contents, without the counters.
fn listing(files: &Files) -> String {
    let rows = files
        .iter()
        .filter(|(path, _)| !path.contains("/hw_counters/"));
    rows.map(|(path, node)| match node {
        Node::File(text) => format!("{path}: {text}"),
        Node::Link(target) => format!("{path} -> {target}\n"),
    })
    .collect()
}

#[test]
fn files_of_a_link_are_those_of_the_kernel() {
    let golden = concat!(
        "dev/infiniband/rdma_cm -> /dev/null\n",
        "dev/infiniband/uverbs3 -> /dev/null\n",
        "sys/class/infiniband/rxe0 -> ../../devices/virtual/infiniband/rxe0\n",
        "sys/class/infiniband_verbs/abi_version: 6\n",
        "sys/class/infiniband_verbs/uverbs3 -> ../../devices/virtual/infiniband_verbs/uverbs3\n",
        "sys/devices/virtual/infiniband/rxe0/fw_ver: ",
        env!("CARGO_PKG_VERSION"),
        "\n",
        "sys/devices/virtual/infiniband/rxe0/node_desc: rxe\n",
        "sys/devices/virtual/infiniband/rxe0/node_guid: 5054:00ff:fed5:e0fb\n",
        "sys/devices/virtual/infiniband/rxe0/node_type: 1: CA\n",
        "sys/devices/virtual/infiniband/rxe0/parent: eth0\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/cap_mask: 0x00010000\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/counters/link_downed: 0\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/counters/port_rcv_data: 0\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/counters/port_rcv_packets: 0\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/counters/port_xmit_data: 1000\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/counters/port_xmit_packets: 7\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/gid_attrs/ndevs/0: eth0\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/gid_attrs/ndevs/1: eth0\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/gid_attrs/ndevs/3: eth0\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/gid_attrs/types/0: RoCE v2\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/gid_attrs/types/1: RoCE v2\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/gid_attrs/types/3: RoCE v2\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/gids/0: fe80:0000:0000:0000:0000:0000:0000:0001\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/gids/1: 0000:0000:0000:0000:0000:ffff:0a00:0001\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/gids/2: 0000:0000:0000:0000:0000:0000:0000:0000\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/gids/3: fd00:0000:0000:0000:0000:0000:0000:0001\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/lid: 0x0\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/lid_mask_count: 0\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/link_layer: Ethernet\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/phys_state: 5: LinkUp\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/pkeys/0: 0xffff\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/rate: 100 Gb/sec (4X EDR)\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/sm_lid: 0x0\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/sm_sl: 0\n",
        "sys/devices/virtual/infiniband/rxe0/ports/1/state: 4: ACTIVE\n",
        "sys/devices/virtual/infiniband/rxe0/power/control: auto\n",
        "sys/devices/virtual/infiniband/rxe0/power/runtime_active_time: 0\n",
        "sys/devices/virtual/infiniband/rxe0/power/runtime_status: unsupported\n",
        "sys/devices/virtual/infiniband/rxe0/power/runtime_suspended_time: 0\n",
        "sys/devices/virtual/infiniband/rxe0/subsystem -> ../../../../class/infiniband\n",
        "sys/devices/virtual/infiniband/rxe0/sys_image_guid: 5054:00ff:fed5:e0fb\n",
        "sys/devices/virtual/infiniband/rxe0/uevent: NAME=rxe0\n",
        "sys/devices/virtual/infiniband_verbs/uverbs3/abi_version: 2\n",
        "sys/devices/virtual/infiniband_verbs/uverbs3/dev: 231:195\n",
        "sys/devices/virtual/infiniband_verbs/uverbs3/ibdev: rxe0\n",
        "sys/devices/virtual/infiniband_verbs/uverbs3/power/control: auto\n",
        "sys/devices/virtual/infiniband_verbs/uverbs3/power/runtime_active_time: 0\n",
        "sys/devices/virtual/infiniband_verbs/uverbs3/power/runtime_status: unsupported\n",
        "sys/devices/virtual/infiniband_verbs/uverbs3/power/runtime_suspended_time: 0\n",
        "sys/devices/virtual/infiniband_verbs/uverbs3/subsystem -> ../../../../class/infiniband_verbs\n",
        "sys/devices/virtual/infiniband_verbs/uverbs3/uevent: MAJOR=231\nMINOR=195\nDEVNAME=infiniband/uverbs3\nDEVMODE=0666\n",
        "sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_mode: RoCE v2\n",
        "sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_tos: 0\n",
    );
    assert_eq!(listing(&shown(&link())), golden);
}

#[test]
fn every_counter_has_a_file() {
    let files = shown(&link());
    for counter in Counter::ALL {
        let name = counter.name();
        let path = format!("sys/devices/virtual/infiniband/rxe0/ports/1/hw_counters/{name}");
        let value = match counter {
            Counter::SentPkts => "7\n",
            Counter::SentBytes => "4000\n",
            _ => "0\n",
        };
        assert_eq!(files.get(&path), Some(&Node::File(value.into())), "{name}");
    }
}

/// Soft-RoCE has no hardware, so the kernel has no link `device`. NCCL and others take such a
/// link for that of a PCI device.
#[test]
fn device_has_no_link_to_hardware() {
    let files = shown(&link());
    let device = files.keys().find(|path| {
        let mut parts = path.split('/').skip(2);
        parts.any(|part| part == "device")
    });
    assert_eq!(device, None);
}

#[test]
fn physical_state_tells_why_a_port_is_down() {
    let state = |up, carrier| {
        let files = shown(&LinkInfo {
            up,
            carrier,
            speed_mbps: None,
            ..link()
        });
        let file = |name: &str| match &files
            [&format!("sys/devices/virtual/infiniband/rxe0/ports/1/{name}")]
        {
            Node::File(text) => text.trim().to_owned(),
            Node::Link(_) => panic!("a link"),
        };
        [file("state"), file("phys_state"), file("rate")]
    };
    let slow = "2.5 Gb/sec (1X SDR)";
    assert_eq!(state(true, false), ["1: DOWN", "2: Polling", slow]);
    assert_eq!(state(false, false), ["1: DOWN", "3: Disabled", slow]);
}
