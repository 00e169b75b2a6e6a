//! fio's `rdma` engine: WRITE, READ and SEND between two fio processes.
//!
//! With SEND, the server verifies every block that it receives. With WRITE and READ, fio
//! picks one of the server's buffers at random for each block and does not record which, so
//! it cannot verify the data. But fio can keep its buffers in a file. At the end, each
//! destination buffer must be equal to one of the source buffers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use ferroce_harness::{Running, deadline};

use crate::case::Case;
use crate::place::{LINK_V4, Place};

const PATIENCE: Duration = Duration::from_secs(30);
const BLOCK: usize = 64 << 10;
/// Number of buffers in the file of each side.
const BUFFERS: usize = 4;
/// fio aligns buffers to pages, and may need one more page for that.
const PAGE: usize = 4096;

const COMMON: &str = "fio --name=job --ioengine=rdma --bs=64k --size=4m";

pub(super) fn cases() -> Vec<Case> {
    let bypassing = ["write", "read"].map(|verb| {
        let port = if verb == "write" { 20_001 } else { 20_002 };
        let server = format!("{COMMON} --port={port} --rw=read --iodepth={BUFFERS}");
        let client = format!(
            "{COMMON} --port={port} --rw=write --iodepth={BUFFERS} --scramble_buffers=0 \
             --verb={verb} --hostname={LINK_V4}"
        );
        let name = client.clone();
        let script = move |place: &Place| compared(place, verb, &server, &client);
        Case::script("fio", &name, script)
    });
    // The server has a receive for every block, because fio has no flow control.
    let server = format!("{COMMON} --port=20003 --rw=read --iodepth=64 --verify=crc32c");
    let client = format!(
        "{COMMON} --port=20003 --rw=write --iodepth=4 --verb=send --hostname={LINK_V4} \
         --verify=crc32c --do_verify=0"
    );
    let name = client.clone();
    let verified = Case::script("fio", &name, move |place: &Place| {
        run(place, &server, &client)
    });
    bypassing.into_iter().chain([verified]).collect()
}

/// Runs server and client with buffers in files, and compares the files.
fn compared(place: &Place, verb: &str, server: &str, client: &str) -> Result<String> {
    let scratch = &place.user.scratch;
    let (served, called) = (scratch.join("fio-served"), scratch.join("fio-called"));
    // The client fills its buffers itself; the server uses the file's contents.
    prepare(&served, |at| (at / 7 + at / BLOCK * 50) as u8)?;
    prepare(&called, |_| 0)?;
    let before = fs::read(&served)?;
    let with = |line: &str, file: &PathBuf| format!("{line} --mem=mmapshared:{}", file.display());
    let said = run(place, &with(server, &served), &with(client, &called))?;
    let (from, to) = match verb {
        "write" => (fs::read(&called)?, fs::read(&served)?),
        _ => (before, fs::read(&called)?),
    };
    for (number, buffer) in buffers(&to).enumerate() {
        ensure!(
            buffers(&from).any(|origin| origin == buffer),
            "destination buffer {number} differs from every source buffer"
        );
    }
    for file in [served, called] {
        fs::remove_file(file)?;
    }
    Ok(said)
}

/// Creates a file of buffers, with the bytes that `byte` returns for each offset.
fn prepare(file: &Path, byte: impl Fn(usize) -> u8) -> Result<()> {
    let bytes: Vec<u8> = (0..BLOCK * BUFFERS + PAGE).map(byte).collect();
    fs::write(file, bytes)?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o666))?;
    Ok(())
}

fn buffers(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    file.chunks_exact(BLOCK)
}

fn run(place: &Place, server: &str, client: &str) -> Result<String> {
    let start = |what: &'static str, line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        Running::spawn(&mut place.user.program(&words), &place.user.scratch, what)
    };
    let mut server = start("fio-server", server)?;
    server.wait_for_output("waiting for connection", PATIENCE)?;
    let until = deadline(PATIENCE);
    let mut client = start("fio-client", client)?;
    client.wait_for_success(until)?;
    let said = client.output()?;
    ensure!(
        said.contains("io=4096KiB"),
        "the client did not transfer all 4096 KiB: {said}"
    );
    server.wait_for_success(until)?;
    let heard = server.output()?;
    for said in [&said, &heard] {
        ensure!(said.contains("err= 0"), "fio failed: {said}");
    }
    Ok(said)
}
