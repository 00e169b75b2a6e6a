//! Running of one prepared recipe.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ferroce_harness::{Running, deadline};

use super::prepare::{PATH, Prepared};
use crate::place::{Place, Wire};

/// The bytes that rxe0 sent while a recipe ran.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// On both wires.
    bytes: u64,
    /// Through shared memory.
    in_memory: u64,
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sent { bytes, in_memory } = self;
        write!(f, "{bytes} bytes over rxe0, {in_memory} in shared memory")
    }
}

impl Sent {
    /// Returns the counters of rxe0.
    fn until_now(place: &Place) -> Result<Sent> {
        let text = place.user.ferroce(&["stat", "rxe0"])?;
        let counter = |name: &str| {
            let mut words = text.split_whitespace();
            words.find(|word| *word == name);
            let value = words.next().with_context(|| format!("no {name}: {text}"))?;
            value.parse().with_context(|| format!("{name} {value}"))
        };
        Ok(Sent {
            bytes: counter("sent_bytes")?,
            in_memory: counter("local_sent_bytes")?,
        })
    }

    /// Fails unless the data of a recipe took the right way.
    fn check(self, expected: u64, wire: Wire) -> Result<()> {
        let Sent { bytes, in_memory } = self;
        ensure!(
            bytes >= expected,
            "rxe0 sent {bytes} bytes, the recipe moves {expected}: its data took another way"
        );
        match wire {
            Wire::Local => ensure!(
                in_memory >= expected,
                "{in_memory} of {bytes} bytes went through shared memory, the recipe moves {expected}"
            ),
            Wire::Udp => ensure!(
                in_memory == 0,
                "{in_memory} bytes went through shared memory, although the wire is UDP"
            ),
        }
        Ok(())
    }
}

/// Runs the second block of a recipe. The output goes to `logs`. Returns the bytes that the
/// link sent.
pub(crate) fn run(place: &Place, prepared: &Prepared, wire: Wire, logs: &Path) -> Result<Sent> {
    fs::create_dir_all(logs)?;
    let recipe = prepared.recipe;
    let before = Sent::until_now(place)?;
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
    let after = Sent::until_now(place)?;
    let sent = Sent {
        bytes: after.bytes - before.bytes,
        in_memory: after.in_memory - before.in_memory,
    };
    sent.check(recipe.bytes, wire)?;
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_took_another_way_fails() {
        let sent = |bytes, in_memory| Sent { bytes, in_memory };
        sent(100, 100).check(100, Wire::Local).unwrap();
        sent(100, 0).check(100, Wire::Udp).unwrap();
        assert!(sent(99, 99).check(100, Wire::Local).is_err());
        assert!(sent(100, 99).check(100, Wire::Local).is_err());
        assert!(sent(99, 0).check(100, Wire::Udp).is_err());
        assert!(sent(100, 1).check(100, Wire::Udp).is_err());
    }
}
