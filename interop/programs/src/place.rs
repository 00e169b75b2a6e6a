//! Where the programs run: a network of their own, with two links, as an ordinary user.
//!
//! | link | netdev | GID 0 | GID 1 | GID 2 |
//! | --- | --- | --- | --- | --- |
//! | rxe0 | veth0 | link-local IPv6 | 10.77.0.1 | fd77::1 |
//! | rxe1 | lo | ::1 | 127.0.0.1 | |

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use ferroce_testnet::netdev;

/// Whom root becomes.
const NOBODY: u32 = 65534;

/// The place.
pub(crate) struct Place {
    ferroce: PathBuf,
    runtime: PathBuf,
    /// Where programs find themselves, and leave what they must.
    pub(crate) scratch: PathBuf,
    root: bool,
}

impl Place {
    /// Makes it, and goes there. `folder` is for files.
    pub(crate) fn enter(ferroce: &Path, folder: &Path) -> Result<Place> {
        let root = rustix::process::geteuid().is_root();
        ferroce_net::enter_private_network().context("cannot make a network of our own")?;
        netdev::add_veth("veth0", "veth1");
        for name in ["veth0", "veth1"] {
            netdev::set_mtu(name, 9000);
            netdev::set_up(name);
        }
        netdev::add_address("veth0", "10.77.0.1/24");
        netdev::add_address("veth0", "fd77::1/64");
        netdev::await_link_local("veth0");
        let place = Place {
            ferroce: ferroce.canonicalize().context("where is ferroce?")?,
            runtime: folder.join("runtime"),
            scratch: folder.join("scratch"),
            root,
        };
        for dir in [&place.runtime, &place.scratch] {
            fs::create_dir_all(dir)?;
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
            if root {
                chown(dir, Some(NOBODY), Some(NOBODY))?;
            }
        }
        // perftest's names for XRC domains; those of another user are in the way.
        for side in ["client", "server"] {
            let _not_there = fs::remove_file(format!("/tmp/xrc_domain_{side}"));
        }
        for (link, device) in [("rxe0", "veth0"), ("rxe1", "lo")] {
            place.ferroce(&["link", "add", link, "type", "rxe", "netdev", device])?;
        }
        Ok(place)
    }

    /// Runs `ferroce` itself.
    pub(crate) fn ferroce(&self, arguments: &[&str]) -> Result<String> {
        let output = self.prepared(&self.ferroce).args(arguments).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "ferroce {} failed: {said}",
            arguments.join(" ")
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A program under `ferroce run`.
    pub(crate) fn program(&self, words: &[impl AsRef<OsStr>]) -> Command {
        let mut command = self.prepared(&self.ferroce);
        command.args(["run", "--"]).args(words);
        command
    }

    /// A command that runs as the user, in this place.
    fn prepared(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.scratch)
            .stdin(Stdio::null())
            .env("FERROCE_RUNTIME_DIR", &self.runtime)
            .env("HOME", &self.scratch)
            .env_remove("XDG_RUNTIME_DIR")
            .process_group(0);
        if self.root {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// Takes the links down; ferroced ends with them.
    pub(crate) fn leave(self) -> Result<()> {
        for link in ["rxe0", "rxe1"] {
            self.ferroce(&["link", "delete", link])?;
        }
        Ok(())
    }
}
