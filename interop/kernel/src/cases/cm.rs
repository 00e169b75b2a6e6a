//! Programs that connect through rdma_cm: the connection managers of both meet.

use std::time::Duration;

use super::Ports;
use crate::case::{CALLERS, Case};

/// What client and server are told; `{peer}` stands for the server's address.
const COMMANDS: [(&str, &str, &str); 8] = [
    (
        "rping",
        "rping -s -a 0.0.0.0 -p {port} -C 20 -v",
        "rping -c -a {peer} -p {port} -C 20 -v -V",
    ),
    (
        "rping",
        "rping -s -a 0.0.0.0 -p {port} -C 5 -S 8000 -v",
        "rping -c -a {peer} -p {port} -C 5 -S 8000 -v -V",
    ),
    (
        "rping",
        "rping -s -a ::0 -p {port} -C 5 -v",
        "rping -c -a {peer6} -p {port} -C 5 -v -V",
    ),
    (
        "ucmatose",
        "ucmatose -c 5 -C 10 -S 1000 -p {port}",
        "ucmatose -c 5 -C 10 -S 1000 -p {port} -s {peer}",
    ),
    ("udaddy", "udaddy -c 2 -C 10", "udaddy -c 2 -C 10 -s {peer}"),
    (
        "rdma_client",
        "rdma_server -p {port}",
        "rdma_client -p {port} -s {peer}",
    ),
    (
        "rstream",
        "rstream -p {port} -S 4096 -I 20 -C 1",
        "rstream -p {port} -S 4096 -I 20 -C 1 -s {peer}",
    ),
    (
        "cmtime",
        "cmtime -c 200 -p {port}",
        "cmtime -c 200 -p {port} -s {peer}",
    ),
];

/// perftest with its queue pairs connected by rdma_cm.
const PERFTEST: [&str; 5] = [
    "ib_send_bw -R -F -n 200 -s 4096",
    "ib_write_bw -R -F -n 100 -s 4096 -q 16",
    "ib_read_bw -R -F -n 200 -s 4096",
    "ib_write_lat -R -F -n 100",
    "ib_atomic_bw -R -F -n 200",
];

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(22_000);
    let mut cases = Vec::new();
    for caller in CALLERS {
        for (group, server, client) in COMMANDS {
            let case = Case::called(group, caller, ports.next(), server, client);
            let mut case = case.persistent(group != "ucmatose" && group != "rdma_client");
            if group == "rping" || group == "ucmatose" {
                case = case.short();
            }
            cases.push(case);
        }
        for command in PERFTEST {
            let server = format!("{command} -p {{port}}");
            let client = format!("{server} {{peer}}");
            let mut case = Case::called("perftest -R", caller, ports.next(), &server, &client);
            // Its client connects twice, and does not wait for its server to listen again. If
            // it is refused then it crashes, and the server mistakes the next for the second.
            case.attempts = 5;
            case.patience = Duration::from_secs(20);
            cases.push(case);
        }
    }
    cases
}
