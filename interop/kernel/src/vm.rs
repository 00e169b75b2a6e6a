//! The virtual machine with the kernel's Soft-RoCE.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ferroce_harness::{Running, deadline, now, pause};

use crate::agent;
use crate::image::Image;
use crate::network::{GUEST, GUEST_MAC, MTU, TAP};

/// Timeout for booting under KVM.
const KVM_PATIENCE: Duration = Duration::from_secs(25);
/// Timeout for booting under emulation, on a busy machine: with ten processes per processor it
/// takes three minutes.
const PATIENCE: Duration = Duration::from_secs(300);
/// Name of the file in the cache that records that KVM does not work.
const NO_KVM: &str = "no-kvm";
const MONITOR: &str = "monitor";

/// The accelerator of the virtual machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Accelerator {
    /// KVM if a stock kernel boots under it, emulation if not
    Auto,
    /// Hardware virtualisation
    Kvm,
    /// Emulation by QEMU
    Tcg,
}

/// A running virtual machine.
pub(crate) struct Vm {
    qemu: Running,
    /// Socket of QEMU's monitor.
    monitor: PathBuf,
}

impl Vm {
    /// Boots the guest, with a second disk if there is one; returns when its agent replies.
    pub(crate) fn boot(
        image: &Image,
        accelerator: Accelerator,
        disk: Option<&Path>,
        folder: &Path,
    ) -> Result<Vm> {
        let no_kvm = image.folder.join(NO_KVM);
        let maybe_kvm = Path::new("/dev/kvm").exists() && !no_kvm.exists();
        if accelerator == Accelerator::Kvm || accelerator == Accelerator::Auto && maybe_kvm {
            // Under some hypervisors /dev/kvm exists, but a stock kernel does not boot.
            let kvm = ["-accel", "kvm", "-cpu", "host"];
            match Vm::start(image, &kvm, disk, folder, KVM_PATIENCE) {
                Err(error) if accelerator == Accelerator::Auto => {
                    println!("KVM does not work here: {error:#}");
                    std::fs::write(no_kvm, "")?;
                }
                result => return result,
            }
        }
        let tcg = ["-accel", "tcg,thread=multi", "-cpu", "max"];
        Vm::start(image, &tcg, disk, folder, PATIENCE)
    }

    fn start(
        image: &Image,
        accelerator: &[&str],
        disk: Option<&Path>,
        folder: &Path,
        patience: Duration,
    ) -> Result<Vm> {
        let begun = now();
        let mut command = qemu(image, accelerator, folder);
        if let Some(disk) = disk {
            let drive = format!("file={},format=raw,if=virtio,readonly=on", disk.display());
            command.arg("-drive").arg(drive);
        }
        let qemu = Running::spawn(&mut command, folder, "qemu")?;
        let monitor = folder.join(MONITOR);
        let mut vm = Vm { qemu, monitor };
        vm.await_agent(deadline(patience)).with_context(|| {
            let said = std::fs::read(folder.join("console")).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            let last: Vec<&str> = said.lines().rev().take(5).collect();
            format!("the guest did not boot; last lines of its console: {last:?}")
        })?;
        let took = (now() - begun).as_secs_f64();
        println!("The guest is up after {took:.1} s ({}).", accelerator[1]);
        Ok(vm)
    }

    fn await_agent(&mut self, until: Instant) -> Result<()> {
        while !agent::answers() {
            if let Some(status) = self.qemu.wait_for_end(now())? {
                bail!("QEMU ended ({status}): {}", self.qemu.output()?);
            }
            ensure!(
                now() < until,
                "the agent in the guest did not reply in time"
            );
            pause();
        }
        Ok(())
    }

    /// Resets the guest, as a power cut would: no program in it can disconnect. Returns when
    /// it is up again.
    pub(crate) fn reset(&mut self) -> Result<()> {
        // The boot ID changes with each boot.
        let incarnation = "cat /proc/sys/kernel/random/boot_id";
        let before = self.run(incarnation)?;
        #[allow(clippy::disallowed_methods)] // a tool that controls a virtual machine
        let mut monitor =
            UnixStream::connect(&self.monitor).context("cannot reach QEMU's monitor")?;
        monitor.write_all(b"system_reset\n")?;
        let until = deadline(PATIENCE);
        loop {
            self.await_agent(until).context("after a reset")?;
            if self.run(incarnation)? != before {
                return Ok(());
            }
            pause();
        }
    }

    /// Runs a shell command in the guest, which must succeed; returns its output.
    pub(crate) fn run(&self, command: &str) -> Result<String> {
        let mut said = Vec::new();
        let status =
            agent::run(command, &mut said).context("the agent in the guest does not reply")?;
        let said = String::from_utf8_lossy(&said).into_owned();
        ensure!(
            status == 0,
            "`{command}` failed in the guest ({status}): {said}"
        );
        Ok(said)
    }

    /// Returns a command of this host that runs a shell command in the guest.
    pub(crate) fn program(&self, command: &str) -> Result<Command> {
        let mut program = Command::new(std::env::current_exe()?);
        program.arg("--in-guest").arg(command).process_group(0);
        Ok(program)
    }
}

fn qemu(image: &Image, accelerator: &[&str], folder: &Path) -> Command {
    let append = format!(
        "console=ttyS0 quiet mitigations=off net.ifnames=0 panic=0 interop.mac={GUEST_MAC} \
         interop.ip4={}/24 interop.ip6={}/64 interop.mtu={MTU} interop.port={}",
        GUEST[0],
        GUEST[1],
        agent::PORT
    );
    let disk = format!(
        "file={},format=raw,if=virtio,snapshot=on",
        image.disk.display()
    );
    let tap = format!("tap,id=data,ifname={TAP},script=no,downscript=no,vnet_hdr=off");
    let data = format!("virtio-net-pci,netdev=data,mac={GUEST_MAC},romfile=,host_mtu={MTU}");
    let user = format!(
        "user,id=control,restrict=on,hostfwd=tcp:127.0.0.1:{0}-:{0}",
        agent::PORT
    );
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(accelerator)
        .args(["-smp", "2", "-m", "768", "-nodefaults", "-display", "none"])
        .arg("-monitor")
        .arg(format!(
            "unix:{},server=on,wait=off",
            folder.join(MONITOR).display()
        ))
        .arg("-serial")
        .arg(format!("file:{}", folder.join("console").display()))
        .arg("-kernel")
        .arg(&image.kernel)
        .arg("-initrd")
        .arg(&image.initrd)
        .args([
            "-append",
            &append,
            "-drive",
            &disk,
            "-device",
            "virtio-rng-pci",
        ])
        .args(["-netdev", &tap, "-device", &data])
        .args([
            "-netdev",
            &user,
            "-device",
            "virtio-net-pci,netdev=control,romfile=",
        ])
        .process_group(0);
    command
}
