//! fio's engine `rdma`: WRITE, READ and SEND into the memory of another fio.
//!
//! With SEND the server verifies every block that it gets. The other two bypass it, and fio
//! has no way to look at what they did; they are counted.

use std::time::Duration;

use anyhow::{Result, ensure};
use ferroce_harness::{Running, deadline};

use crate::case::Case;
use crate::place::{LINK_V4, Place};

const PATIENCE: Duration = Duration::from_secs(30);

/// The server has room for every block: fio does without flow control.
const COMMON: &str = "fio --name=job --ioengine=rdma --bs=64k --size=4m";

pub(super) fn cases() -> Vec<Case> {
    let verbs = [("write", ""), ("read", ""), ("send", " --verify=crc32c")];
    (20_001..)
        .zip(verbs)
        .map(|(port, (verb, verify))| {
            let server = format!("{COMMON} --port={port} --rw=read --iodepth=64{verify}");
            let once = if verify.is_empty() {
                ""
            } else {
                " --do_verify=0"
            };
            let client = format!(
                "{COMMON} --port={port} --rw=write --iodepth=4 --verb={verb} \
                 --hostname={LINK_V4}{verify}{once}"
            );
            let name = client.clone();
            let script = move |place: &Place| run(place, &server, &client);
            Case::script("fio", &name, script)
        })
        .collect()
}

fn run(place: &Place, server: &str, client: &str) -> Result<String> {
    let start = |what: &'static str, line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        Running::spawn(&mut place.user.program(&words), &place.user.scratch, what)
    };
    let mut server = start("fio-server", server)?;
    server.says("waiting for connection", PATIENCE)?;
    let until = deadline(PATIENCE);
    let mut client = start("fio-client", client)?;
    client.succeeds(until)?;
    let said = client.said()?;
    ensure!(said.contains("io=4096KiB"), "not all was written: {said}");
    server.succeeds(until)?;
    let heard = server.said()?;
    for said in [&said, &heard] {
        ensure!(said.contains("err= 0"), "it failed: {said}");
    }
    Ok(said)
}
