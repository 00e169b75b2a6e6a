//! A disk that tgt serves over RDMA.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::running::{Running, deadline};
use crate::user::User;

/// What tgt is told.
pub struct IserDisk<'a> {
    /// The disk, which has its size already.
    pub file: &'a Path,
    /// Where it is served over RDMA; over TCP, at the next port.
    pub port: u16,
    /// Its name.
    pub target: &'a str,
    /// Who may use it.
    pub initiator: &'a str,
}

impl IserDisk<'_> {
    /// Has tgt serve it until what is returned goes away. What tgtd says goes to the file
    /// `what` in `folder`.
    ///
    /// # Errors
    /// If tgt does not start, or does not do what it is told.
    pub fn serve(
        &self,
        user: &User,
        folder: &Path,
        what: &'static str,
        patience: Duration,
    ) -> Result<Running> {
        let IserDisk {
            file,
            port,
            target,
            initiator,
        } = self;
        fs::set_permissions(file, fs::Permissions::from_mode(0o666))?;
        let start = |what: &'static str, line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let mut command = user.program(&words);
            command.env("TGT_IPC_SOCKET", user.scratch.join("tgt"));
            Running::spawn(&mut command, folder, what)
        };
        let iscsi = port + 1;
        let daemon = format!("tgtd -f -d 1 --iscsi portal=127.0.0.1:{iscsi} --iser port={port}");
        let mut tgtd = start(what, &daemon)?;
        tgtd.says("listening for iser connections", patience)?;
        let until = deadline(patience);
        let disk = file.display();
        for told in [
            format!("--op new --mode target --tid 1 --targetname {target}"),
            format!("--op new --mode logicalunit --tid 1 --lun 1 --backing-store {disk}"),
            "--op bind --mode target --tid 1 --initiator-address ALL".to_owned(),
            format!("--op bind --mode target --tid 1 --initiator-name {initiator}"),
        ] {
            start("tgtadm", &format!("tgtadm --lld iser {told}"))?.succeeds(until)?;
        }
        Ok(tgtd)
    }
}
