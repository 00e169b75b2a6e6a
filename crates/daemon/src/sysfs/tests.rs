//! Every file of a link, word for word.

use super::*;

fn gid(index: u32, address: &str) -> Gid {
    Gid {
        index,
        address: address.parse().unwrap(),
        ifindex: 2,
        netdev: "eth0".into(),
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

fn shown(link: &LinkInfo, hardware: Option<&str>) -> Files {
    let mut counters = CounterValues::default();
    counters.0[Counter::SentPkts as usize] = 7;
    counters.0[Counter::SentBytes as usize] = 4000;
    let subject = Subject {
        link,
        counters,
        hardware: hardware.map(PathBuf::from),
    };
    files([subject], 6)
}

/// Paths and contents, without the counters, which [`Counter`] names.
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
fn a_link_looks_as_the_kernel_shows_it() {
    let golden = concat!(
        "dev/infiniband/uverbs3 -> /dev/null\n",
        "sys/class/infiniband/rxe0/device/local_cpulist: 0-5\n",
        "sys/class/infiniband/rxe0/device/local_cpus: 3f\n",
        "sys/class/infiniband/rxe0/device/net/eth0/address: 52:54:00:d5:e0:fb\n",
        "sys/class/infiniband/rxe0/device/net/eth0/ifindex: 2\n",
        "sys/class/infiniband/rxe0/device/net/eth0/mtu: 1500\n",
        "sys/class/infiniband/rxe0/device/numa_node: -1\n",
        "sys/class/infiniband/rxe0/fw_ver: ",
        env!("CARGO_PKG_VERSION"),
        "\n",
        "sys/class/infiniband/rxe0/node_desc: rxe\n",
        "sys/class/infiniband/rxe0/node_guid: 5054:00ff:fed5:e0fb\n",
        "sys/class/infiniband/rxe0/node_type: 1: CA\n",
        "sys/class/infiniband/rxe0/parent: eth0\n",
        "sys/class/infiniband/rxe0/ports/1/cap_mask: 0x00010000\n",
        "sys/class/infiniband/rxe0/ports/1/counters/link_downed: 0\n",
        "sys/class/infiniband/rxe0/ports/1/counters/port_rcv_data: 0\n",
        "sys/class/infiniband/rxe0/ports/1/counters/port_rcv_packets: 0\n",
        "sys/class/infiniband/rxe0/ports/1/counters/port_xmit_data: 1000\n",
        "sys/class/infiniband/rxe0/ports/1/counters/port_xmit_packets: 7\n",
        "sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0: eth0\n",
        "sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/1: eth0\n",
        "sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/3: eth0\n",
        "sys/class/infiniband/rxe0/ports/1/gid_attrs/types/0: RoCE v2\n",
        "sys/class/infiniband/rxe0/ports/1/gid_attrs/types/1: RoCE v2\n",
        "sys/class/infiniband/rxe0/ports/1/gid_attrs/types/3: RoCE v2\n",
        "sys/class/infiniband/rxe0/ports/1/gids/0: fe80:0000:0000:0000:0000:0000:0000:0001\n",
        "sys/class/infiniband/rxe0/ports/1/gids/1: 0000:0000:0000:0000:0000:ffff:0a00:0001\n",
        "sys/class/infiniband/rxe0/ports/1/gids/2: 0000:0000:0000:0000:0000:0000:0000:0000\n",
        "sys/class/infiniband/rxe0/ports/1/gids/3: fd00:0000:0000:0000:0000:0000:0000:0001\n",
        "sys/class/infiniband/rxe0/ports/1/lid: 0x0\n",
        "sys/class/infiniband/rxe0/ports/1/lid_mask_count: 0\n",
        "sys/class/infiniband/rxe0/ports/1/link_layer: Ethernet\n",
        "sys/class/infiniband/rxe0/ports/1/phys_state: 5: LinkUp\n",
        "sys/class/infiniband/rxe0/ports/1/pkeys/0: 0xffff\n",
        "sys/class/infiniband/rxe0/ports/1/rate: 100 Gb/sec (4X EDR)\n",
        "sys/class/infiniband/rxe0/ports/1/sm_lid: 0x0\n",
        "sys/class/infiniband/rxe0/ports/1/sm_sl: 0\n",
        "sys/class/infiniband/rxe0/ports/1/state: 4: ACTIVE\n",
        "sys/class/infiniband/rxe0/sys_image_guid: 5054:00ff:fed5:e0fb\n",
        "sys/class/infiniband_verbs/abi_version: 6\n",
        "sys/class/infiniband_verbs/uverbs3/abi_version: 2\n",
        "sys/class/infiniband_verbs/uverbs3/dev: 231:195\n",
        "sys/class/infiniband_verbs/uverbs3/device -> ../../infiniband/rxe0/device\n",
        "sys/class/infiniband_verbs/uverbs3/ibdev: rxe0\n",
        "sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_mode: RoCE v2\n",
        "sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_tos: 0\n",
    );
    assert_eq!(listing(&shown(&link(), None)), golden);
}

#[test]
fn every_counter_has_a_file() {
    let files = shown(&link(), None);
    for counter in Counter::ALL {
        let name = counter.name();
        let path = format!("sys/class/infiniband/rxe0/ports/1/hw_counters/{name}");
        let value = match counter {
            Counter::SentPkts => "7\n",
            Counter::SentBytes => "4000\n",
            _ => "0\n",
        };
        assert_eq!(files.get(&path), Some(&Node::File(value.into())), "{name}");
    }
}

#[test]
fn hardware_that_is_known_is_pointed_to() {
    let files = shown(&link(), Some("/sys/devices/pci0000:00/0000:00:03.0"));
    let target = "/sys/devices/pci0000:00/0000:00:03.0".to_string();
    assert_eq!(
        files.get("sys/class/infiniband/rxe0/device"),
        Some(&Node::Link(target))
    );
    assert!(
        !files
            .keys()
            .any(|path| path.contains("infiniband/rxe0/device/"))
    );
}

#[test]
fn ports_that_are_down_say_why() {
    let state = |up, carrier| {
        let files = shown(
            &LinkInfo {
                up,
                carrier,
                speed_mbps: None,
                ..link()
            },
            None,
        );
        let file = |name: &str| match &files[&format!("sys/class/infiniband/rxe0/ports/1/{name}")] {
            Node::File(text) => text.trim().to_owned(),
            Node::Link(_) => panic!("a link"),
        };
        [file("state"), file("phys_state"), file("rate")]
    };
    let slow = "2.5 Gb/sec (1X SDR)";
    assert_eq!(state(true, false), ["1: DOWN", "2: Polling", slow]);
    assert_eq!(state(false, false), ["1: DOWN", "3: Disabled", slow]);
}

#[test]
fn masks_of_cpus_have_a_bit_for_each() {
    assert_eq!(cpu_mask(1), "1");
    assert_eq!(cpu_mask(8), "ff");
    assert_eq!(cpu_mask(32), "ffffffff");
    assert_eq!(cpu_mask(36), "f,ffffffff");
    assert_eq!(cpu_mask(64), "ffffffff,ffffffff");
}
