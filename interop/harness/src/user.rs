//! The Ferroce side: an ordinary user with a runtime folder of their own.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Whom root becomes.
const NOBODY: u32 = 65534;

/// Somebody who runs programs on Ferroce.
pub struct User {
    ferroce: PathBuf,
    runtime: PathBuf,
    /// Where programs find themselves, and leave what they must.
    pub scratch: PathBuf,
    root: bool,
}

impl User {
    /// `ferroce` is the program, `folder` is for files, `root` tells whether whoever runs
    /// this is root, and is to become nobody.
    ///
    /// # Errors
    /// If the folders cannot be made.
    pub fn new(ferroce: &Path, folder: &Path, root: bool) -> Result<User> {
        let user = User {
            ferroce: ferroce.canonicalize().context("where is ferroce?")?,
            runtime: folder.join("runtime"),
            scratch: folder.join("scratch"),
            root,
        };
        for dir in [&user.runtime, &user.scratch] {
            fs::create_dir_all(dir)?;
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
            if root {
                chown(dir, Some(NOBODY), Some(NOBODY))?;
            }
        }
        Ok(user)
    }

    /// Runs `ferroce` itself.
    ///
    /// # Errors
    /// If it fails: then with what it said.
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

    /// A program under `ferroce run`.
    pub fn program(&self, words: &[impl AsRef<OsStr>]) -> Command {
        let mut command = self.prepared(&self.ferroce);
        command.args(["run", "--"]).args(words);
        command
    }

    /// Whether a program listens on a port of rdma_cm.
    ///
    /// # Errors
    /// If ferroced cannot be asked.
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
}
