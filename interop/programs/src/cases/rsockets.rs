//! Sockets over RDMA: programs of rdmacm-utils, and unmodified socket programs.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use ferroce_harness::{Running, deadline};

use super::Ports;
use crate::case::{Case, Ready};
use crate::place::Place;

const PATIENCE: Duration = Duration::from_secs(20);

/// Options of rstream on both sides. With `-T v` it verifies every byte.
const STREAMS: [&str; 7] = [
    "-T b -T v",
    "-T n -T v",
    "-T a -T v",
    "-T r -T v",
    "-k 1 -T v",
    "-B 8192 -i 0 -C 10 -T b -T v",
    "-S 1 -C 1000 -T v",
];

/// Folder that exists on every Debian system.
const LICENCES: &str = "/usr/share/common-licenses";

/// Turns the sockets of a program into rsockets.
const PRELOADED: &str = "env LD_PRELOAD=librspreload.so";

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(19_400);
    let mut cases = Vec::new();
    for options in STREAMS {
        let common = format!("rstream -p {{port}} -S 65536 -I 10 -C 100 {options}");
        let client = format!("{common} -s {{peer}}");
        cases
            .push(Case::with_cm_server("rstream", ports.next(), &common, &client).expect("custom"));
    }
    let common = "rstream -p {port} -f ipv6 -S 65536 -I 10 -C 100";
    let (server, client) = (format!("{common} -b ::1"), format!("{common} -s ::1"));
    cases.push(Case::with_cm_server("rstream", ports.next(), &server, &client).expect("custom"));
    let common = "riostream -p {port} -S 65536 -I 10 -C 10 -T v";
    let client = format!("{common} -s {{peer}}");
    cases.push(Case::with_cm_server("riostream", ports.next(), common, &client).expect("custom"));
    cases.push(copy("rxe"));
    for options in ["", " -T e", " -T a -T e", " -T b -T e"] {
        let server = format!("udpong -p {{port}} -b {{peer}}{options}");
        let client = format!("udpong -p {{port}} -s {{peer}}{options} -S 1024 -C 1000");
        let port = ports.next();
        let case = Case::with_cm_server("udpong", port, &server, &client).ready(Ready::Udp(port));
        cases.push(case.server_keeps_running().expect("custom").may_lose());
    }
    cases.extend(preloaded(&mut ports, true));
    cases
}

/// Returns the cases with socket programs that librspreload turns to rsockets. A server that
/// `forks` needs the number of its TCP port for RDMA, too.
pub(super) fn preloaded(ports: &mut Ports, forks: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for options in ["", " -R", " -P 4", " --bidir"] {
        let server = format!("{PRELOADED} iperf3 -s -1 -p {{port}}");
        let client = format!("{PRELOADED} iperf3 -c {{peer}} -p {{port}} -t 1{options}");
        let case = Case::with_cm_server("iperf3", ports.next(), &server, &client);
        cases.push(case.expect("iperf Done."));
    }
    if forks {
        // With a server that forks, connections start over TCP and switch to RDMA.
        let common = format!(
            "{PRELOADED} RDMAV_FORK_SAFE=1 rstream -p {{port}} -T f -T b -S 65536 -I 10 -C 10"
        );
        let client = format!("{common} -s {{peer}}");
        let port = ports.next();
        let case = Case::with_cm_server("rstream", port, &common, &client).ready(Ready::Tcp(port));
        cases.push(case.expect("custom"));
    }
    let folder = LICENCES;
    let server =
        format!("{PRELOADED} python3 -m http.server {{port}} --bind {{peer}} --directory {folder}");
    let client = format!("{PRELOADED} curl -sS http://{{peer}}:{{port}}/GPL-3");
    let case = Case::with_cm_server("curl", ports.next(), &server, &client);
    cases.push(
        case.server_keeps_running()
            .expect("GNU GENERAL PUBLIC LICENSE"),
    );
    cases
}

/// Returns the case that copies a file through a server, on a link of this type.
pub(super) fn copy(link_type: &'static str) -> Case {
    let run = move |place: &Place| copy_file(place, link_type);
    Case::script("rcopy", "rcopy GPL-3 127.0.0.1:copy", run).expect("done")
}

/// Copies a file through a server and compares the copy.
fn copy_file(place: &Place, link_type: &str) -> Result<String> {
    let (from, to) = (format!("{LICENCES}/GPL-3"), place.user.scratch.join("copy"));
    let temporary = std::env::temp_dir();
    let mut server = place.user.program(&["stdbuf", "-o0", "rcopy"]);
    server.env("FERROCE_TYPE", link_type);
    let mut server = Running::spawn(&mut server, &temporary, "rcopy-server")?;
    server.wait_for_output("waiting for connection", PATIENCE)?;
    let target = format!("127.0.0.1:{}", to.display());
    let mut client = place.user.program(&["rcopy", &from, &target]);
    client.env("FERROCE_TYPE", link_type);
    let mut client = Running::spawn(&mut client, &temporary, "rcopy-client")?;
    client.wait_for_success(deadline(PATIENCE))?;
    ensure!(
        fs::read(&to)? == fs::read(&from)?,
        "the copy differs from the original"
    );
    fs::remove_file(&to)?;
    client.output()
}
