//! rping's persistent server with eight concurrent clients.
//!
//! Before rdma-core 61 ("rping: wait for acknowledgement before processing subsequent
//! CONNECT_REQUESTs") the server remembers only one request: if two arrive before its main
//! thread wakes up, it serves one twice and the other never. Clients of such a server connect
//! one after the other, and then ping concurrently. If newer sources are available, rping is
//! built from them, and its clients all connect at once.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ferroce_harness::{Running, deadline};

use crate::case::Case;
use crate::place::{LINK_V4, Place};

const PORT: u16 = 19_799;
const CLIENTS: [&str; 8] = [
    "rping-1", "rping-2", "rping-3", "rping-4", "rping-5", "rping-6", "rping-7", "rping-8",
];
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the case with the distribution's rping.
pub(super) fn one_by_one() -> Case {
    let script = |place: &Place| run(place, "rping", false);
    Case::script("rping", "rping -s -P, 8 clients", script)
}

/// Returns the case with an rping built from these sources.
pub(super) fn at_once(rdma_core: &Path) -> Case {
    let examples = rdma_core.join("librdmacm/examples");
    let script = move |place: &Place| {
        let rping = place.user.scratch.join("rping");
        let made = Command::new("cc")
            .args(["-w", "-D_GNU_SOURCE", "-o"])
            .arg(&rping)
            .args([examples.join("rping.c"), examples.join("common.c")])
            .args(["-lrdmacm", "-libverbs", "-lpthread"])
            .status()
            .context("cannot start the compiler cc")?;
        ensure!(made.success(), "rping does not compile");
        let rping = rping.to_str().context("the path is not UTF-8")?;
        run(place, rping, true)
    };
    Case::script("rping", "rping -s -P, 8 clients at once", script)
}

fn run(place: &Place, rping: &str, at_once: bool) -> Result<String> {
    let port = PORT.to_string();
    let start = |what: &'static str, options: &[&str]| {
        let mut words = vec!["stdbuf", "-oL", rping, "-p", &port, "-v", "-V"];
        words.extend(options);
        Running::spawn(&mut place.user.program(&words), &place.user.scratch, what)
    };
    let mut server = start("rping-server", &["-s", "-P"])?;
    let until = deadline(PATIENCE);
    server.wait_until_ready(until, || place.user.listens(PORT))?;
    let mut clients = Vec::new();
    for name in CLIENTS {
        let mut client = start(name, &["-c", "-a", LINK_V4, "-C", "100"])?;
        if !at_once {
            client.wait_for_output("ping data: rdma-ping-0: ", PATIENCE)?;
        }
        clients.push(client);
    }
    let mut said = String::new();
    for client in &mut clients {
        client.wait_for_success(until)?;
        said = client.output()?;
        ensure!(
            said.contains("rdma-ping-99: "),
            "the client did not complete 100 pings: {said}"
        );
    }
    Ok(said)
}
