//! Programs that connect through rdma_cm, over iWARP.

use std::time::Duration;

use super::{Ports, connections};
use crate::case::{CALLERS, Caller, Case, Link};
use crate::weather::Weather;

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
        "rstream",
        "rstream -p {port} -S 65536 -I 10 -C 20 -T v",
        "rstream -p {port} -S 65536 -I 10 -C 20 -T v -s {peer}",
    ),
    (
        "cmtime",
        "cmtime -c 200 -p {port}",
        "cmtime -c 200 -p {port} -s {peer}",
    ),
];

/// perftest: programs and their options.
///
/// `ib_send_bw -e` is not among them. Its client waits for a completion when it has one SEND left
/// and no credit of the server. With iWARP all SENDs may be complete by then, because TCP has them:
/// the client waits for ever, also if both ends are siw.
const PERFTEST: [(&str, &[&str]); 6] = [
    (
        "ib_send_bw",
        &["-s 1", "-s 4096", "-s 65536", "-s 1048576 -n 20"],
    ),
    ("ib_write_bw", &["-s 1", "-s 65536", "-s 1048576 -n 20"]),
    (
        "ib_read_bw",
        &["-s 1", "-s 65536", "-s 1048576 -n 20", "-e"],
    ),
    ("ib_send_lat", &["", "-e"]),
    ("ib_write_lat", &[""]),
    ("ib_read_lat", &["", "-e"]),
];

/// Flows of `connections.py`. A connection of iWARP is never stale: TCP tells connections apart.
const FLOWS: [&str; 9] = [
    "connect",
    "server_disconnects",
    "both_disconnect",
    "reject",
    "nobody_listens",
    "listener_gone",
    "listener_gone_early",
    "caller_gone",
    "killed",
];

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(23_000);
    let mut cases = Vec::new();
    for caller in CALLERS {
        for (group, server, client) in COMMANDS {
            let case = Case::with_cm_server(group, caller, ports.next(), server, client);
            let mut case = case.persistent(group != "ucmatose" && group != "rdma_client");
            if group == "rping" || group == "ucmatose" {
                case = case.short();
            }
            cases.push(case);
        }
        for flow in FLOWS {
            let command = connections::command_on(Link::Siw, flow);
            let mut case = Case::pair("connections", caller, ports.next(), &command);
            case = case.expect("as it should be");
            case.short = flow == "reject";
            cases.push(case);
        }
        for (test, option_sets) in PERFTEST {
            for options in option_sets {
                cases.push(perftest(caller, ports.next(), test, options));
            }
        }
    }
    cases.into_iter().map(Case::on_siw).collect()
}

fn perftest(caller: Caller, port: u16, test: &str, options: &str) -> Case {
    let count = if options.contains("-n ") {
        ""
    } else {
        "-n 200"
    };
    // siw reports an error for a SEND that has arrived, if the peer closes the connection before
    // siw has completed it. perftest closes after its last SEND, so both ends wait first.
    let server = format!("{test} -R -F --wait_destroy=1 -p {{port}} {count} {options}");
    let server = server.trim_end();
    let client = format!("{server} {{peer}}");
    let mut case = Case::with_cm_server("perftest -R", caller, port, server, &client);
    case.patience = Duration::from_secs(40);
    // perftest's client connects twice, does not wait for the server to listen again, and crashes
    // if refused.
    case.weather = Weather::NoRefusals;
    case.expect(match test.ends_with("_bw") {
        true => "BW average[MB/sec]",
        false => "#bytes #iterations",
    })
}
