//! The matrix of cases.

mod cm;
mod connections;
mod flows;
mod iser;
pub(crate) mod nfs;
mod perftest;
mod ping;
mod pingpong;
mod reboot;
mod refusals;
mod siw;
mod weather;

use std::path::Path;

use crate::case::Case;

/// Returns all cases. `ganesha` is a folder with nfs-ganesha, if it is built.
pub(crate) fn all(ganesha: &Path) -> Vec<Case> {
    let mut cases = pingpong::cases();
    cases.extend(perftest::cases());
    cases.extend(flows::cases());
    cases.extend(cm::cases());
    cases.extend(ping::cases());
    cases.extend(connections::cases());
    cases.extend(reboot::cases());
    cases.extend(iser::cases());
    cases.extend(nfs::cases(ganesha));
    cases.extend(weather::cases());
    cases.extend(siw::cases());
    cases.extend(refusals::cases());
    cases
}

/// TCP ports for servers. None is used twice, because an earlier server may still hold it.
struct Ports(u16);

impl Ports {
    fn next(&mut self) -> u16 {
        self.0 += 1;
        self.0
    }
}
