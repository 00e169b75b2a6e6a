//! A kernel consumer: the guest's NFS client over RDMA with nfs-ganesha on Ferroce. The guest
//! mounts the export, writes files and reads them back.
//!
//! nfs-ganesha fetches the data of a WRITE with RDMA READs, one at a time. Such a requester once
//! let the size of its READs shrink to 4 KiB and stay there, so the case looks at their sizes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ferroce_harness::{Running, deadline, now, pause};

use crate::case::{Caller, Case};
use crate::network::HOST;
use crate::run::Site;

const PATIENCE: Duration = Duration::from_secs(300);
const PORT: u16 = 20049;
/// READs of this size or less would be the smallest that congestion control may choose.
const SMALL_READ: u64 = 4096;

/// The configuration of the server: files in memory, up to 2 MiB each, which needs no root.
const CONFIG: &str = "
NFS_CORE_PARAM { Protocols = 4, NFSRDMA; NFS_RDMA_Protocol_Versions = 4.0; Plugins_Dir = {GANESHA}/build/FSAL/FSAL_MEM;
                 Enable_UDP = false; allow_set_io_flusher_fail = true; }
NFSv4 { Graceless = true; RecoveryRoot = {FOLDER}; Minor_Versions = 0; Delegations = false; }
MEM { Inode_Size = 2097152; }
EXPORT { Export_Id = 1; Path = /mem; Pseudo = /mem; Access_Type = RW; Squash = None; SecType = sys, none; Protocols = 4;
         FSAL { Name = MEM; } }
";

/// The command of the guest, as in docs/RECIPES.md.
const MOUNT: &str = "mount -t nfs -o vers=4.0,proto=rdma,port=20049 {peer}:/mem /mnt";

/// The script of the guest: 32 files of 2 MiB. It prints seconds of the guest's clock.
const GUEST: &str = r#"set -e
modprobe rpcrdma
mkdir -p /mnt /tmp/data
say() { echo "$(cut -d' ' -f1 /proc/uptime): $*"; }
for n in $(seq 32); do head -c 2097152 /dev/urandom >/tmp/data/$n; done
say mount; {MOUNT}
trap 'umount /mnt' EXIT
grep -q 'proto=rdma' /proc/mounts
say write; cp /tmp/data/* /mnt; sync /mnt/*
say written
echo 3 >/proc/sys/vm/drop_caches
say read; theirs=$(cat /mnt/* | sha256sum)
say compare; [ "$theirs" = "$(cat /tmp/data/* | sha256sum)" ]
say "files right"
rm -r /tmp/data
"#;

/// Returns the case, if nfs-ganesha is built in a folder.
pub(super) fn cases(ganesha: &Path) -> Vec<Case> {
    let Ok(folder) = built(ganesha) else {
        return Vec::new();
    };
    let mut case = Case::with_cm_server("NFS", Caller::Kernel, PORT, &folder, MOUNT);
    case.patience = PATIENCE;
    case.script = Some(run);
    case.inspect = Some(check_reads);
    vec![case.packets("send write read")]
}

/// Returns the folder, or the reason why there is no case.
pub(super) fn built(ganesha: &Path) -> Result<String> {
    super::folder_with(ganesha, "build/ganesha.nfsd", "NFS")
}

fn run(site: &mut Site, case: &Case, folder: &Path) -> Result<()> {
    let until = deadline(case.patience);
    let user = &site.network.user;
    let (ganesha, scratch) = (&case.server, user.scratch.display().to_string());
    let config = user.scratch.join("ganesha.conf");
    let text = CONFIG
        .replace("{GANESHA}", ganesha)
        .replace("{FOLDER}", &scratch);
    fs::write(&config, text)?;
    let mut command = user.program(&[
        &format!("{ganesha}/build/ganesha.nfsd"),
        "-F",
        "-L",
        "STDERR",
        "-f",
        "ganesha.conf",
        "-p",
        "ganesha.pid",
    ]);
    let libraries = format!("{ganesha}/build/libntirpc/src:{ganesha}/build/MainNFSD");
    command.env("LD_LIBRARY_PATH", libraries);
    let mut server = Running::spawn(&mut command, folder, "server")?;
    while !user.listens(PORT)? {
        if let Some(status) = server.wait_for_end(now())? {
            bail!("nfs-ganesha ended before it listened ({status})");
        }
        ensure!(now() < until, "nfs-ganesha does not listen");
        pause();
    }
    let script = GUEST.replace("{MOUNT}", &case.client);
    let mut client = site.spawn(Caller::Kernel, &script, folder, "client")?;
    client.wait_for_success(until)?;
    let said = client.output()?;
    ensure!(said.contains("files right"), "the guest compared nothing");
    Ok(())
}

/// Fails if the READs of Ferroce in a capture ended up small.
fn check_reads(capture: &Path) -> Result<()> {
    check_sizes(&sizes_of_reads(capture)?)
}

fn check_sizes(sizes: &[u64]) -> Result<()> {
    let last = &sizes[sizes.len() - sizes.len() / 4..];
    let large = last.iter().filter(|size| **size > SMALL_READ).count();
    ensure!(
        large > 0,
        "none of the last {} READs asked for more than {SMALL_READ} bytes",
        last.len()
    );
    Ok(())
}

/// Returns the sizes of all READ requests that Ferroce sent, in their order. Writes them beside
/// the capture.
fn sizes_of_reads(capture: &Path) -> Result<Vec<u64>> {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(capture)
        .arg("-Y")
        .arg(format!(
            "infiniband.bth.opcode == 12 && ip.src == {}",
            HOST[0]
        ))
        .args(["-T", "fields", "-e", "infiniband.reth.dmalen"])
        .output()
        .context("cannot start tshark")?;
    ensure!(output.status.success(), "tshark failed ({})", output.status);
    let said = String::from_utf8_lossy(&output.stdout);
    fs::write(capture.with_file_name("reads"), said.as_bytes())?;
    said.lines()
        .map(|line| line.parse().with_context(|| format!("the size {line:?}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_stay_small_fail() {
        check_sizes(&[65536, 4096, 4096, 4096, 65536]).expect("the last are large");
        assert!(check_sizes(&[65536; 3]).is_err(), "too few to tell");
        let mut sizes = vec![65536; 100];
        sizes.extend([4096; 100]);
        assert!(check_sizes(&sizes).is_err());
    }
}
