//! UCX over RC and over UD: messages, and access to remote memory.
//!
//! `rc_v` and `ud_v` are UCX's names for `rc_verbs` and `ud_verbs` with the auxiliary
//! transports that each needs to connect. Over UD, UCX emulates memory access with messages.

use super::Ports;
use crate::case::Case;

/// Tests of UCP; `-n` keeps them short on machines with few cores.
const TESTS: [&str; 8] = [
    "tag_lat -n 1000",
    "tag_bw -s 65536 -n 500",
    "ucp_put_lat -n 1000",
    "ucp_put_bw -s 65536 -n 500",
    "ucp_get -s 4096 -n 500",
    "ucp_add -s 8 -n 500",
    "ucp_fadd -s 8 -n 500",
    "ucp_cswap -s 8 -n 500",
];

/// Tests of UCT: one operation of the device.
const OPERATIONS: [&str; 5] = [
    "put_bw -D zcopy -s 65536 -n 500",
    "get -D zcopy -s 65536 -n 500",
    "fadd -D bcopy -s 8 -n 500",
    "am_lat -n 1000",
    "am_bw -s 64 -n 5000",
];

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(19_400);
    let info = Case::single_command("ucx_info", "ucx_info -d")
        .expect("Transport: rc_verbs\n#         Device: rxe0:1\n")
        .expect("Transport: ud_verbs\n#         Device: rxe0:1\n");
    let mut cases = vec![info];
    for transport in ["rc_v", "ud_v"] {
        for test in TESTS {
            cases.push(case(&mut ports, "rxe0", 1, transport, test));
        }
        let large = "tag_bw -s 1000000 -n 50";
        for (device, gid) in [("rxe0", 0), ("rxe0", 2), ("rxe1", 0), ("rxe1", 1)] {
            cases.push(case(&mut ports, device, gid, transport, large));
        }
    }
    for operation in OPERATIONS {
        let test = format!("{operation} -d rxe0:1 -x rc_verbs");
        cases.push(case(&mut ports, "rxe0", 1, "rc_v", &test));
    }
    let datagrams = "am_lat -n 1000 -d rxe0:1 -x ud_verbs";
    cases.push(case(&mut ports, "rxe0", 1, "ud_v", datagrams));
    cases
}

fn case(ports: &mut Ports, device: &str, gid: u32, transport: &str, test: &str) -> Case {
    let command = format!("ucx_perftest {{peer}} -p {{port}} -t {test}");
    Case::pair("ucx_perftest", ports.next(), &command)
        .with("UCX_TLS", format!("{transport},self"))
        .with("UCX_NET_DEVICES", format!("{device}:1"))
        .with("UCX_IB_GID_INDEX", gid)
        .expect("Final:")
}
