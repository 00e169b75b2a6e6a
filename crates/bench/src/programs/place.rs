//! The environment of the programs: network, links, user and processors.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use ferroce_harness::is_listening;
use ferroce_testnet::netdev;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::probe::{Addresses, Device, Probe, Tool};

/// The UID and GID that root switches to: Ferroce needs no privileges, and as root it would
/// have larger socket buffers.
const NOBODY: u32 = 65534;
/// First TCP port of servers.
const FIRST_PORT: u16 = 18_600;

/// The processors that programs may use.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Cores {
    /// All that this process was started with.
    All,
    /// The first two of these.
    Two,
}

impl Cores {
    /// Returns the name for tables.
    pub const fn name(self) -> &'static str {
        match self {
            Cores::All => "all",
            Cores::Two => "two",
        }
    }
}

/// The type of the links.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LinkType {
    /// RoCE.
    Rxe,
    /// iWARP.
    Siw,
}

impl LinkType {
    const fn name(self) -> &'static str {
        match self {
            LinkType::Rxe => "rxe",
            LinkType::Siw => "siw",
        }
    }
}

/// The environment of the programs.
#[derive(Debug)]
pub struct Place {
    ferroce: PathBuf,
    /// Folder with `bin` and `lib` of the programs, if they are not those of the system.
    programs: Option<PathBuf>,
    folder: PathBuf,
    processors: CpuSet,
    as_nobody: bool,
    /// Why there is no private network, if so.
    host: Option<String>,
    port: u16,
    /// The links that were added and not deleted yet.
    links: Vec<&'static str>,
}

impl Place {
    /// Enters a private network and adds the links. Where that is not permitted, uses the
    /// host's loopback interface. The process must have a single thread.
    ///
    /// # Errors
    /// If the links cannot be added.
    pub fn enter(
        kind: LinkType,
        ferroce: &Path,
        programs: Option<&Path>,
        folder: &Path,
    ) -> Result<Place> {
        let is_root = rustix::process::geteuid().is_root();
        let host = ferroce_net::enter_private_network().err();
        let ferroce = ferroce.canonicalize();
        let programs = programs.map(Path::canonicalize).transpose();
        let mut place = Place {
            ferroce: ferroce.context("cannot find ferroce; --ferroce names it")?,
            programs: programs.context("cannot find the folder that --programs names")?,
            folder: folder.to_owned(),
            processors: sched_getaffinity(None)?,
            as_nobody: is_root,
            host: host.map(|error| error.to_string()),
            port: FIRST_PORT,
            links: Vec::new(),
        };
        if is_root && !place.nobody_may_run_ferroce() {
            eprintln!(
                "Note: the user nobody cannot run {}; the programs run as root, which may have \
                 larger socket buffers.",
                place.ferroce.display()
            );
            place.as_nobody = false;
        }
        // The programs' user must reach the folders below it.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        for dir in ["runtime", "scratch"] {
            place.make(dir)?;
        }
        let names = match kind {
            LinkType::Rxe => ["rxe0", "rxe1"],
            LinkType::Siw => ["siw0", "siw1"],
        };
        place.add_link(names[0], &["type", kind.name(), "netdev", "lo"])?;
        if place.host.is_none() {
            netdev::add_veth("veth0", "veth1");
            for name in ["veth0", "veth1"] {
                netdev::set_mtu(name, 9000);
                netdev::set_up(name);
            }
            netdev::add_address("veth0", "10.77.0.1/24");
            netdev::await_link_local("veth0");
            let mut words = vec!["type", kind.name(), "netdev", "veth0"];
            if kind == LinkType::Siw {
                words.extend(["crc", "on"]);
            }
            place.add_link(names[1], &words)?;
        }
        Ok(place)
    }

    /// Describes the network and the user in a sentence.
    pub fn description(&self) -> String {
        let network = match &self.host {
            None => "in a private network namespace".to_owned(),
            Some(why) => format!("of the host, because a private network is refused ({why})"),
        };
        let user = match (self.as_nobody, rustix::process::geteuid().is_root()) {
            (true, _) => "the user nobody",
            (false, true) => "root",
            (false, false) => "an ordinary user",
        };
        format!("Loopback (MTU 65536) {network}; programs run as {user}.")
    }

    /// Returns why a program cannot run here, if so.
    pub fn lacks(&self, probe: &Probe) -> Option<String> {
        let tool = probe.tool;
        let name = tool.executable();
        if probe.device == Device::SiwCrc && self.host.is_some() {
            return Some(
                "a link with CRCs needs an interface of its own, and a private network with \
                 another interface is refused"
                    .to_owned(),
            );
        }
        if tool == Tool::Fabric && self.host.is_some() {
            return Some(
                "libfabric ignores RDMA devices on loopback, and a private network with another \
                 interface is refused"
                    .to_owned(),
            );
        }
        let path = self.search_path();
        let found = name.is_empty() || std::env::split_paths(&path).any(|d| d.join(name).exists());
        (!found).then(|| format!("{name} is not installed"))
    }

    /// Returns the number of processors.
    pub fn count(&self, cores: Cores) -> u32 {
        match cores {
            Cores::All => self.processors.count(),
            Cores::Two => self.processors.count().min(2),
        }
    }

    /// Restricts this process, and the programs that it starts from now on, to processors.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn pin(&self, cores: Cores) -> Result<()> {
        let mut chosen = self.processors;
        if cores == Cores::Two {
            let all = (0..CpuSet::MAX_CPU).filter(|&cpu| self.processors.is_set(cpu));
            chosen = CpuSet::new();
            all.take(2).for_each(|cpu| chosen.set(cpu));
        }
        Ok(sched_setaffinity(None, &chosen)?)
    }

    /// Returns the addresses for the next run of a probe. Each run has another TCP port.
    ///
    /// # Errors
    /// If the kernel's list of sockets cannot be read.
    pub fn addresses(&mut self, probe: &Probe) -> Result<Addresses> {
        loop {
            self.port = if self.port < 30_000 {
                self.port + 1
            } else {
                FIRST_PORT
            };
            if !is_listening(self.port)? {
                break;
            }
        }
        let (peer, link, netdev) = match (probe.device, probe.tool) {
            (Device::Rxe, Tool::Fabric) => ("10.77.0.1", "rxe1", "veth0"),
            (Device::Rxe, _) => ("127.0.0.1", "rxe0", "lo"),
            (Device::Siw, _) => ("127.0.0.1", "siw0", "lo"),
            // The host reaches its own address through lo.
            (Device::SiwCrc, _) => ("10.77.0.1", "siw1", "veth0"),
        };
        Ok(Addresses {
            peer,
            link,
            netdev,
            port: self.port,
        })
    }

    /// Returns a command for a program, under `ferroce run` if `ours` is true.
    pub fn command(&self, words: &[String], ours: bool) -> Command {
        if !ours {
            let mut command = self.prepared(Path::new(&words[0]));
            command.args(&words[1..]);
            return command;
        }
        let mut command = self.prepared(&self.ferroce);
        command.args(["run", "--"]).args(words);
        command
    }

    /// Returns the folder for the programs' output.
    pub fn scratch(&self) -> PathBuf {
        self.folder.join("scratch")
    }

    /// Deletes the links; ferroced ends with the last one.
    ///
    /// # Errors
    /// If ferroced refuses.
    pub fn leave(mut self) -> Result<()> {
        while let Some(link) = self.links.pop() {
            self.run_ferroce(&["link", "delete", link])?;
        }
        Ok(())
    }

    fn add_link(&mut self, name: &'static str, words: &[&str]) -> Result<()> {
        self.run_ferroce(&[&["link", "add", name], words].concat())?;
        self.links.push(name);
        Ok(())
    }

    fn run_ferroce(&self, words: &[&str]) -> Result<()> {
        let output = self.prepared(&self.ferroce).args(words).output();
        let output = output.context("cannot start ferroce")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        let line = words.join(" ");
        ensure!(output.status.success(), "ferroce {line} failed: {errors}");
        Ok(())
    }

    fn nobody_may_run_ferroce(&self) -> bool {
        let mut command = Command::new(&self.ferroce);
        command.arg("--version").uid(NOBODY).gid(NOBODY);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    fn make(&self, name: &str) -> Result<()> {
        let dir = self.folder.join(name);
        fs::create_dir_all(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
        if self.as_nobody {
            chown(&dir, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(())
    }

    fn search_path(&self) -> OsString {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let own = self.programs.iter().map(|folder| folder.join("bin"));
        let all = own.chain(std::env::split_paths(&path));
        std::env::join_paths(all).unwrap_or(path.clone())
    }

    /// Returns a command with user, folders and variables set.
    fn prepared(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.scratch())
            .stdin(Stdio::null())
            .env("FERROCE_RUNTIME_DIR", self.folder.join("runtime"))
            .env("HOME", self.scratch())
            .env("PATH", self.search_path())
            .env_remove("XDG_RUNTIME_DIR")
            .process_group(0);
        if let Some(folder) = &self.programs {
            command.env("LD_LIBRARY_PATH", folder.join("lib"));
            command.env("UCX_MODULE_DIR", folder.join("lib/ucx"));
        }
        if self.as_nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }
}

impl Drop for Place {
    /// Ends ferroced after an error, too.
    fn drop(&mut self) {
        for link in &self.links {
            let _error_was_reported = self.run_ferroce(&["link", "delete", link]);
        }
    }
}
