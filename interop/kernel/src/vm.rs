//! The virtual machine with the kernel's Soft-RoCE.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ferroce_harness::{Running, deadline, now, pause};

use crate::agent;
use crate::image::Image;
use crate::network::{MTU, Place};

/// Timeout for booting under KVM.
const KVM_PATIENCE: Duration = Duration::from_secs(25);
/// Timeout for booting under emulation, on a busy machine: with ten processes per processor it
/// takes three minutes.
const PATIENCE: Duration = Duration::from_secs(300);
/// Name of the file in the cache that records that KVM does not work.
const NO_KVM: &str = "no-kvm";

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

/// Number of the guest's processors.
const PROCESSORS: &str = "2";

/// QEMU's options for the accelerators.
const KVM: [&str; 4] = ["-accel", "kvm", "-cpu", "host"];
/// QEMU emulates `rep movsb` byte by byte. Without ERMS and FSRM kernel and programs copy by words.
const TCG: [&str; 4] = [
    "-accel",
    "tcg,thread=multi",
    "-cpu",
    "max,erms=off,fsrm=off",
];

/// Option of the emulated guest's kernel. QEMU's emulated processors have one time stamp counter,
/// but do not say so, and the kernel would use the emulated HPET. Then each look at the clock is a
/// system call and an access to a device, on no other machine.
const TCG_CLOCK: &str = "tsc=reliable";

/// A running virtual machine.
pub(crate) struct Vm {
    qemu: Running,
    hardware: Hardware,
}

/// All that QEMU needs to start the guest.
#[derive(Debug, Clone)]
struct Hardware {
    image: Image,
    place: Place,
    accelerator: [&'static str; 4],
    /// A second disk.
    disk: Option<PathBuf>,
    /// Folder for logs.
    folder: PathBuf,
}

impl Vm {
    /// Boots the guest, with a second disk if there is one; returns when its agent replies.
    pub(crate) fn boot(
        image: &Image,
        place: Place,
        accelerator: Accelerator,
        disk: Option<&Path>,
        folder: &Path,
    ) -> Result<Vm> {
        let no_kvm = image.folder.join(NO_KVM);
        let maybe_kvm = Path::new("/dev/kvm").exists() && !no_kvm.exists();
        let hardware = Hardware {
            image: image.clone(),
            place,
            accelerator: TCG,
            disk: disk.map(Path::to_owned),
            folder: folder.join(place.name),
        };
        std::fs::create_dir_all(&hardware.folder)?;
        if accelerator == Accelerator::Kvm || accelerator == Accelerator::Auto && maybe_kvm {
            // Under some hypervisors /dev/kvm exists, but a stock kernel does not boot.
            let with_kvm = Hardware {
                accelerator: KVM,
                ..hardware.clone()
            };
            match Vm::start(with_kvm, KVM_PATIENCE) {
                Err(error) if accelerator == Accelerator::Auto => {
                    println!("KVM does not work here: {error:#}");
                    std::fs::write(no_kvm, "")?;
                }
                result => return result,
            }
        }
        Vm::start(hardware, PATIENCE)
    }

    fn start(hardware: Hardware, patience: Duration) -> Result<Vm> {
        let begun = now();
        let qemu = Running::spawn(&mut hardware.qemu(), &hardware.folder, "qemu")?;
        let mut vm = Vm { qemu, hardware };
        vm.await_agent(deadline(patience)).with_context(|| {
            let said = std::fs::read(vm.hardware.folder.join("console")).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            let last: Vec<&str> = said.lines().rev().take(5).collect();
            format!("the guest did not boot; last lines of its console: {last:?}")
        })?;
        let took = (now() - begun).as_secs_f64();
        let accelerator = vm.hardware.accelerator[1];
        println!("The guest is up after {took:.1} s ({accelerator}).");
        Ok(vm)
    }

    fn await_agent(&mut self, until: Instant) -> Result<()> {
        while !self.answers() {
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

    /// Ends the guest as a power cut would, so that no program in it can disconnect, and boots it
    /// again. QEMU is started anew: an emulated guest takes minutes to boot after QEMU's
    /// `system_reset`, instead of half a minute.
    pub(crate) fn reset(&mut self) -> Result<()> {
        self.qemu.kill_group();
        let end = self.qemu.wait_for_end(deadline(KVM_PATIENCE))?;
        ensure!(end.is_some(), "QEMU is still running after SIGKILL");
        *self = Vm::start(self.hardware.clone(), PATIENCE).context("after a reset")?;
        Ok(())
    }

    /// Runs a shell command in the guest, which must succeed; returns its output.
    pub(crate) fn run(&self, command: &str) -> Result<String> {
        let mut said = Vec::new();
        let status = agent::run(self.agent(), command, &mut said)
            .context("the agent in the guest does not reply")?;
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
        program.arg("--in-guest").arg(command);
        program.arg("--agent").arg(self.agent().to_string());
        program.process_group(0);
        Ok(program)
    }

    /// Returns a wait for a process in the guest to listen on a TCP port.
    pub(crate) fn listener(&self, port: u16) -> Result<agent::Listener> {
        Ok(agent::Listener::new(self.agent(), port)?)
    }

    /// Returns true if the agent in the guest replies.
    pub(crate) fn answers(&self) -> bool {
        agent::answers(self.agent())
    }

    /// Returns the guest's IPv4 address.
    pub(crate) fn address(&self) -> &'static str {
        self.hardware.place.addresses[0]
    }

    /// Returns a few words on the guest's processors.
    pub(crate) fn processors(&self) -> String {
        let how = match self.hardware.accelerator == TCG {
            true => "emulated",
            false => "virtualised",
        };
        format!("{PROCESSORS} {how} processors")
    }

    fn agent(&self) -> u16 {
        self.hardware.place.agent
    }
}

impl Hardware {
    /// Returns the command that starts the guest.
    fn qemu(&self) -> Command {
        let Place {
            addresses,
            mac,
            tap,
            agent,
            ..
        } = self.place;
        let clock = match self.accelerator == TCG {
            true => TCG_CLOCK,
            false => "",
        };
        let append = format!(
            "console=ttyS0 {clock} quiet mitigations=off net.ifnames=0 panic=0 interop.mac={mac} \
             interop.ip4={}/24 interop.ip6={}/64 interop.mtu={MTU} interop.port={}",
            addresses[0],
            addresses[1],
            agent::PORT
        );
        let disk = format!(
            "file={},format=raw,if=virtio,readonly=on",
            self.image.disk.display()
        );
        let tap = format!("tap,id=data,ifname={tap},script=no,downscript=no,vnet_hdr=off");
        let data = format!("virtio-net-pci,netdev=data,mac={mac},romfile=,host_mtu={MTU}");
        let user = format!(
            "user,id=control,restrict=on,hostfwd=tcp:127.0.0.1:{agent}-:{}",
            agent::PORT
        );
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(self.accelerator)
            .args([
                "-smp",
                PROCESSORS,
                "-m",
                "768",
                "-nodefaults",
                "-display",
                "none",
            ])
            .arg("-serial")
            .arg(format!("file:{}", self.folder.join("console").display()))
            .arg("-kernel")
            .arg(&self.image.kernel)
            .arg("-initrd")
            .arg(&self.image.initrd)
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
        if let Some(disk) = &self.disk {
            let drive = format!("file={},format=raw,if=virtio,readonly=on", disk.display());
            command.arg("-drive").arg(drive);
        }
        command
    }
}
