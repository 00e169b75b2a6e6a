//! Programs that connect through rdma_cm.

use std::time::Duration;

use super::Ports;
use crate::case::{CALLERS, Caller, Case, Ready};
use crate::network::{GUEST, HOST};
use crate::weather::Weather;

/// The fixed port of udaddy.
const UDADDY: u16 = 7174;

/// Group, server command and client command; `{peer}` stands for the server's address.
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

/// perftest with queue pairs connected by rdma_cm: programs and their options.
const PERFTEST: [(&str, &[&str]); 8] = [
    ("ib_send_bw", &["", "-q 16", "-b", "-b -q 16"]),
    ("ib_write_bw", &["", "-q 16", "-b", "-b -q 16"]),
    ("ib_read_bw", &["", "-q 16", "-b", "-b -q 16"]),
    ("ib_atomic_bw", &["", "-q 16", "-b", "-b -q 16"]),
    ("ib_send_lat", &[""]),
    ("ib_write_lat", &[""]),
    ("ib_read_lat", &[""]),
    ("ib_atomic_lat", &[""]),
];

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(22_000);
    let mut cases = Vec::new();
    for caller in CALLERS {
        for (group, server, client) in COMMANDS {
            let port = match group {
                "udaddy" => UDADDY,
                _ => ports.next(),
            };
            let case = Case::with_cm_server(group, caller, port, server, client);
            let mut case = case.persistent(group != "ucmatose" && group != "rdma_client");
            if group == "rping" || group == "ucmatose" {
                case = case.short();
            }
            case.packets = match group {
                "rping" => Some("send write read"),
                "ucmatose" | "udaddy" | "rdma_client" => Some("send"),
                "rstream" => Some("write immediate"),
                _ => None,
            };
            cases.push(case);
        }
        cases.extend(["", "-c 2 -C 20 -S 1000"].map(|options| multicast(caller, options)));
        for (test, option_sets) in PERFTEST {
            for options in option_sets {
                cases.push(perftest(caller, ports.next(), test, options));
            }
        }
    }
    cases
}

fn perftest(caller: Caller, port: u16, test: &str, options: &str) -> Case {
    // A multiple of perftest's CQ moderation; otherwise it may end too early.
    let size = match (test, options.contains("16")) {
        ("ib_atomic_bw", _) => "-n 100",
        (_, true) => "-n 100 -s 512",
        (_, false) if test.ends_with("_bw") => "-n 200 -s 4096",
        _ => "-n 100",
    };
    let server = format!("{test} -R -F -p {{port}} {size} {options}");
    let server = server.trim_end();
    let client = format!("{server} {{peer}}");
    let mut case = Case::with_cm_server("perftest -R", caller, port, server, &client);
    // perftest's client connects twice, and does not wait for the server to listen again.
    // If the second connection is refused the client crashes, and the server mistakes the
    // next client's first connection for the second. So refusals are lost, and the messages of
    // the connection manager are delayed where the server is slow.
    case.weather = match caller {
        Caller::Ferroce => Weather::LateCalls,
        Caller::Kernel => Weather::NoRefusals,
    };
    case.patience = Duration::from_secs(40);
    case.expect(match test.ends_with("_bw") {
        true => "BW average[MB/sec]",
        false => "#bytes #iterations",
    })
}

/// Returns a case in which the client sends to a multicast group that the server has joined.
fn multicast(caller: Caller, options: &str) -> Case {
    let (here, there) = match caller {
        Caller::Ferroce => (HOST, GUEST),
        Caller::Kernel => (GUEST, HOST),
    };
    let command = |address| format!("stdbuf -oL mckey -m 239.78.0.1 -b {address} {options}");
    let server = command(there[0]);
    let client = format!("{} -s", command(here[0]).trim_end());
    let mut case = Case::with_cm_server("mckey", caller, 0, server.trim_end(), &client);
    case.ready = Ready::Says("receiving data transfers");
    case.expect("data transfers complete")
        .expect("return status 0")
}
