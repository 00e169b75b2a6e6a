//! A kernel consumer: the guest's iSER initiator with tgt on Ferroce. The guest formats the
//! disk, mounts it, writes a file and reads it back. The test compares it with tgt's disk.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ferroce_harness::{IserDisk, deadline};

use crate::case::{Caller, Case, Link};
use crate::network::HOST;
use crate::run::Site;

const PATIENCE: Duration = Duration::from_secs(300);
const PORT: u16 = 3260;
const TARGET: &str = "iqn.2001-04.example:disk";
const INITIATOR: &str = "iqn.2001-04.example:guest";
const DISK: u64 = 128 << 20;
/// Size of the file that the guest writes and reads.
const FILE: u64 = 64 << 20;
/// RDMAP's opcodes of the operations of iSER, with their names.
const OPERATIONS: [(&str, &str); 4] = [
    ("0x00", "WRITE"),
    ("0x01", "READ request"),
    ("0x02", "READ response"),
    ("0x03", "SEND"),
];

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
head -c {FILE} /dev/urandom >/tmp/data
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
    let mut over_iwarp = case.clone().on_siw();
    over_iwarp.inspect = Some(check_operations);
    vec![case.packets("send write read"), over_iwarp]
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
        .replace("{PORT}", &PORT.to_string())
        .replace("{FILE}", &FILE.to_string());
    let before = carried(site, case.link)?;
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
    let after = carried(site, case.link)?;
    for (direction, bytes) in ["sent", "received"].into_iter().zip([0, 1]) {
        let carried = after[bytes] - before[bytes];
        ensure!(
            carried >= FILE,
            "{} {direction} {carried} bytes, less than the file of {FILE}",
            case.link.name()
        );
    }
    Ok(fs::remove_file(&disk)?)
}

/// Returns the bytes that Ferroce's link has sent and received.
fn carried(site: &Site, link: Link) -> Result<[u64; 2]> {
    let counters = site.network.user.ferroce(&["stat", link.name()])?;
    let value = |name: &str| -> Result<u64> {
        let mut words = counters.split_whitespace().skip_while(|word| *word != name);
        let value = words
            .nth(1)
            .with_context(|| format!("no {name} in: {counters}"))?;
        value
            .parse()
            .with_context(|| format!("the value of {name} is {value:?}"))
    };
    Ok([value("sent_bytes")?, value("rcvd_bytes")?])
}

/// Fails if a capture of iWARP does not contain all operations of iSER.
fn check_operations(capture: &Path) -> Result<()> {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(capture)
        .args(["-Y", &format!("tcp.port == {PORT} && iwarp_ddp_rdmap")])
        .args(["-T", "fields", "-e", "iwarp_rdma.opcode"])
        .output()
        .context("cannot start tshark")?;
    ensure!(output.status.success(), "tshark failed ({})", output.status);
    let said = String::from_utf8_lossy(&output.stdout);
    fs::write(capture.with_file_name("operations"), said.as_bytes())?;
    match missing_operation(&said) {
        Some(name) => bail!("the capture has no {name}"),
        None => Ok(()),
    }
}

/// Returns an operation whose opcode tshark did not print. A packet with several messages has
/// several opcodes, separated by commas.
fn missing_operation(said: &str) -> Option<&'static str> {
    let found = |opcode: &str| said.split([',', '\n']).any(|found| found == opcode);
    let mut missing = OPERATIONS.iter().filter(|(opcode, _)| !found(opcode));
    missing.next().map(|(_, name)| *name)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_operations_are_found() {
        assert_eq!(missing_operation("0x03\n0x00,0x03\n0x01\n0x02\n"), None);
        assert_eq!(
            missing_operation("0x03\n0x00,0x01\n"),
            Some("READ response")
        );
        assert_eq!(missing_operation(""), Some("WRITE"));
    }
}
