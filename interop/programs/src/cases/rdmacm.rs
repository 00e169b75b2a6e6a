//! rdmacm-utils: programs that connect through librdmacm. Those of its sockets are in
//! `rsockets`.

use std::time::Duration;

use anyhow::{Result, ensure};
use ferroce_harness::{Running, deadline, now};

use super::Ports;
use crate::case::Case;
use crate::place::{LINK_V4, LINK_V6, Place};

/// rping: what the server, the client and both are told.
const PINGS: [(&str, &str, &str); 7] = [
    ("-a 10.77.0.1", "-a 10.77.0.1", ""),
    ("", "-a 10.77.0.1", " -S 65535"),
    ("", "-a 10.77.0.1 -I 10.77.0.1", " -S 1000"),
    ("", "-a 10.77.0.1", " -q"),
    ("-a 127.0.0.1", "-a 127.0.0.1", ""),
    ("-a ::0", "-a fd77::1", ""),
    ("-a ::1", "-a ::1", ""),
];

/// ucmatose, on both sides; the client is also told whom to call.
const CONNECTIONS: [(&str, &str); 6] = [
    ("", LINK_V4),
    ("", "127.0.0.1"),
    ("-b 10.77.0.1 -c 10 -C 50 -S 65536", LINK_V4),
    ("-c 100 -C 1 -S 1", LINK_V4),
    ("-m -t 8 -a 14", LINK_V4),
    ("-P ib", LINK_V4),
];

/// udaddy, likewise.
const DATAGRAMS: [(&str, &str); 3] = [
    ("", LINK_V4),
    ("-c 5 -C 20 -S 1000", "127.0.0.1"),
    ("-P ipoib", LINK_V4),
];

/// The clients of a persistent rping.
const NAMES: [&str; 5] = ["rping-1", "rping-2", "rping-3", "rping-4", "rping-5"];

const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(19_700);
    let mut cases = Vec::new();
    for (server, client, both) in PINGS {
        let both = format!("-p {{port}} -v -C 100 -V{both}");
        let (server, client) = (
            format!("rping -s {server} {both}"),
            format!("rping -c {client} {both}"),
        );
        let case = Case::called("rping", ports.next(), &server, &client, false);
        cases.push(case.expect("ping data: rdma-ping-99: "));
    }
    cases.push(Case::script("rping", "rping -s -P", persistent).expect("rdma-ping-99: "));
    for (told, peer) in CONNECTIONS {
        let server = format!("ucmatose -p {{port}} {told}");
        let client = format!("{server} -s {peer}");
        // Of many connections some may come too early, and neither side recovers.
        let case = Case::called("ucmatose", ports.next(), &server, &client, false);
        let case = case.may_call_early();
        cases.push(
            case.expect("data transfers complete\n")
                .expect("return status 0\n"),
        );
    }
    for (told, peer) in DATAGRAMS {
        let (server, client) = (format!("udaddy {told}"), format!("udaddy {told} -s {peer}"));
        let case = Case::called("udaddy", ports.next(), &server, &client, false).may_lose();
        cases.push(
            case.expect("data transfers complete\n")
                .expect("return status 0\n"),
        );
    }
    for told in ["-b 10.77.0.1", "-b 10.77.0.1 -c 2 -C 20 -S 1000"] {
        let server = format!("mckey -m 239.77.0.1 {told}");
        let client = format!("{server} -s");
        let case = Case::called("mckey", ports.next(), &server, &client, false).may_lose();
        cases.push(
            case.expect("data transfers complete\n")
                .expect("return status 0\n"),
        );
    }
    cases.extend(short(&mut ports));
    cases
}

/// Programs with one purpose.
fn short(ports: &mut Ports) -> Vec<Case> {
    let (server, client) = ("cmtime -p {port}", "cmtime -p {port} -c 1000 -s 10.77.0.1");
    let mut cases =
        vec![Case::called("cmtime", ports.next(), server, client, true).expect("disconnect   :")];
    for peer in [LINK_V4, LINK_V6, "127.0.0.1"] {
        let server = match peer {
            LINK_V6 => "rdma_server -p {port} -s ::",
            _ => "rdma_server -p {port}",
        };
        let client = format!("rdma_client -p {{port}} -s {peer}");
        let case = Case::called("rdma_client", ports.next(), server, &client, false);
        cases.push(case.expect("rdma_client: end 0\n"));
    }
    for kind in ["r", "x"] {
        let server = format!("rdma_xserver -p {{port}} -c {kind}");
        let client = format!("rdma_xclient -p {{port}} -c {kind} -s {LINK_V4}");
        let case = Case::called("rdma_xclient", ports.next(), &server, &client, false);
        cases.push(case.expect("rdma_xclient: end 0\n"));
    }
    cases
}

/// One server, and clients that overlap. They connect one after the other, as rping loses
/// requests that come at the same time; the first calls until the server is there.
fn persistent(place: &Place) -> Result<String> {
    let folder = &place.user.scratch;
    let start = |what: &'static str, words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        Running::spawn(&mut place.user.program(&words), folder, what)
    };
    let _server = start("rping-server", "rping -s -P -p 19799")?;
    let call = "stdbuf -oL rping -c -p 19799 -a 10.77.0.1 -C 100 -v -V";
    let mut clients: Vec<Running> = Vec::new();
    let until = deadline(PATIENCE);
    while clients.len() < NAMES.len() {
        let mut client = start(NAMES[clients.len()], call)?;
        match client.says("ping data: rdma-ping-0: ", PATIENCE) {
            Ok(()) => clients.push(client),
            Err(_) if now() < until && client.said()?.contains("REJECTED, error 8") => {}
            Err(error) => return Err(error),
        }
    }
    let mut said = String::new();
    for mut client in clients {
        client.succeeds(until)?;
        said = client.said()?;
        ensure!(said.contains("rdma-ping-99: "), "not all pings: {said}");
    }
    Ok(said)
}
