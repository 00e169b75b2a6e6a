//! iSER: tgt serves a disk over RDMA, and libiscsi's programs use it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::{Context, Result};
use ferroce_harness::{Running, deadline};

use crate::case::Case;
use crate::place::{LINK_V4, Place};

const PATIENCE: Duration = Duration::from_secs(20);
const PORT: u16 = 20_201;
const TARGET: &str = "iqn.2001-04.example:disk";
const USER: &str = "iqn.2001-04.example:user";
/// The size of the disk.
const SIZE: usize = 4 << 20;

/// What libiscsi's programs are told, and what they must say. Debian's `iscsi-ls` knows
/// iSER only as an option of its other transport, with which it would look at disks.
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

/// A target with a disk, and one program that uses it.
fn run(place: &Place, line: &str) -> Result<String> {
    let scratch = &place.user.scratch;
    let disk = scratch.join("disk");
    let pattern: Vec<u8> = (0..SIZE).map(|at| (at / 512) as u8).collect();
    fs::write(&disk, pattern)?;
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o666))?;
    let start = |what: &'static str, line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = place.user.program(&words);
        command.env("TGT_IPC_SOCKET", scratch.join("tgt"));
        Running::spawn(&mut command, &std::env::temp_dir(), what)
    };
    let iscsi = PORT + 1;
    let daemon = format!("tgtd -f -d 1 --iscsi portal=127.0.0.1:{iscsi} --iser port={PORT}");
    let mut target = start("tgtd", &daemon)?;
    target.says("listening for iser connections", PATIENCE)?;
    let until = deadline(PATIENCE);
    for told in [
        format!("--op new --mode target --tid 1 --targetname {TARGET}"),
        format!(
            "--op new --mode logicalunit --tid 1 --lun 1 --backing-store {}",
            disk.display()
        ),
        "--op bind --mode target --tid 1 --initiator-address ALL".to_owned(),
        format!("--op bind --mode target --tid 1 --initiator-name {USER}"),
    ] {
        let mut admin = start("tgtadm", &format!("tgtadm --lld iser {told}"))?;
        admin.succeeds(until)?;
    }
    let mut user = start("libiscsi", line)?;
    let result = user.succeeds(until);
    let said = user.said()?;
    result.context(said.clone())?;
    Ok(said)
}
