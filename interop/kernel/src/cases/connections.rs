//! Establishment, rejection and end of connections: `connections.py` documents each flow.
//! Flows in which a machine stops are in `reboot`.

use super::Ports;
use crate::case::{CALLERS, Case, Link};

const FLOWS: [&str; 10] = [
    "connect",
    "server_disconnects",
    "both_disconnect",
    "reject",
    "nobody_listens",
    "listener_gone",
    "listener_gone_early",
    "caller_gone",
    "killed",
    "stale",
];

/// The flows of the short matrix.
const SHORT: [&str; 3] = ["server_disconnects", "reject", "listener_gone"];

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(23_000);
    let mut cases = Vec::new();
    for flow in FLOWS {
        for caller in CALLERS {
            let mut case = Case::pair("connections", caller, ports.next(), &command(flow));
            case = case.expect("as it should be").packets("send");
            case.short = SHORT.contains(&flow);
            cases.push(case);
        }
    }
    cases
}

/// Returns the command of both ends.
fn command(flow: &str) -> String {
    command_on(Link::Rxe, flow)
}

/// Returns the command of both ends on links of this type.
pub(super) fn command_on(link: Link, flow: &str) -> String {
    let command = format!("/usr/bin/python3 connections.py {flow} --on {{side}} -p {{port}}");
    match link {
        Link::Rxe => command,
        Link::Siw => command + " --iwarp",
    }
}
