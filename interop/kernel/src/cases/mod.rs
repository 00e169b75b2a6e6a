//! The matrix of cases.

mod cm;
mod connections;
mod flows;
mod iser;
mod nfs;
mod nvme;
mod perftest;
mod ping;
mod pingpong;
mod reboot;
mod refusals;
mod siw;
mod weather;

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, ensure};

use crate::case::Case;

/// Folders with servers that some cases need, built by `cargo xtask programs --storage`.
#[derive(Debug, clap::Args)]
pub(crate) struct Servers {
    /// Folder of nfs-ganesha, built, for the cases of NFS
    #[arg(
        long,
        value_name = "FOLDER",
        env = "FERROCE_GANESHA",
        default_value = "target/recipes/nfs/ganesha"
    )]
    ganesha: PathBuf,
    /// Folder of SPDK, built, for the cases of nvme
    #[arg(long, value_name = "FOLDER", env = "FERROCE_SPDK")]
    spdk: Option<PathBuf>,
}

impl Servers {
    /// Returns the groups whose servers are not built, each with the reason.
    pub(crate) fn missing(&self) -> Vec<(&'static str, anyhow::Error)> {
        let groups = [
            ("NFS", nfs::built(&self.ganesha)),
            ("nvme", nvme::built(self.spdk.as_deref())),
        ];
        let failed = groups.into_iter();
        failed
            .filter_map(|(group, result)| Some((group, result.err()?)))
            .collect()
    }
}

/// Returns all cases whose servers exist.
pub(crate) fn all(servers: &Servers) -> Vec<Case> {
    let mut cases = pingpong::cases();
    cases.extend(perftest::cases());
    cases.extend(flows::cases());
    cases.extend(cm::cases());
    cases.extend(ping::cases());
    cases.extend(connections::cases());
    cases.extend(reboot::cases());
    cases.extend(iser::cases());
    cases.extend(nfs::cases(&servers.ganesha));
    cases.extend(nvme::cases(servers.spdk.as_deref()));
    cases.extend(weather::cases());
    cases.extend(siw::cases());
    cases.extend(refusals::cases());
    cases
}

/// Returns a folder as text if it contains a program. `recipe` is the name of the recipe that
/// builds the program.
fn folder_with(folder: &Path, program: &str, recipe: &str) -> Result<String> {
    let server = folder.join(program);
    ensure!(
        server.exists(),
        "{} does not exist; `cargo xtask programs --storage --only {recipe}` builds it",
        server.display()
    );
    let folder = folder.canonicalize()?.into_os_string();
    folder
        .into_string()
        .map_err(|name| anyhow!("{} is not UTF-8", name.display()))
}

/// TCP ports for servers. None is used twice, because an earlier server may still hold it.
struct Ports(u16);

impl Ports {
    fn next(&mut self) -> u16 {
        self.0 += 1;
        self.0
    }
}
