//! iSER: tgt serves a disk over RDMA to libiscsi's programs.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use ferroce_harness::{IserDisk, Running, deadline};

use crate::case::Case;
use crate::place::{LINK_V4, Place};

const PATIENCE: Duration = Duration::from_secs(20);
const PORT: u16 = 20_201;
const TARGET: &str = "iqn.2001-04.example:disk";
const USER: &str = "iqn.2001-04.example:user";
/// Size of the disk in bytes.
const SIZE: usize = 4 << 20;

/// Returns the commands of libiscsi's programs, each with its expected output. Debian's
/// `iscsi-ls` supports iSER only as an option of an `iscsi:` URL.
fn programs() -> [(String, &'static str); 4] {
    let disk = format!("iser://{LINK_V4}:{PORT}/{TARGET}/1");
    [
        (
            format!("stdbuf -oL iscsi-ls -i {USER} iscsi://{LINK_V4}:{PORT}/?iser"),
            "Target:iqn.2001-04.example:disk Portal:10.77.0.1:20201,1",
        ),
        (format!("iscsi-inq -i {USER} {disk}"), "Vendor:IET"),
        (
            format!("iscsi-readcapacity16 -i {USER} {disk}"),
            "Total size:4194304",
        ),
        (
            format!("iscsi-perf -i {USER} -t 1 -m 8 -b 64 {disk}"),
            "iops average",
        ),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    let case = |(line, text): (String, &'static str)| {
        let name = line.clone();
        let script = move |place: &Place| run(place, &line);
        Case::script("tgt, libiscsi", &name, script).expect(text)
    };
    programs().map(case).into()
}

/// Runs tgt with a disk, and one program that uses it.
fn run(place: &Place, line: &str) -> Result<String> {
    let disk = place.user.scratch.join("disk");
    let pattern: Vec<u8> = (0..SIZE).map(|at| (at / 512) as u8).collect();
    fs::write(&disk, pattern)?;
    let logs = std::env::temp_dir();
    let served = IserDisk {
        file: &disk,
        port: PORT,
        target: TARGET,
        initiator: USER,
    };
    let _target = served.serve(&place.user, &logs, "tgtd", PATIENCE)?;
    let until = deadline(PATIENCE);
    let words: Vec<&str> = line.split(' ').collect();
    let mut user = Running::spawn(&mut place.user.program(&words), &logs, "libiscsi")?;
    let result = user.wait_for_success(until);
    let said = user.output()?;
    result.context(said.clone())?;
    Ok(said)
}
