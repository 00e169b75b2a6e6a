//! The Ferroce side: an unprivileged user with their own runtime folder.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::Pid;

/// The UID and GID that root switches to.
const NOBODY: u32 = 65534;

/// An unprivileged user who runs programs on Ferroce.
pub struct User {
    ferroce: PathBuf,
    runtime: PathBuf,
    /// The working folder of programs, which they may write to.
    pub scratch: PathBuf,
    root: bool,
}

impl User {
    /// Creates the user's folders in `folder`. `ferroce` is the path of the program. If `root`
    /// is true, the caller is root and commands run as nobody.
    ///
    /// # Errors
    /// If the folders cannot be created.
    pub fn new(ferroce: &Path, folder: &Path, root: bool) -> Result<User> {
        let user = User {
            ferroce: ferroce.canonicalize().context("cannot find ferroce")?,
            runtime: folder.join("runtime"),
            scratch: folder.join("scratch"),
            root,
        };
        for dir in [&user.runtime, &user.scratch] {
            user.make(dir)?;
        }
        Ok(user)
    }

    /// Creates a folder that belongs to the user.
    fn make(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir)?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        if self.root {
            chown(dir, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(())
    }

    /// Runs `ferroce` itself.
    ///
    /// # Errors
    /// If ferroce fails; the error includes its output.
    pub fn ferroce(&self, arguments: &[&str]) -> Result<String> {
        let output = self.prepared(&self.ferroce).args(arguments).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "ferroce {} failed: {said}",
            arguments.join(" ")
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns the user's processes in this PID namespace: all, or those with a name.
    ///
    /// # Errors
    /// If /proc cannot be read.
    pub fn processes(&self, name: Option<&str>) -> Result<Vec<Pid>> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let number = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            let Some(pid) = number.and_then(Pid::from_raw) else {
                continue;
            };
            // The process may have ended meanwhile.
            let Ok(status) = fs::read_to_string(entry.path().join("status")) else {
                continue;
            };
            let field = |key: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(key));
                line.and_then(|line| line.split_whitespace().next())
            };
            let theirs = field("Uid:") == Some(&NOBODY.to_string()) && field("State:") != Some("Z");
            if theirs && name.is_none_or(|name| field("Name:") == Some(name)) {
                found.push(pid);
            }
        }
        Ok(found)
    }

    /// Removes all state that Ferroce keeps in the runtime folder.
    ///
    /// # Errors
    /// If the folder cannot be removed.
    pub fn clear_runtime(&self) -> Result<()> {
        fs::remove_dir_all(&self.runtime)?;
        self.make(&self.runtime)
    }

    /// Returns a command that runs a program under `ferroce run`.
    pub fn program(&self, words: &[impl AsRef<OsStr>]) -> Command {
        let mut command = self.prepared(&self.ferroce);
        command.args(["run", "--"]).args(words);
        command
    }

    /// Returns a command that runs as the user in `folder`, without `ferroce run`.
    pub fn command(&self, program: impl AsRef<Path>, folder: &Path) -> Command {
        let mut command = self.prepared(program.as_ref());
        command.current_dir(folder);
        command
    }

    /// Returns the folder of `ferroce`.
    pub fn program_folder(&self) -> &Path {
        self.ferroce.parent().unwrap_or(&self.ferroce)
    }

    /// Returns true if a program listens on an rdma_cm port.
    ///
    /// # Errors
    /// If `rdma resource` fails.
    pub fn listens(&self, port: u16) -> Result<bool> {
        let asked = self
            .program(&["rdma", "resource", "show", "cm_id"])
            .output()?;
        let said = String::from_utf8_lossy(&asked.stdout);
        let errors = String::from_utf8_lossy(&asked.stderr);
        ensure!(asked.status.success(), "rdma resource failed: {errors}");
        let port = format!(":{port}");
        Ok(said.lines().any(|line| {
            line.contains(" state LISTEN ") && line.split(' ').any(|word| word.ends_with(&port))
        }))
    }

    /// Returns a command that runs as the user in the scratch folder.
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
}
