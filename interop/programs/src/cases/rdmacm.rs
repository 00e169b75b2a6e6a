//! rdmacm-utils: programs that connect through librdmacm. Programs that use rsockets are in
//! the module `rsockets`.

use std::net::Ipv4Addr;

use super::{Ports, persistent};
use crate::case::{Case, Ready};
use crate::place::{LINK_V4, LINK_V6};

/// rping: options of the server, of the client and of both.
const PINGS: [(&str, &str, &str); 7] = [
    ("-a 10.77.0.1", "-a 10.77.0.1", ""),
    ("", "-a 10.77.0.1", " -S 65535"),
    ("", "-a 10.77.0.1 -I 10.77.0.1", " -S 1000"),
    ("", "-a 10.77.0.1", " -q"),
    ("-a 127.0.0.1", "-a 127.0.0.1", ""),
    ("-a ::0", "-a fd77::1", ""),
    ("-a ::1", "-a ::1", ""),
];

/// ucmatose: options of both sides, and the server's address for the client.
const CONNECTIONS: [(&str, &str); 6] = [
    ("", LINK_V4),
    ("", "127.0.0.1"),
    ("-b 10.77.0.1 -c 10 -C 50 -S 65536", LINK_V4),
    ("-c 100 -C 1 -S 1", LINK_V4),
    ("-m -t 8 -a 14", LINK_V4),
    ("-P ib", LINK_V4),
];

/// udaddy: options of both sides, and the server's address for the client.
const DATAGRAMS: [(&str, &str); 3] = [
    ("", LINK_V4),
    ("-c 5 -C 20 -S 1000", "127.0.0.1"),
    ("-P ipoib", LINK_V4),
];

/// The fixed port of udaddy.
const UDADDY: u16 = 7174;

/// Multicast group for mckey.
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 77, 0, 1);

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(19_700);
    let mut cases = Vec::new();
    for (server, client, both) in PINGS {
        let both = format!("-p {{port}} -v -C 100 -V{both}");
        let (server, client) = (
            format!("rping -s {server} {both}"),
            format!("rping -c {client} {both}"),
        );
        let case = Case::with_cm_server("rping", ports.next(), &server, &client);
        cases.push(case.expect("ping data: rdma-ping-99: "));
    }
    cases.push(persistent::one_by_one());
    for (options, peer) in CONNECTIONS {
        let server = format!("ucmatose -p {{port}} {options}");
        let client = format!("{server} -s {peer}");
        let case = Case::with_cm_server("ucmatose", ports.next(), &server, &client);
        cases.push(
            case.expect("data transfers complete\n")
                .expect("return status 0\n"),
        );
    }
    for (options, peer) in DATAGRAMS {
        let (server, client) = (
            format!("udaddy {options}"),
            format!("udaddy {options} -s {peer}"),
        );
        let case = Case::with_cm_server("udaddy", UDADDY, &server, &client).may_lose();
        cases.push(
            case.expect("data transfers complete\n")
                .expect("return status 0\n"),
        );
    }
    for options in ["-b 10.77.0.1", "-b 10.77.0.1 -c 2 -C 20 -S 1000"] {
        let server = format!("mckey -m {GROUP} {options}");
        let client = format!("{server} -s");
        let case = Case::with_cm_server("mckey", 0, &server, &client).ready(Ready::Group(GROUP));
        let case = case.may_lose();
        cases.push(
            case.expect("data transfers complete\n")
                .expect("return status 0\n"),
        );
    }
    cases.extend(short(&mut ports));
    cases
}

/// Returns cases of programs with few options.
fn short(ports: &mut Ports) -> Vec<Case> {
    let (server, client) = ("cmtime -p {port}", "cmtime -p {port} -c 1000 -s 10.77.0.1");
    let mut cases = vec![
        Case::with_cm_server("cmtime", ports.next(), server, client)
            .server_keeps_running()
            .expect("disconnect   :"),
    ];
    for peer in [LINK_V4, LINK_V6, "127.0.0.1"] {
        let server = match peer {
            LINK_V6 => "rdma_server -p {port} -s ::",
            _ => "rdma_server -p {port}",
        };
        let client = format!("rdma_client -p {{port}} -s {peer}");
        let case = Case::with_cm_server("rdma_client", ports.next(), server, &client);
        cases.push(case.expect("rdma_client: end 0\n"));
    }
    for kind in ["r", "x"] {
        let server = format!("rdma_xserver -p {{port}} -c {kind}");
        let client = format!("rdma_xclient -p {{port}} -c {kind} -s {LINK_V4}");
        let case = Case::with_cm_server("rdma_xclient", ports.next(), &server, &client);
        cases.push(case.expect("rdma_xclient: end 0\n"));
    }
    cases
}
