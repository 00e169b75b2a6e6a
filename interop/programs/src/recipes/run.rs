//! Running of one prepared recipe.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ferroce_harness::{Running, deadline};

use super::prepare::{PATH, Prepared};
use crate::place::Place;

/// Runs the second block of a recipe. The output goes to `logs`.
pub(crate) fn run(place: &Place, prepared: &Prepared, logs: &Path) -> Result<()> {
    fs::create_dir_all(logs)?;
    let recipe = prepared.recipe;
    let before = sent_bytes(place)?;
    let mut shell = place.user.command("bash", &prepared.folder);
    let virtual_environment = prepared.folder.join("venv/bin");
    let ferroce = place.user.program_folder();
    shell
        .args(["-euo", "pipefail", "-c", &prepared.block])
        .env(
            "PATH",
            format!(
                "{}:{}:{PATH}",
                virtual_environment.display(),
                ferroce.display()
            ),
        )
        .env_remove("LD_LIBRARY_PATH");
    let sources = prepared.sources.iter();
    shell.envs(sources.map(|(variable, folder)| (variable, folder)));
    let mut child = Running::spawn(&mut shell, logs, "output")?;
    let result = child.wait_for_success(deadline(Duration::from_secs(60 * recipe.minutes)));
    // Servers that the block started and did not stop.
    child.kill_group();
    place.await_silence(deadline(Duration::from_secs(20)))?;
    result?;
    let said = child.output()?;
    for text in recipe.expect {
        ensure!(said.contains(text), "the recipe did not print \"{text}\"");
    }
    let sent = sent_bytes(place)? - before;
    ensure!(
        sent >= recipe.bytes,
        "rxe0 sent {sent} bytes, the recipe moves {}: its data took another way",
        recipe.bytes
    );
    Ok(())
}

/// Returns the bytes that rxe0 has sent.
fn sent_bytes(place: &Place) -> Result<u64> {
    let text = place.user.ferroce(&["stat", "rxe0"])?;
    let mut words = text.split_whitespace();
    if words.any(|word| word == "sent_bytes") {
        let value = words.next().context("sent_bytes has no value")?;
        return Ok(value.parse()?);
    }
    bail!("ferroce stat shows no sent_bytes: {text}")
}
