//! A disk that tgt serves over iSER.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::running::{Running, deadline};
use crate::user::User;

/// The configuration of tgt.
pub struct IserDisk<'a> {
    /// Backing file of the disk, already at its full size.
    pub file: &'a Path,
    /// Port for iSER. The next port serves iSCSI over TCP.
    pub port: u16,
    /// Name of the target.
    pub target: &'a str,
    /// Name of the initiator that may use the disk.
    pub initiator: &'a str,
}

impl IserDisk<'_> {
    /// Starts tgtd and configures it. Dropping the returned process ends it. The output of
    /// tgtd goes to the file `what` in `folder`.
    ///
    /// # Errors
    /// If tgtd does not start, or tgtadm fails.
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
        tgtd.wait_for_output("listening for iser connections", patience)?;
        let until = deadline(patience);
        let disk = file.display();
        for options in [
            format!("--op new --mode target --tid 1 --targetname {target}"),
            format!("--op new --mode logicalunit --tid 1 --lun 1 --backing-store {disk}"),
            "--op bind --mode target --tid 1 --initiator-address ALL".to_owned(),
            format!("--op bind --mode target --tid 1 --initiator-name {initiator}"),
        ] {
            start("tgtadm", &format!("tgtadm --lld iser {options}"))?.wait_for_success(until)?;
        }
        Ok(tgtd)
    }
}
