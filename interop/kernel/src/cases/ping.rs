//! `ferroce ping` to the kernel's connection manager.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::case::{Caller, Case};
use crate::run::Site;

pub(super) fn cases() -> Vec<Case> {
    let case = |peer: &str| {
        let client = format!("ferroce ping -c 3 -W 10 {peer}");
        let mut case = Case::with_cm_server("ferroce ping", Caller::Ferroce, 0, "ib_cm", &client);
        case.script = Some(run);
        case
    };
    vec![case("{peer}").short(), case("{peer6}")]
}

fn run(site: &mut Site, case: &Case, folder: &Path) -> Result<()> {
    let words: Vec<&str> = case.client.split(' ').skip(1).collect();
    let said = site.network.user.ferroce(&words)?;
    fs::write(folder.join("client"), &said)?;
    let answers = said.matches("answer from ").count() - said.matches("no answer from ").count();
    ensure!(answers == 3, "{answers} of 3 answers:\n{said}");
    ensure!(said.contains("\nmtu 1024: "), "another MTU:\n{said}");
    Ok(())
}
