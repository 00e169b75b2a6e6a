//! A kernel consumer: the guest's NVMe initiator over RDMA with SPDK's target on Ferroce. The
//! guest writes to the disk and reads it back. The test compares it with the target's file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ferroce_harness::{Running, deadline};

use crate::case::{Caller, Case};
use crate::network::HOST;
use crate::run::Site;

const PATIENCE: Duration = Duration::from_secs(300);
const PORT: u16 = 4420;
const DISK: u64 = 32 << 20;

/// The command of the guest, as in docs/RECIPES.md. An emulated guest on a busy machine may miss the
/// usual keep-alive time of 5 s.
const CONNECT: &str =
    "nvme connect -t rdma -a {peer} -s 4420 -n nqn.2016-06.io.spdk:disk -i 1 -k 120";

/// The commands that configure the target, as in docs/RECIPES.md, but with a file as its disk.
const SETTINGS: &str = "\
nvmf_create_transport -t RDMA
bdev_aio_create {FILE} Disk0 512
nvmf_create_subsystem nqn.2016-06.io.spdk:disk -a
nvmf_subsystem_add_ns nqn.2016-06.io.spdk:disk Disk0
nvmf_subsystem_add_listener nqn.2016-06.io.spdk:disk -t rdma -a {HOST} -s 4420";

/// The script of the guest. It prints seconds of the guest's clock; the last line of its output
/// is the digest of the disk.
const GUEST: &str = r#"set -e
modprobe nvme-rdma
mkdir -p /etc/nvme
cat /proc/sys/kernel/random/uuid >/etc/nvme/hostid
echo "nqn.2014-08.org.nvmexpress:uuid:$(cat /etc/nvme/hostid)" >/etc/nvme/hostnqn
say() { echo "$(cut -d' ' -f1 /proc/uptime): $*"; }
say connect; {CONNECT}
trap 'nvme disconnect -n nqn.2016-06.io.spdk:disk >/dev/null' EXIT
tries=0
until [ -b /dev/nvme0n1 ]; do
    tries=$((tries + 1)); [ $tries -lt 300 ]; sleep 0.1
done
grep -q '^rdma$' /sys/class/nvme/nvme0/transport
head -c {SIZE} /dev/urandom >/tmp/data
say write; dd if=/tmp/data of=/dev/nvme0n1 bs=256k oflag=direct conv=fsync 2>&1
say read; dd if=/dev/nvme0n1 bs=256k iflag=direct of=/tmp/copy 2>&1
say compare; [ "$(sha256sum </tmp/data)" = "$(sha256sum </tmp/copy)" ]
say "blocks right"; sha256sum </tmp/data
rm /tmp/data /tmp/copy
"#;

/// Returns the case, if SPDK is built in a folder.
pub(super) fn cases(spdk: Option<&Path>) -> Vec<Case> {
    let Ok(folder) = built(spdk) else {
        return Vec::new();
    };
    let mut case = Case::with_cm_server("nvme", Caller::Kernel, PORT, &folder, CONNECT);
    case.patience = PATIENCE;
    case.script = Some(run);
    vec![case.packets("send write read")]
}

/// Returns the folder, or the reason why there is no case.
pub(super) fn built(spdk: Option<&Path>) -> Result<String> {
    let spdk = spdk.context(
        "FERROCE_SPDK is not set; it must name a folder with SPDK, which \
         `cargo xtask programs --storage --only SPDK` builds",
    )?;
    super::folder_with(spdk, "build/bin/nvmf_tgt", "SPDK")
}

fn run(site: &mut Site, case: &Case, folder: &Path) -> Result<()> {
    let until = deadline(case.patience);
    let disk = site.network.user.scratch.join("nvme.disk");
    fs::File::create(&disk)?.set_len(DISK)?;
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o666))?;
    let target = serve(site, &case.server, &disk, folder, until)?;
    let script = GUEST
        .replace("{CONNECT}", &case.client)
        .replace("{SIZE}", &DISK.to_string());
    let mut client = site.spawn(Caller::Kernel, &script, folder, "client")?;
    client.wait_for_success(until)?;
    drop(target);

    let said = client.output()?;
    ensure!(said.contains("blocks right"), "the guest compared nothing");
    let theirs = said.lines().last().context("the guest printed nothing")?;
    let ours = Command::new("sha256sum")
        .stdin(fs::File::open(&disk)?)
        .output()?;
    ensure!(
        String::from_utf8_lossy(&ours.stdout).trim() == theirs,
        "the file of the target differs from the guest's disk"
    );
    Ok(fs::remove_file(&disk)?)
}

/// Starts SPDK's target with one disk, and returns when the target listens.
fn serve(site: &Site, spdk: &str, disk: &Path, folder: &Path, until: Instant) -> Result<Running> {
    let user = &site.network.user;
    let mut command = user.program(&[
        &format!("{spdk}/build/bin/nvmf_tgt"),
        "--no-huge",
        "-s",
        "512",
        "-m",
        "0x1",
        // Another SPDK on this machine may use the same core.
        "--disable-cpumask-locks",
        "-r",
        "target.sock",
    ]);
    let libraries = format!("{spdk}/build/lib:{spdk}/isa-l/.libs");
    command.env("LD_LIBRARY_PATH", libraries);
    let mut target = Running::spawn(&mut command, folder, "server")?;
    target.wait_for_output("Reactor started", PATIENCE)?;
    let settings = SETTINGS
        .replace("{FILE}", &disk.display().to_string())
        .replace("{HOST}", HOST[0]);
    for line in settings.lines() {
        let mut command = user.command("/usr/bin/python3", &user.scratch);
        command
            .arg(format!("{spdk}/scripts/rpc.py"))
            .args(["-s", "target.sock"])
            .args(line.split(' '));
        Running::spawn(&mut command, folder, "rpc")?
            .wait_for_success(until)
            .with_context(|| format!("rpc.py {line}"))?;
    }
    Ok(target)
}
