//! A kernel consumer: the guest's iSER initiator with tgt on Ferroce. The guest formats the
//! disk, mounts it, writes a file and reads it back. The test compares it with tgt's disk.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ferroce_harness::{IserDisk, deadline};

use crate::case::{Caller, Case};
use crate::network::HOST;
use crate::run::Site;

const PATIENCE: Duration = Duration::from_secs(300);
const PORT: u16 = 3260;
const TARGET: &str = "iqn.2001-04.example:disk";
const INITIATOR: &str = "iqn.2001-04.example:guest";
const DISK: u64 = 128 << 20;

/// The script of the guest. The last line of its output is the digest of the file.
const GUEST: &str = r#"set -e
modprobe ib_iser; modprobe sd_mod
mkdir -p /run/lock /mnt
# iscsid looks up the user name of its clients.
[ -e /etc/passwd ] || echo root:x:0:0:root:/:/bin/sh >/etc/passwd
echo InitiatorName={INITIATOR} >/etc/iscsi/initiatorname.iscsi
iscsid
trap 'iscsiadm -k 0 || true' EXIT
say() { echo "$(cut -d' ' -f1 /proc/uptime): $*"; }
say discovery; iscsiadm -m discovery -t sendtargets -I iser -p {HOST}:{PORT}
say login; iscsiadm -m node -T {TARGET} -p {HOST}:{PORT} --login
tries=0
until [ -b /dev/sda ]; do
    tries=$((tries + 1)); [ $tries -lt 300 ]; sleep 0.1
done
say format; mkfs.ext4 -q -E lazy_itable_init=0 /dev/sda
say mount; mount /dev/sda /mnt
head -c 67108864 /dev/urandom >/tmp/data
say write; cp /tmp/data /mnt/data; umount /mnt
echo 3 >/proc/sys/vm/drop_caches
say read; mount -o ro /dev/sda /mnt
[ "$(sha256sum </tmp/data)" = "$(sha256sum </mnt/data)" ] || { say differs; exit 1; }
umount /mnt
say logout; iscsiadm -m node -T {TARGET} -p {HOST}:{PORT} --logout
say done; sha256sum </tmp/data; rm /tmp/data
"#;

pub(super) fn cases() -> Vec<Case> {
    let mut case = Case::with_cm_server("iSER", Caller::Kernel, PORT, "tgtd", "ib_iser");
    case.patience = PATIENCE;
    case.script = Some(run);
    vec![case.packets("send write read")]
}

fn run(site: &mut Site, case: &Case, folder: &Path) -> Result<()> {
    let until = deadline(case.patience);
    let disk = site.network.user.scratch.join("disk");
    fs::File::create(&disk)?.set_len(DISK)?;
    let served = IserDisk {
        file: &disk,
        port: PORT,
        target: TARGET,
        initiator: INITIATOR,
    };
    let target = served.serve(&site.network.user, folder, "server", case.patience)?;
    let script = GUEST
        .replace("{INITIATOR}", INITIATOR)
        .replace("{TARGET}", TARGET)
        .replace("{HOST}", HOST[0])
        .replace("{PORT}", &PORT.to_string());
    let mut client = site.spawn(Caller::Kernel, &script, folder, "client")?;
    client.wait_for_success(until)?;
    drop(target);

    let said = client.output()?;
    let theirs = said.lines().last().context("the guest printed nothing")?;
    let ours = digest_of_the_file(&disk)?;
    ensure!(
        ours == theirs,
        "the file on tgt's disk differs from the guest's"
    );
    Ok(fs::remove_file(&disk)?)
}

/// Returns the digest of the file in the file system on tgt's disk.
fn digest_of_the_file(disk: &Path) -> Result<String> {
    let command = r#"debugfs -R "cat /data" "$0" 2>/dev/null | sha256sum"#;
    let output = Command::new("sh")
        .args(["-c", command])
        .arg(disk)
        .output()?;
    let digest = String::from_utf8_lossy(&output.stdout);
    Ok(digest.trim().to_owned())
}
